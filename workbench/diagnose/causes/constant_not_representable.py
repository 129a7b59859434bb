"""An exception: a constant does not fit the tensor's dtype."""

from __future__ import annotations

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import rewritten
from workbench.diagnose.rewrites import representable_numbers


def _rule(case: Case) -> bool:
    raised = case.trace.raised
    return raised is not None and "cannot be converted to type" in raised.message


def _explain(case: Case) -> str:
    raised = case.trace.raised
    text = raised.message.splitlines()[0].rstrip(".") if raised is not None else ""
    return f"A constant does not fit the dtype it is written to: {text}."


CAUSE = Cause(
    label="constant_not_representable",
    order=20,
    rule=_rule,
    explain=_explain,
    fix="Use torch.finfo(x.dtype).min or -inf for the mask, or mask in float32.",
    limits="It is about this constant only; other values in the step were not judged.",
    counterfactuals=lambda case: rewritten(
        case, "the dtype's own limit as the constant", representable_numbers()
    ),
)
