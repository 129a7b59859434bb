"""A finite mask constant plus a score leaves the dtype."""

from __future__ import annotations

import torch

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import in_wider_dtype

_NEAR = 0.5
_SUMS = frozenset("add add_ sub sub_".split())


def _rule(case: Case) -> bool:
    if case.base not in _SUMS or case.range != "overflow":
        return False
    dtype = getattr(torch, case.dtype, None)
    if dtype is None or not dtype.is_floating_point:
        return False
    limit = _NEAR * torch.finfo(dtype).max
    return any(_is_mask(case.argument(side), limit) for side in (0, 1))


def _is_mask(side: object, limit: float) -> bool:
    """Whether an operand holds one constant near the dtype's limit."""
    if isinstance(side, float | int):
        return abs(side) >= limit
    if not isinstance(side, torch.Tensor) or not side.is_floating_point():
        return False
    large = side[side.abs() >= limit]
    return large.numel() > 0 and bool((large == large.flatten()[0]).all())


def _explain(case: Case) -> str:
    return f"A mask constant near the limit of {case.dtype} plus a score overflows to infinity."


CAUSE = Cause(
    label="mask_sum_overflow",
    order=60,
    rule=_rule,
    explain=_explain,
    fix="Use masked_fill instead of adding the constant, or add the mask in float32.",
    limits="It does not show that the masked row is meant to have nothing to attend to.",
    counterfactuals=in_wider_dtype,
)
