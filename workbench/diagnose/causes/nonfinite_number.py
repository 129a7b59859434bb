"""A Python number in model or loss was NaN or Inf; the tensors it met were finite."""

from __future__ import annotations

import math

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.interventions import rewritten
from workbench.diagnose.read_out import read_out_before
from workbench.diagnose.rewrites import finite_numbers
from workbench.evidence.wording import number


def _rule(case: Case) -> bool:
    event = case.event
    setting = event is not None and event.where in ("optimizer", "clip", "scaler")
    return case.origin.kind == "nonfinite_scalar" and not setting


def _explain(case: Case) -> str:
    event = case.event
    bad = [(name, value) for name, value in (event.scalars if event else ()) if _bad(value)]
    said = f"The Python number given as {bad[0][0]} was {number(bad[0][1])}" if bad else (
        "A number written in the code was not finite"
    )  # fmt: skip
    return f"{said}; the tensors were finite.{read_out_before(case)}"


def _bad(value: float) -> bool:
    return not math.isfinite(value)


CAUSE = Cause(
    label="nonfinite_number",
    order=95,
    rule=_rule,
    explain=_explain,
    fix="Guard what computes the number: check it with math.isfinite before it is used.",
    limits="Arithmetic between Python numbers is not traced, so how it became so is not shown.",
    counterfactuals=lambda case: rewritten(
        case, "0 for the number that is not finite", finite_numbers()
    ),
)
