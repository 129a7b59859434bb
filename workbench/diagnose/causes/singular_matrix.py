"""A factorisation or an inverse that this matrix does not have."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import rewritten
from workbench.diagnose.rewrites import distinct_eigenvalues

_TEXTS = ("singular", "positive-definite", "positive definite", "failed to converge")
"""How torch's own checks say it."""


def _rule(case: Case) -> bool:
    return case.origin.kind == "exception" and case.raised_with(_TEXTS)


def _explain(case: Case) -> str:
    del case
    return "The matrix is finite, and it is singular, ill-conditioned or not positive definite."


CAUSE = Cause(
    label="singular_matrix",
    order=31,
    rule=_rule,
    explain=_explain,
    fix="Add a small diagonal (jitter), or compute the factorisation in float64.",
    limits="It does not show whether the matrix is singular by its data or by rounding.",
    counterfactuals=lambda case: rewritten(
        case, "a small growing diagonal added", distinct_eigenvalues()
    ),
)
