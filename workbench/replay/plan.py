"""Where in a step a replay stops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from workbench.errors import UsageError
from workbench.replay.adjust import overrides
from workbench.step import gates
from workbench.step.stages import STAGES

if TYPE_CHECKING:
    from workbench.replay.source import Source
    from workbench.step.runner import StepRunner
    from workbench.step.stages import Stage, Unit


def check_stage(until: str | None) -> Stage | None:
    """Check the name of a last stage; None stands for the recorded stop.

    Raises:
        UsageError: There is no such stage.
    """
    if until is not None and until not in STAGES:
        raise UsageError(
            f"There is no stage '{until}', so nothing was run. The stages are: {', '.join(STAGES)}."
        )
    return until


def order(stage: str) -> int:
    """Number of a stage within a step."""
    return STAGES.index(cast("Stage", stage))


def last_available(source: Source) -> str:
    """The last stage that the bundle can replay."""
    missing = source.unavailable()
    return [stage for stage in STAGES if stage not in missing][-1]


def position_after(runner: StepRunner, stage: Stage, *, last: bool = False) -> int:
    """Position in the plan after a stage, together with the gate that belongs to it.

    Args:
        runner: A runner that was begun.
        stage: The stage.
        last: Whether the last unit of the stage is meant, else the next one to run.

    Returns:
        An index into the plan; the current position when no such unit is left.
    """
    found = [i for i, unit in enumerate(runner.plan) if unit.stage == stage]
    if not last:
        found = [i for i in found if i >= runner.position][:1]
    return with_gate(runner, found[-1]) if found else runner.position


def with_gate(runner: StepRunner, index: int) -> int:
    """Position after a unit and its gate.

    Without a scaler or a collective, gradients are gated after backward, under its name.
    """
    plan = runner.plan
    following = plan[index + 1] if index + 1 < len(plan) else None
    if (
        plan[index].stage == "backward"
        and following is not None
        and following.stage == "reduce"
        and not gates.scaler_enabled(runner.scaler)
        and not overrides(runner.step, "after_backward")
    ):
        return index + 2
    return index + 1


def recorded_stop(runner: StepRunner, source: Source) -> int:
    """Position after the unit the record was caught at; the end of the step when nothing was.

    An alert is raised once the step is over, so its step is replayed whole.
    """
    bad = source.first_bad
    if bad is None or source.kind != "nonfinite" or bad.sink == "alert":
        return len(runner.plan)
    matching = [i for i, unit in enumerate(runner.plan) if unit.stage == bad.stage]
    phase = source.evidence.get("phase")
    in_phase = [i for i in matching if runner.plan[i].phase == phase] or matching
    exact = [i for i in in_phase if runner.plan[i].micro_step == bad.micro_step]
    chosen = (exact or in_phase)[:1]
    return with_gate(runner, chosen[0]) if chosen else len(runner.plan)


def unit_words(unit: Unit, plan: Sequence[Unit]) -> str:
    """Say which phase and micro-batch a unit is of, as far as its step has several.

    Args:
        unit: The unit.
        plan: All units of its step.

    Returns:
        For example ``phase g, micro-batch 2 of 3``; empty where there is one of each.
    """
    several = len({u.phase for u in plan}) > 1
    count = 1 + max((u.micro_step for u in plan), default=0)
    words = [f"phase {unit.phase}"] if several else []
    if count > 1 and unit.stage in ("input", "forward", "loss", "backward"):
        words.append(f"micro-batch {unit.micro_step + 1} of {count}")
    return ", ".join(words)
