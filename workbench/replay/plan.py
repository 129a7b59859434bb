"""Where in a step a replay stops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.replay.adjust import overrides
from workbench.step import gates

if TYPE_CHECKING:
    from workbench.replay.source import Source
    from workbench.step.runner import StepRunner
    from workbench.step.stages import Stage, Unit


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
    exact = [i for i in matching if _same_micro_step(runner.plan[i], bad.micro_step)]
    chosen = (exact or matching)[:1]
    return with_gate(runner, chosen[0]) if chosen else len(runner.plan)


def _same_micro_step(unit: Unit, micro_step: int) -> bool:
    return unit.micro_step == micro_step
