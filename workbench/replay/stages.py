"""The ten stages of a session, as people see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from workbench.evidence.wording import number
from workbench.numerics.counts import count
from workbench.replay import sentences
from workbench.replay.plan import unit_words
from workbench.replay.result import StageState
from workbench.step.domains import batch_fields, check_domains
from workbench.step.stages import STAGES
from workbench.step.values import scalar, text_of

if TYPE_CHECKING:
    from torch import Tensor

    from workbench.evidence.schema import FirstBad
    from workbench.step.protocol import Domain
    from workbench.step.runner import Outcome, StepValues
    from workbench.step.stages import Unit


def stage_states(
    outcomes: Sequence[Outcome],
    unavailable: Mapping[str, str],
    first_bad: FirstBad | None = None,
    input_state: StageState | None = None,
    shown: Mapping[str, str] | None = None,
    plan: Sequence[Unit] = (),
) -> list[StageState]:
    """Sum up what the units did, one entry per stage.

    Args:
        outcomes: What the units did, in order.
        unavailable: Stages the bundle cannot replay, with the reason.
        first_bad: What was caught in the record: an alert is repeated here, since the gates see
            only non-finite values.
        input_state: What was seen in the batch, from ``look_at_batch``.
        shown: Sentences for clean stages, from ``values_shown``.
        plan: All units of the step: with several micro-batches or phases it is said which.
    """
    gated = _gated_as_backward(outcomes)
    texts = _CLEAN | ({"backward": _GRADIENTS} if gated else {}) | dict(shown or {})
    ran = {outcome.unit.stage for outcome in outcomes} | ({"reduce"} if gated else set())
    states = []
    for stage in STAGES:
        if stage in unavailable and stage not in ran:
            states.append(_unavailable(stage, unavailable[stage]))
            continue
        own = [outcome for outcome in outcomes if outcome.unit.stage == stage]
        if stage not in ran:
            states.append(StageState(stage=stage))
        elif stage == "input" and input_state is not None:
            states.append(input_state)
        else:
            states.append(_alert(_state(stage, own, texts, plan), first_bad))
    return states


def _unavailable(stage: str, reason: str) -> StageState:
    sentence = f"{stage}: not available. {reason[:1].upper()}{reason[1:].rstrip('.')}."
    return StageState(stage=stage, status="unavailable", sentence=sentence, reason=reason)


def _state(
    stage: str, outcomes: Sequence[Outcome], texts: Mapping[str, str], plan: Sequence[Unit]
) -> StageState:
    worst = next((o for o in outcomes if o.status == "bad"), None)
    worst = worst or next((o for o in outcomes if o.status == "skip"), None)
    if worst is None:
        sentence = texts[stage] + _how_many(stage, outcomes, plan)
        return StageState(stage=stage, status="clean", sentence=sentence)
    masks = {bad.name: bad.mask for outcome in outcomes for bad in outcome.bad}
    tensor = worst.tensor or ""
    counts = worst.bad[0].counts.as_dict() if worst.bad else None
    if worst.exception is not None:
        masks[tensor] = ""
        sentence = f"{type(worst.exception).__name__}: {text_of(worst.exception)[:200]}"
    else:
        sentence = sentences.bad(tensor, counts, len(worst.bad) - 1)
    if worst.status == "skip":
        sentence += " The loss scaler will skip the update."
    # gradients have added up by the time they are looked at: the gate's micro-batch says nothing
    if which := "" if worst.bad and stage == "backward" else unit_words(worst.unit, plan):
        sentence = f"{sentence.rstrip('.')}. In {which}."
    return StageState(
        stage=stage,
        status="skip" if worst.status == "skip" else "bad",
        tensor=tensor,
        counts=counts,
        sentence=sentence,
        masks=masks,
    )


def _how_many(stage: str, outcomes: Sequence[Outcome], plan: Sequence[Unit]) -> str:
    """Say how many of a stage's units ran, where there are several and not all did."""
    every = [unit for unit in plan if unit.stage == stage]
    ran = len({(o.unit.phase, o.unit.micro_step) for o in outcomes if o.unit.stage == stage})
    return f" {ran:,} of {len(every):,} ran." if 0 < ran < len(every) else ""


