"""Zero divided by zero."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.fused import rewritten_if_fused
from workbench.diagnose.ignored_labels import upstream_none_counts
from workbench.diagnose.interventions import Intervention, rewritten
from workbench.diagnose.rewrites import counted_mean, safe_denominator
from workbench.diagnose.roots import stable_roots

_NORMALISATIONS = frozenset(
    "native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit "
    "_fused_rms_norm cudnn_batch_norm".split()
)


def _rule(case: Case) -> bool:
    if _normalises_constant(case) or _fused_without_eps(case):
        return True
    division = case.division()
    if division is None or case.range == "overflow":
        return False
    above, below = division
    return bool(((above == 0) & (below == 0)).any())


def _normalises_constant(case: Case) -> bool:
    """Whether a fused normalisation without eps met rows that do not vary."""
    if case.base not in _NORMALISATIONS or case.range == "overflow":
        return False
    numbers = [value for _, value in case.event.scalars] if case.event is not None else []
    return bool(numbers) and numbers[-1] == 0


def _fused_without_eps(case: Case) -> bool:
    """Whether a fused optimizer divides by a second moment of 0 with an eps of 0."""
    if not case.base.startswith("_fused_adam") or case.event is None:
        return False
    return dict(case.event.scalars).get("eps") == 0


def _explain(case: Case) -> str:
    why = ": no label counts (ignored, or of weight 0)" if upstream_none_counts(case) else ""
    return f"Numerator and denominator are both exactly 0{why}."


def _of_missing(case: Case) -> list[Intervention]:
    """A mean that leaves missing values out divides inside of its own call."""
    if case.event is None or case.event.function != "nanmean":
        return []
    return rewritten(case, "a sum divided by max(count, 1)", counted_mean())


CAUSE = Cause(
    label="zero_over_zero",
    order=57,
    rule=_rule,
    explain=_explain,
    fix="Clamp the denominator from below, or leave the empty case out.",
    limits="It does not show why the denominator is 0 in this batch.",
    counterfactuals=lambda case: [
        *stable_roots(case),
        *rewritten(case, "a denominator of 1 where it is 0", safe_denominator()),
        *rewritten_if_fused(case),
        *_of_missing(case),
    ],
)
