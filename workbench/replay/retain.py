"""Keep chosen tensors of an un-instrumented run for looking at.

Only forward hooks are used, which change no bits, and gradients are copied at their gate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from workbench.errors import CannotRunError, UsageError
from workbench.evidence.wording import byte_size, joined
from workbench.step.names import inner_model, named_parameters
from workbench.step.snapshots import copy_tree

if TYPE_CHECKING:
    from torch import Tensor, nn

    from workbench.replay.session import Session

MAX_BYTES: Final = 1 << 30
_GRADIENT, _PARAMETER = "gradient:", "parameter:"


class Retained:
    """Tensors kept so far, within a budget.

    Args:
        names: What to keep: a module path for its output (``""`` is the whole model), ``loss``,
            ``gradient:<parameter>``, or ``parameter:<name>`` as it is at the end of the run.
        max_bytes: Most bytes that are kept.
    """

    def __init__(self, names: Sequence[str], max_bytes: int = MAX_BYTES) -> None:
        self.names = list(dict.fromkeys(names))
        self.tensors: dict[str, Tensor] = {}
        self._most = max_bytes
        self._sizes: dict[str, int] = {}
        self._overflow: str | None = None

    def check(self, model: nn.Module) -> None:
        """Refuse names that the model does not have, before anything runs.

        Raises:
            UsageError: Names the unknown ones.
        """
        modules = dict(inner_model(model).named_modules())
        parameters = {name for name, _ in named_parameters(model)}
        unknown = [name for name in self.names if not _known(name, modules, parameters)]
        if unknown:
            raise UsageError(
                f"The replay has nothing called {joined([repr(n) for n in unknown])} to keep, so "
                "nothing was run. Name a module as named_modules() does, 'loss', "
                "'gradient:<parameter>' or 'parameter:<name>'; the first modules here are: "
                f"{joined([repr(n) for n in list(modules)[:8]], at_most=8)}."
            )

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Hook the modules that were asked for, for the time of a run."""
        modules = dict(inner_model(model).named_modules())
        handles = [
            modules[name].register_forward_hook(self._hook(name))
            for name in self.names
            if name in modules
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def finish(self, session: Session) -> dict[str, Tensor]:
        """Add loss, gradients and parameters of the finished run.

        Returns:
            Everything kept: a module's output under its path, several tensors of one output under
            ``path[0]``, ``path[1]``, …; copies of the last call, on the replay's device. What the
            run did not come to is left out.

        Raises:
            CannotRunError: It was more than the budget.
        """
        parameters = dict(named_parameters(session.runner.model))
        for name in self.names:
            if name == "loss" and session.observed.loss is not None:
                self._keep(name, session.observed.loss)
            elif name.startswith(_GRADIENT):
                gradient = (session.observed.gate_gradients or {}).get(name[len(_GRADIENT) :])
                if gradient is not None:
                    self._keep(name, gradient)
            elif name.startswith(_PARAMETER):
                self._keep(name, parameters[name[len(_PARAMETER) :]])
        if self._overflow is not None:
            raise CannotRunError(
                f"Keeping '{self._overflow}' would take more than {byte_size(self._most)}, the "
                "most that a replay keeps for looking at. Ask for fewer tensors, keep fewer "
                "samples (keep_samples), or raise max_bytes."
            )
        return self.tensors

    def _hook(self, name: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            del module, args
            found: list[Tensor] = []
            copy_tree(output, found.append)
            for number, tensor in enumerate(found):
                self._keep(name if len(found) == 1 else f"{name}[{number}]", tensor)

        return keep

    def _keep(self, name: str, tensor: Tensor) -> None:
        self._sizes[name] = tensor.numel() * tensor.element_size()
        if sum(self._sizes.values()) > self._most:
            self._overflow = self._overflow or name
            self.tensors.clear()
        if self._overflow is None:
            self.tensors[name] = tensor.detach().clone()


def _known(name: str, modules: dict[str, Any], parameters: set[str]) -> bool:
    for prefix in (_GRADIENT, _PARAMETER):
        if name.startswith(prefix):
            return name[len(prefix) :] in parameters
    return name == "loss" or name in modules
