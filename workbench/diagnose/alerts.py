"""A finite incident: what left the envelope of calm steps, from the record and from replays."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from workbench.diagnose.calm import calm_steps
from workbench.diagnose.envelope import (
    Envelope,
    Left,
    Measured,
    from_ledger,
    from_samples,
    from_traces,
)
from workbench.diagnose.samples import MOST_SAMPLES, sample_losses
from workbench.errors import WorkbenchError
from workbench.evidence.wording import joined, number
from workbench.replay import Replay

if TYPE_CHECKING:
    from workbench.diagnose.calm import Calm
    from workbench.evidence import Bundle
    from workbench.replay.trace import Trace
    from workbench.step.state import StepState

NO_CALM = (
    "No calm step was kept to compare this one with: record with Alerts(loss_factor=…) or "
    "Alerts(grad_norm_factor=…), or with Policy(recovery_every=K)."
)


def recorded_envelope(bundle: Bundle) -> Envelope:
    """What the ledger alone shows."""
    step = bundle.manifest.step
    found = Envelope(step)
    records = bundle.ledger() if bundle.has("ledger.jsonl") else []
    rows = [r for r in records if r.get("rank") in (None, bundle.manifest.rank)]
    found.left = from_ledger(rows, step)
    found.left += _of_alerts(bundle, {one.what for one in found.left if one.step == step})
    found.compared = f"Compared by the ledger's {number(len(rows))} records."
    return found


def replayed_envelope(
    bundle: Bundle, replay: Replay, trace: Trace, say: Callable[[str], None]
) -> Envelope:
    """What the ledger shows, and what replaying calm steps beside this one does.

    Args:
        bundle: The bundle of kind ``alert``.
        replay: Its replay.
        trace: The traced replay of the incident's own step.
        say: Called with a sentence before each part.
    """
    found = recorded_envelope(bundle)
    calm = calm_steps(bundle, replay, before=min((one.step for one in found.left), default=None))
    if not calm:
        found.limits.append(NO_CALM)
    groups = _groups(replay)
    traces = _traced(calm, groups, say, found)
    step = bundle.manifest.step
    say("Running every sample alone")
    here = sample_losses(replay.source, replay.nearest)
    theirs = [sample_losses(one.source, replay.nearest) for one in calm[-1:]]
    if here is None:
        found.limits.append("Losses of single samples: a sample alone cannot be run here.")
    elif here.of > MOST_SAMPLES:
        found.limits.append(
            f"Losses of single samples: {number(MOST_SAMPLES)} of {number(here.of)} were run."
        )
    groups = _groups(replay)
    own_numbers = Measured(trace, _weights(replay.source.state, groups))
    places = from_traces(step, own_numbers, traces, groups) if traces else []
    before = [one for one in places if one.what == "parameter"]
    after = [one for one in places if one.what != "parameter"]
    earlier = [one for one in found.left if one.step < step]
    own = [one for one in found.left if one.step == step]
    found.left = [*earlier, *before, *from_samples(step, here, theirs), *_in_step(own, after)]
    if calm:
        found.compared = _compared_with(calm)
    return found


_ALERTS = {"loss_factor": ("loss", "loss"), "grad_norm_factor": ("gradient norm", "backward")}


def _of_alerts(bundle: Bundle, known: set[str]) -> list[Left]:
    """What the alert is about, where the ledger's own spread would still call it usual."""
    step = bundle.manifest.step
    alerts = bundle.evidence().get("alerts") if bundle.has("evidence.json") else None
    found = []
    for alert in alerts if isinstance(alerts, list) else []:
        what, stage = _ALERTS.get(str(alert.get("name")), ("", ""))
        if not what or what in known:
            continue
        key = "loss" if what == "loss" else "grad_norm"
        value = next((r.get(key) for r in bundle.ledger() if r.get("step") == step), None)
        times = float(alert.get("value") or 0.0)
        if isinstance(value, int | float) and times > 0:
            usual = abs(float(value)) / times
            said = str(alert.get("message"))
            found.append(Left(step, what, "", float(value), usual, usual, stage, None, said))
    return found


_ORDER = {"forward": 0, "loss": 1, "backward": 2, "update": 3}


def _in_step(own: list[Left], places: list[Left]) -> list[Left]:
    """The step's own numbers among the places of the step, in the order of the stages."""
    return sorted([*places, *own], key=lambda one: _ORDER.get(one.stage, 4))


def _traced(
    calm: list[Calm], groups: dict[str, str], say: Callable[[str], None], found: Envelope
) -> list[Measured]:
    traces = []
    for one in calm:
        say(f"Replaying calm step {number(one.step)}")
        try:
            trace = Replay.from_source(one.source).trace(until="logging", exponents=False)
            traces.append(Measured(trace, _weights(one.source.state, groups)))
        except WorkbenchError as error:
            found.limits.append(f"Calm step {number(one.step)} could not be replayed: {error}")
    return traces


def _groups(replay: Replay) -> dict[str, str]:
    """Parameter group of every parameter, as the record names groups."""
    several = len(replay.source.state.optimizers) > 1
    found: dict[str, str] = {}
    for number_, optimizer in enumerate(replay.source.state.optimizers):
        for index, group in enumerate(optimizer.groups):
            name = f"optimizer {number_}, group {index}" if several else f"parameter group {index}"
            found |= dict.fromkeys(group.get("parameters", ()), name)
    return found


def _weights(state: StepState, groups: dict[str, str]) -> dict[str, float]:
    """Norm of the weights of every parameter group, before the step."""
    squares: dict[str, float] = {}
    for name, tensor in ({} if state.model is None else state.model.tensors).items():
        group = groups.get(name)
        if group is not None and tensor.is_floating_point():
            size = float(tensor.detach().double().square().sum())
            squares[group] = squares.get(group, 0.0) + size
    return {group: math.sqrt(total) for group, total in squares.items()}


def _compared_with(calm: list[Calm]) -> str:
    steps = joined([number(one.step) for one in calm])
    word = "steps" if len(calm) > 1 else "step"
    if calm[0].own_parameters:
        return f"Compared with calm {word} {steps}, replayed."
    whose = "their batches" if len(calm) > 1 else "its batch"
    return (
        f"Compared with calm {word} {steps}: {whose} replayed through the parameters of this step, "
        "so a difference comes from the batch, not from the parameters."
    )
