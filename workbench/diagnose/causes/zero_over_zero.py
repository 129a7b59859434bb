"""Zero divided by zero."""

from __future__ import annotations

import torch

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause

_DIVISIONS = frozenset("div div_ true_divide".split())


def _rule(case: Case) -> bool:
    if case.base not in _DIVISIONS or case.range == "overflow":
        return False
    above, below = case.tensor(0), case.argument(1)
    if above is None or below is None:
        return False
    bottom = torch.as_tensor(below).to(torch.float64)
    return bool(((above == 0) & (bottom == 0)).any())


def _explain(case: Case) -> str:
    return "Numerator and denominator are both exactly 0."


CAUSE = Cause(
    label="zero_over_zero",
    order=57,
    rule=_rule,
    explain=_explain,
    fix="Clamp the denominator from below, or leave the empty case out.",
    limits="It does not show why the denominator is 0 in this batch.",
)
