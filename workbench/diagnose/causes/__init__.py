"""Causes, one file each: rule, explanation, fix to try and the limits of the claim.

A file in this folder defines ``CAUSE``; adding a cause is adding one file and one test. Rules are
tried by ``order``; the first that holds names the cause. Rules look at numerics (operands, dtypes,
ranges), never at names of files or variables.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.diagnose.case import Case
    from workbench.diagnose.interventions import Intervention


def _untested(case: Case) -> Sequence[Intervention]:
    """No change tests this cause by replaying this step alone."""
    del case
    return ()


@dataclass(frozen=True)
class Cause:
    """One way for a non-finite value to come about.

    Attributes:
        label: Its name in findings.
        order: Rules with a smaller number are tried first.
        rule: Whether it is the cause of a case.
        explain: One plain sentence about this case.
        fix: A fix to try, as an imperative sentence.
        limits: What naming this cause does not show.
        counterfactuals: Diagnostic changes that test it, most specific first.
    """

    label: str
    order: int
    rule: Callable[[Case], bool]
    explain: Callable[[Case], str]
    fix: str
    limits: str
    counterfactuals: Callable[[Case], Sequence[Intervention]] = _untested


@cache
def all_causes() -> tuple[Cause, ...]:
    """Load every cause in this folder, in the order in which their rules are tried."""
    found = [
        importlib.import_module(f"{__name__}.{module.name}").CAUSE
        for module in pkgutil.iter_modules(__path__)
    ]
    return tuple(sorted(found, key=lambda cause: (cause.order, cause.label)))


def name_cause(case: Case) -> Cause | None:
    """Return the first cause whose rule holds, or None when none does."""
    return next((cause for cause in all_causes() if cause.rule(case)), None)
