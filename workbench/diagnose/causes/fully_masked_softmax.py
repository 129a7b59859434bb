"""A softmax row whose entries are all −Inf."""

from __future__ import annotations

import math

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import rewritten
from workbench.diagnose.rewrites import safe_softmax


def _rule(case: Case) -> bool:
    if case.base not in ("_softmax", "_log_softmax", "logsumexp"):
        return False
    value, dim = case.tensor("self"), case.argument("dim")
    if value is None:
        return False
    axis = dim if isinstance(dim, int) else -1
    return bool((value == -math.inf).all(dim=axis).any())


def _explain(case: Case) -> str:
    return "At least one row given to softmax is −Inf everywhere: no position is left unmasked."


CAUSE = Cause(
    label="fully_masked_softmax",
    order=32,
    rule=_rule,
    explain=_explain,
    fix=(
        "Let every row see at least one position, or zero fully masked rows before and "
        "after softmax."
    ),
    limits="It does not show whether the mask or the batch is at fault.",
    counterfactuals=lambda case: rewritten(
        case, "zeros for rows that are masked everywhere", safe_softmax()
    ),
)
