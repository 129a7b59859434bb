"""What the buckets of one step held before they were reduced."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from workbench.numerics.counts import Counts, all_finite, count
from workbench.step.digests import short_sum
from workbench.step.names import named_parameters

if TYPE_CHECKING:
    from torch import nn

MOST = 200
"""Bad buckets described one by one, and bad parameters of each."""
NAMELESS = "?"
WRAP = (1 << 32) - 1


@dataclass(frozen=True)
class BadBucket:
    """A bucket that was bad before its reduction.

    Attributes:
        bucket: Its index (DDP), or the path of its module (FSDP2).
        round: Which reduction of the step it was: one a micro-batch that is not accumulated.
        parameters: The parameters whose gradients were bad.
        counts: What they held, where it was counted.
    """

    bucket: int | str
    round: int
    parameters: tuple[str, ...]
    counts: Counts | None

    def as_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return {
            "bucket": self.bucket,
            "round": self.round,
            "parameters": list(self.parameters[:MOST]),
            "parameters_total": len(self.parameters),
            "counts": None if self.counts is None else self.counts.as_dict(),
        }


class Look:
    """Looks at buckets before they are reduced; no host read for a bucket on a device.

    Args:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._names: dict[int, str] = {}
        self._lost = False  # a parameter has no name in the model as it is within a step
        self._found: list[BadBucket] = []
        self._later: list[tuple[int | str, int, tuple[str, ...], Tensor]] = []
        self._sums: list[tuple[int | str, str, tuple[str, ...], Tensor]] = []
        self._round = 0
        self.reductions = 0

    def begin_step(self) -> None:
        """Forget the step before."""
        self._found, self._later, self._round = [], [], 0
        self._sums = []
        if self._lost:
            self._names, self._lost = {}, False
            self.learn()

    def end_round(self) -> None:
        """The last bucket of a reduction was seen."""
        self._round += 1

    def begin(
        self,
        bucket: int | str,
        buffer: Tensor,
        parameters: Callable[[], Sequence[Tensor]],
        gradients: Callable[[], Sequence[Tensor]],
    ) -> None:
        """Look at a bucket that is about to be reduced.

        Args:
            bucket: Its index, or the path of its module.
            buffer: All of it.
            parameters: Gives its parameters.
            gradients: Gives their gradients, views of the buffer, in the same order.
        """
        self.reductions += 1
        names = self.names(parameters())
        if not buffer.is_sparse:
            dtype = str(buffer.dtype).removeprefix("torch.")
            self._sums.append((bucket, dtype, names, short_sum(buffer)))
        if buffer.device.type == "cpu":
            if not all_finite([buffer]):
                self._describe(bucket, names, gradients())
            return
        with torch.no_grad():
            largest = torch._foreach_norm(list(gradients()), math.inf)
            flags = torch.stack([one.float() for one in largest])
        self._later.append((bucket, self._round, names, flags))

    def found(self) -> list[BadBucket]:
        """The bad buckets of this step; the one host read for those on a device."""
        for bucket, number, names, flags in self._later:
            values = flags.tolist()
            bad = [n for n, v in zip(names, values, strict=False) if not math.isfinite(v)]
            if bad:
                self._found.append(BadBucket(bucket, number, tuple(bad), None))
        self._later = []
        return self._found

    def contribution(self) -> dict[str, Any] | None:
        """This rank's own gradients as they went into the reduction, as bit sums of buckets.

        Sums are modulo 2**32. A replay of this rank alone has them to compare with. Only where each
        bucket was reduced once: in a second reduction the gradients have what other ranks gave to
        the first.

        Returns:
            ``{"buckets": [{"bucket", "dtype", "parameters", "sum"}]}``; None where nothing was
            reduced, or more than once.
        """
        places = [bucket for bucket, *_ in self._sums]
        if not places or len(set(places)) < len(places):
            return None
        sums = torch.stack([total.long() for *_, total in self._sums]).tolist()
        return {
            "buckets": [
                {"bucket": bucket, "dtype": dtype, "parameters": list(names), "sum": total & WRAP}
                for (bucket, dtype, names, _), total in zip(self._sums, sums, strict=True)
            ]
        }

    def names(self, parameters: Sequence[Tensor]) -> tuple[str, ...]:
        """The names of parameters as the user knows them."""
        if any(id(parameter) not in self._names for parameter in parameters):
            self.learn()
            for parameter in parameters:
                if self._names.setdefault(id(parameter), NAMELESS) == NAMELESS:
                    self._lost = True
        return tuple(self._names[id(parameter)] for parameter in parameters)

    def learn(self) -> None:
        """Learn the names of the parameters as they are now (FSDP2 exchanges them in a step)."""
        self._names |= {id(p): name for name, p in named_parameters(self._model)}

    def _describe(
        self, bucket: int | str, names: Sequence[str], gradients: Sequence[Tensor]
    ) -> None:
        bad: list[str] = []
        total = Counts()
        for number, gradient in enumerate(gradients):
            counts = count(gradient)
            if counts.nonfinite:
                total = total + counts
                bad += names[number : number + 1]
        self._found.append(BadBucket(bucket, self._round, tuple(bad), total))
