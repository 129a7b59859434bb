"""Seeds of data loader workers: what made a batch, where workers draw random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

from workbench.errors import UsageError


class Loaders:
    """Watches data loaders for the seeds their workers began the running epoch with.

    A loader does not tell its iterator, which holds the seeds; so the loader's own method that
    makes one is wrapped. Nothing that it returns or draws changes.
    """

    def __init__(self) -> None:
        self._iterators: dict[str, ref[Any]] = {}

    def watch(self, loader: Any, name: str = "train") -> None:
        """Record the seeds of a loader's workers with every step.

        Args:
            loader: A ``torch.utils.data.DataLoader``; call this before iterating over it.
            name: What the record calls it.

        Raises:
            UsageError: An object that is no such loader.
        """
        make: Callable[[], Any] | None = getattr(loader, "_get_iterator", None)
        if make is None:
            raise UsageError(
                f"{loader!r:.80} cannot be watched for worker seeds, since it is no "
                "torch.utils.data.DataLoader. Pass the loader itself, not an iterator over it."
            )

        def made() -> Any:
            iterator = make()
            self._iterators[name] = ref(iterator)
            return iterator

        loader._get_iterator = made

    @property
    def watched(self) -> bool:
        """Whether any loader is iterated that is watched."""
        return bool(self._iterators)

    def seeds(self) -> dict[str, dict[str, Any]]:
        """The base seed and every worker's seed, by loader; only of those that are iterated."""
        found: dict[str, dict[str, Any]] = {}
        for name, held in self._iterators.items():
            iterator = held()
            seed = getattr(iterator, "_base_seed", None)
            if seed is None:
                continue
            workers = int(getattr(iterator, "_num_workers", 0))
            base = int(seed)
            found[name] = {"base_seed": base, "worker_seeds": [base + i for i in range(workers)]}
        return found
