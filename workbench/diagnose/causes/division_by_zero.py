"""A division by an exact zero."""

from __future__ import annotations

import torch

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause

_DIVISIONS = frozenset("div div_ true_divide addcdiv addcdiv_".split())


def _rule(case: Case) -> bool:
    if case.range == "overflow":
        return False
    if case.base in _DIVISIONS:
        below = case.argument(1)
        return below is not None and bool((torch.as_tensor(below) == 0).any())
    if case.base in ("reciprocal", "rsqrt", "rsqrt_", "reciprocal_"):
        return case.has_zero("self")
    if case.base.startswith("pow"):
        exponent = case.argument("exponent")
        return isinstance(exponent, float | int) and exponent < 0 and case.has_zero("self")
    return False


def _explain(case: Case) -> str:
    return "The denominator is exactly 0."


CAUSE = Cause(
    label="division_by_zero",
    order=58,
    rule=_rule,
    explain=_explain,
    fix="Clamp the denominator from below, or treat the zero case on its own.",
    limits="It does not show why the denominator is 0 in this batch.",
)
