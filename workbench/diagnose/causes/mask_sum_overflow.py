"""A finite mask constant plus a score leaves the dtype."""

from __future__ import annotations

import torch

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause

_NEAR = 0.5
_SUMS = frozenset("add add_ sub sub_".split())


def _rule(case: Case) -> bool:
    if case.base not in _SUMS or case.range != "overflow":
        return False
    dtype = getattr(torch, case.dtype, None)
    if dtype is None or not dtype.is_floating_point:
        return False
    limit = torch.finfo(dtype).max
    sides = [case.tensor(0), case.tensor(1)]
    return any(side is not None and bool((side.abs() >= _NEAR * limit).any()) for side in sides)


def _explain(case: Case) -> str:
    return f"A mask constant near the limit of {case.dtype} plus a score overflows to infinity."


CAUSE = Cause(
    label="mask_sum_overflow",
    order=60,
    rule=_rule,
    explain=_explain,
    fix="Use masked_fill instead of adding the constant, or add the mask in float32.",
    limits="It does not show that the masked row is meant to have nothing to attend to.",
)
