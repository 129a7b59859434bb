"""This rank's own gradients, as they went into the reduction: the record beside a replay alone.

The recorder keeps a bit sum of every bucket before it is reduced. Sums add up, so those of the
gradients computed here, parameter by parameter, are compared however the buckets were cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from workbench.numerics.counts import all_finite
from workbench.step.digests import sums_of
from workbench.step.names import named_parameters

if TYPE_CHECKING:
    from torch import Tensor, nn

_WRAP: Final = (1 << 32) - 1
_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""What is reduced as it is; others are divided before the sum (FSDP2), which is not done here."""


@dataclass(frozen=True)
class Contribution:
    """How the gradients computed here compare with those that went into the reduction.

    Attributes:
        compared: Buckets that were compared.
        unequal: Those with other bits.
        open: Those with other sums that hold NaN here, of which there are many bit patterns: they
            may be the same.
    """

    compared: int
    unequal: int
    open: int = 0

    def why(self) -> str | None:
        """What keeps it from being the same, or None."""
        if not self.unequal:
            return None
        return (
            f"{self.unequal:,} of {self.compared:,} buckets of its own gradients had other bits "
            "before their reduction"
        )


def compare_contribution(said: Any, model: nn.Module) -> Contribution | None:
    """Compare the gradients of a model, before their reduction, with the record.

    Args:
        said: ``contribution`` of the recorded digests.
        model: The model, after its backward and before anything else.

    Returns:
        None where the record has none, or none that can be compared.
    """
    buckets = [one for one in _buckets(said) if one[0] in _DTYPES]
    if not buckets:
        return None
    gradients = {n: p.grad for n, p in named_parameters(model) if p.grad is not None}
    unequal = several = 0
    for dtype, names, recorded in buckets:
        own = _cast(gradients, names, _DTYPES[dtype])
        here = sum(sums_of(own.items()).values())
        if (here - recorded) & _WRAP:
            finite = all_finite(list(own.values()))
            unequal, several = unequal + finite, several + (not finite)
    return Contribution(len(buckets), unequal, several)


def _cast(
    gradients: Mapping[str, Tensor], names: Sequence[str], dtype: torch.dtype
) -> dict[str, Tensor]:
    return {name: gradients[name].detach().to(dtype) for name in names if name in gradients}


def _buckets(said: Any) -> Iterator[tuple[str, list[str], int]]:
    rows = said.get("buckets") if isinstance(said, Mapping) else None
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, Mapping):
            continue
        names, total = row.get("parameters"), row.get("sum")
        if isinstance(names, list) and names and "?" not in names and isinstance(total, int):
            yield str(row.get("dtype")), [str(name) for name in names], total
