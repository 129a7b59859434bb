"""What is looked at once more when an op has written something non-finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from workbench.replay.trace_arguments import tensors_in
from workbench.replay.trace_plan import OpPlan, floating
from workbench.replay.trace_storage import exact_counts

if TYPE_CHECKING:
    from torch import Tensor

    from workbench.replay.trace_events import Event, Write

Part = Sequence[tuple[str, Any]]
"""The named arguments of one event."""


def verify_inputs(event: Event, plan: OpPlan, part: Part) -> None:
    """On a birth, look at the inputs again: something outside may have written to them."""
    if event.bad_reads or event.unseen:
        return
    inputs = inputs_of(plan, part)
    unseen = []
    for read in event.reads:
        tensor = inputs.get(read.argument)
        if tensor is None or any(read.counts):
            continue
        counts = exact_counts(tensor)
        if any(counts):
            read.counts = counts
            unseen.append(read.argument)
    event.unseen = tuple(unseen)


def absorbs_some(event: Event, plan: OpPlan, part: Part, write: Write, out: Tensor) -> bool:
    """Whether an op that made NaN of some Infs turned others of the same sign into finite values.

    A sign that came out finite somewhere does not count where the other sign, no element of which
    did, is at hand to have made the NaN: in a softmax −Inf becomes 0, and the +Inf makes the NaN.
    """
    if not write.counts[0]:
        return False
    inputs = inputs_of(plan, part)
    for read in event.bad_reads:
        tensor = inputs.get(read.argument)
        if tensor is None or tensor.shape != out.shape or read.counts[0]:
            continue
        finite, nan = torch.isfinite(out), torch.isnan(out)
        signs = [tensor == math.inf, tensor == -math.inf]
        absorbed = [bool((sign & finite).any()) for sign in signs]
        converted = [bool((sign & nan).any()) for sign in signs]
        if any(absorbed) and all(a for a, c in zip(absorbed, converted, strict=True) if c):
            return True
    return False


def inputs_of(plan: OpPlan, part: Part) -> dict[str, Tensor]:
    """The floating tensors an event read and did not write, by label."""
    if plan.view:
        return {}
    return {
        label: tensor
        for name, value in part
        if name not in plan.unread and name not in plan.written
        for label, tensor in tensors_in(name, value)
        if floating(tensor)
    }


def written_in_place(plan: OpPlan, parts: Sequence[Part]) -> list[Tensor]:
    """One tensor for each element of a list op: the first argument it wrote, as it is now."""
    found = []
    for part in parts:
        written = (t for name, value in part if name in plan.written for t in (value,))
        first = next((t for t in written if isinstance(t, torch.Tensor)), None)
        if first is not None:
            found.append(first.detach().clone())
    return found


def written_besides(plan: OpPlan, given: Part) -> dict[str, Tensor]:
    """What an op that returns something else wrote into its arguments, as it is now."""
    return {
        name: value.detach().clone()
        for name, value in given
        if name in plan.written and isinstance(value, torch.Tensor)
    }
