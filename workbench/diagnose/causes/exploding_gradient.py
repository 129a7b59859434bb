"""A gradient grew out of proportion: from step to step, or on its way back through the layers."""

from __future__ import annotations

import math

import torch

from workbench.diagnose.case import Case
from workbench.diagnose.causes import Cause
from workbench.diagnose.flow import gradient_events
from workbench.evidence.wording import number

_EXPLODED = 100.0
"""Gradient over the median of the kept steps before, from which it is out of proportion."""


def _rule(case: Case) -> bool:
    if case.origin.kind == "growth":
        return bool(case.facts.get("gradient_ratio", 0.0) >= _EXPLODED)
    return _arriving(case) is not None


def _arriving(case: Case) -> float | None:
    """The largest gradient that a derivative which overflowed was given, if it grew before.

    It did where it had gone half of the dtype's way from 1 to its largest number already, so that
    no single op can be said to have overflowed.
    """
    event = case.event
    if event is None or not case.backward or case.range != "overflow":
        return None
    if case.dtype not in ("float32", "float64"):
        return None
    gradients = gradient_events(case.trace.graph)
    given = [
        value
        for read in event.reads
        if any(p in gradients for p in read.producers)
        and (value := case.tensor(read.argument)) is not None
        and value.numel()
    ]
    largest = max((float(value.abs().max()) for value in given), default=0.0)
    half = math.sqrt(torch.finfo(getattr(torch, case.dtype)).max)
    return largest if largest > half else None


def _explain(case: Case) -> str:
    if case.origin.kind != "growth":
        node = case.event.node if case.event is not None else ""
        return (
            f"The gradient that reaches {node} is {number(_arriving(case))} already: it grew on "
            f"its way back through the ops before, and here it leaves {case.dtype}."
        )
    ratio, gradient = case.facts["growth"], case.facts["gradient_ratio"]
    return (
        f"The gradient of this step is {gradient:,.0f} times that of the steps before, at the same "
        f"learning rate, and its update is {ratio:,.0f} times larger than the parameter it changes."
    )


CAUSE = Cause(
    label="exploding_gradient",
    order=5,
    rule=_rule,
    explain=_explain,
    fix=(
        "Look at this step's batch and loss, clip the gradient norm, and keep the gain of repeated "
        "layers near 1."
    ),
    limits="It does not show why the gradient was this large.",
)
