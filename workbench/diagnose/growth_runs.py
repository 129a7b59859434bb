"""Test growth: run the kept steps on from where it began, with that step's update made smaller."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from workbench.diagnose.growth import INDEX
from workbench.replay.session import Session
from workbench.step import read_state, restore_rng

if TYPE_CHECKING:
    from workbench.diagnose.analysis import Analysis
    from workbench.replay import Replay
    from workbench.step.runner import StepRunner
    from workbench.step.state import StepState

Edit = Callable[["StepRunner", "StepState", str], None]
"""Changes a live step; called before each unit with the stage that comes next."""
Failed = tuple[int, str, str | None]
"""Step, stage and tensor of the first gate that tripped."""


def growth_rows(
    replay: Replay, analysis: Analysis, say: Callable[[str], None], only: str | None
) -> list[dict[str, Any]]:
    """Run the counterfactuals of a growth origin.

    Args:
        replay: The replay of the failing step.
        analysis: Its analysis, with a growth.
        say: Called with a sentence before each run.
        only: Name of the one intervention to run; None runs all.

    Returns:
        Rows of findings/1; none where the kept steps, run on unchanged, do not fail as recorded.
    """
    from workbench.diagnose.counterfactuals import row_of

    states = _states(replay, analysis)
    if not states:
        return []
    first, last = states[0].step_index, states[-1].step_index
    wanted = {name: edits for name, edits in _edits(analysis, first, last) if only in (None, name)}
    say("Running the kept steps on as they were")
    original = _run_on(replay, states, None) if wanted else None
    if original is None or original[0] != last:
        return []
    rows = []
    for name, (edit, placebo_name, placebo) in wanted.items():
        say(f"Counterfactual: {name}")
        failed, other = _run_on(replay, states, edit), _run_on(replay, states, placebo)
        result = _compare(failed, original)
        place = None if failed is None else f"step {failed[0]}, {failed[1]}: {failed[2]}"
        rows.append(
            row_of(
                name,
                result,
                place if result == "moved" else None,
                placebo_name,
                _compare(other, original),
            )
        )
    return rows


def _compare(failed: Failed | None, original: Failed) -> Any:
    if failed is None:
        return "gone"
    return "unchanged" if failed == original else "moved"


def _states(replay: Replay, analysis: Analysis) -> list[StepState]:
    """Consecutive kept states from the step the growth began with to the failing one."""
    bundle, growth = replay.source.bundle, analysis.growth
    if bundle is None or growth is None or not bundle.has(INDEX):
        return []
    listed = bundle.json(INDEX).get("steps", [])
    kept = [read_state(bundle, entry["prefix"]) for entry in listed if entry["recovery_point"]]
    states = [*(s for s in kept if s.step_index >= growth.departure.step), replay.source.state]
    steps = [state.step_index for state in states]
    complete = steps == list(range(growth.departure.step, steps[-1] + 1))
    return states if complete and len(states) > 1 else []


def _edits(analysis: Analysis, first: int, last: int) -> list[tuple[str, tuple[Edit, str, Edit]]]:
    growth = analysis.growth
    assert growth is not None  # noqa: S101 - the caller has looked
    factor = 10.0 ** -math.ceil(math.log10(max(growth.departure.ratio, 1.0) * 10))
    found: list[tuple[str, tuple[Edit, str, Edit]]] = []
    cause = growth.judged.cause.label if growth.judged.cause is not None else ""
    if cause == "optimizer_state_invalid":
        found.append(
            (
                f"an empty optimizer state before step {first}",
                (_emptied(first), f"an empty optimizer state before step {last}", _emptied(last)),
            )
        )
    ratio = growth.judged.case.facts.get("gradient_ratio", 0.0)
    if cause == "exploding_gradient" and ratio > 1:
        found.append(
            (
                f"step {first}'s gradients divided by {ratio:,.0f}, to the usual norm",
                (
                    _smaller_gradients(first, 1 / ratio),
                    f"step {last}'s gradients divided by {ratio:,.0f}",
                    _smaller_gradients(last, 1 / ratio),
                ),
            )
        )
    found.append(
        (
            f"a learning rate times {factor:g} from step {first} on",
            (
                _smaller_rate(factor, first),
                f"a learning rate times {factor:g} in step {last}",
                _smaller_rate(factor, last),
            ),
        )
    )
    return found


def _smaller_rate(factor: float, first: int) -> Edit:
    def edit(runner: StepRunner, state: StepState, stage: str) -> None:
        if state.step_index < first or stage != "forward":
            return
        for optimizer in runner.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * factor

    return edit


def _emptied(step: int) -> Edit:
    def edit(runner: StepRunner, state: StepState, stage: str) -> None:
        if state.step_index == step and stage == "forward":
            for optimizer in runner.optimizers:
                optimizer.state.clear()

    return edit


def _smaller_gradients(step: int, factor: float) -> Edit:
    def edit(runner: StepRunner, state: StepState, stage: str) -> None:
        if state.step_index != step or stage != "update":
            return
        with torch.no_grad():
            for optimizer in runner.optimizers:
                for group in optimizer.param_groups:
                    for parameter in group["params"]:
                        if parameter.grad is not None:
                            parameter.grad.mul_(factor)

    return edit


def _run_on(replay: Replay, states: list[StepState], edit: Edit | None) -> Failed | None:
    """Run the steps one after the other from the first state; what tripped, or None."""
    source = replace(replay.source, state=states[0], kind="captured", first_bad=None, bundle=None)
    session = Session(source, replay.nearest)
    runner = session.runner
    with session.running():
        for number, state in enumerate(states):
            if number:
                _set_rates(runner, state)
                runner.begin(copy.deepcopy(state.micro_batches), state.step_index)
            restore_rng(state.rng)
            while (unit := runner.next_unit) is not None:
                if edit is not None:
                    edit(runner, state, unit.stage)
                outcome = runner.advance()
                if outcome.status == "bad":
                    return state.step_index, unit.stage, outcome.tensor
    return None


def _set_rates(runner: StepRunner, state: StepState) -> None:
    """Take the hyperparameters that the recorded step used, as a schedule set them."""
    for optimizer, groups in zip(runner.optimizers, state.hyperparameters, strict=False):
        for group, recorded in zip(optimizer.param_groups, groups, strict=False):
            group |= {
                key: value
                for key, value in recorded.items()
                if key in group and isinstance(value, float | int) and key != "params"
            }