def _gated_as_backward(outcomes: Sequence[Outcome]) -> bool:
    """Whether gradients were gated clean under backward's name (no scaler, no collective)."""
    # the unit of ``reduce`` then reports itself as a second backward
    clean = [o.unit.stage == "backward" and o.status == "clean" for o in outcomes]
    return any(a and b for a, b in pairwise(clean))


def values_shown(values: StepValues, loss: Tensor | None) -> dict[str, str]:
    """Sentences for clean stages that name a value: the loss, the norm, what the optimizer did."""
    found: dict[str, str] = {}
    size, norm = scalar(loss), scalar(values.grad_norm)
    if size is not None:
        found["loss"] = f"The loss is finite: {number(size)}."
    if norm is not None:
        found["clip"] = f"The gradient norm is finite: {number(norm)}."
    if values.scale_before is None:
        found["unscale"] = "There is no loss scale to divide out."
    if values.optimizer_records:
        found["update"] = _UPDATED[values.optimizer_records[0].updated]
    return found


_UPDATED = {
    "yes": "The optimizer updated the parameters.",
    "no": "The update was skipped.",
    "nothing_changed": "The optimizer ran, and no value that was looked at changed.",
    "unknown": "The optimizer ran; there was nothing to tell by whether it updated.",
}
_GRADIENTS = "Gradients are finite."
_CLEAN = {
    "input": "The batch was handed over.",
    "forward": "Ran; outputs are looked at by the loss.",
    "loss": "The loss is finite.",
    "backward": "Ran; gradients are looked at once they are reduced and unscaled.",
    "reduce": "Gradients are as backward left them, or as the collective combined them.",
    "unscale": "Gradients are finite once the loss scale is divided out.",
    "clip": "No gradient norm was computed, or it is finite.",
    "update": "The optimizer ran.",
    "after_update": "Parameters, buffers, optimizer state and loss scale are finite.",
    "logging": "Nothing was raised while logging.",
}


def look_at_batch(
    batches: Sequence[Any], first_bad: FirstBad | None, domains: Mapping[str, Domain] | None = None
) -> StageState:
    """Look at the batch: what is unusual there is noted, and is bad only where the record says so.

    Args:
        batches: The micro-batches.
        first_bad: What was caught in the record.
        domains: Legal values of batch fields, as the step declares them.
    """
    tripped = first_bad is not None and first_bad.stage == "input"
    for violation in check_domains(batches, domains or {}):
        name = f"input:{violation.field}"
        return StageState(
            stage="input",
            status="bad" if tripped else "alert",
            tensor=name,
            sentence=violation.message,
            masks={name: ""} if tripped else {},
        )
    found = [
        (f"input:{name}", counts)
        for batch in batches
        for name, tensor in batch_fields(batch)
        if (counts := count(tensor)).nonfinite
    ]
    if not found:
        return StageState(stage="input", status="clean", sentence="The batch is finite.")
    name, counts = found[0]
    said = sentences.bad(name, counts.as_dict(), len(found) - 1)
    return StageState(
        stage="input",
        status="bad" if tripped else "alert",
        tensor=name,
        counts=counts.as_dict(),
        sentence=said if tripped else f"Noted, not tripped: {said}",
        masks={name: ""} if tripped else {},
    )


def _alert(state: StageState, first_bad: FirstBad | None) -> StageState:
    """Mark the stage the record raised an alert at, as long as it is finite here too."""
    alert = first_bad is not None and first_bad.sink == "alert"
    if not alert or first_bad is None or state.stage != first_bad.stage or state.status != "clean":
        return state
    return StageState(
        stage=state.stage,
        status="alert",
        tensor=first_bad.tensor,
        sentence=f"Finite here; the record says: {first_bad.message or 'an alert'}",
    )
