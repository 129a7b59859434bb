"""Changes of fused calls, whose denominator is no argument of theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.diagnose.interventions import Intervention, rewritten
from workbench.diagnose.rewrites import nonzero_arguments
from workbench.diagnose.rewrites_values import with_fused_eps

if TYPE_CHECKING:
    from workbench.diagnose.case import Case

_EPS = 1e-8


def rewritten_if_fused(case: Case) -> list[Intervention]:
    """An eps for a fused optimizer; no exact zeros for a weight or layer normalisation."""
    if case.base.startswith("_fused_adam"):
        return rewritten(case, f"an eps of {_EPS:g} in the fused optimizer", with_fused_eps(_EPS))
    if "norm" in case.base:
        return rewritten(case, "arguments of 1e-7 where they are 0", nonzero_arguments())
    return []
