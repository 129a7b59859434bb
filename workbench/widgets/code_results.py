"""Python that makes again what longer tasks of the panel made: comparisons, sweeps and the like."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.widgets.findings import items
from workbench.widgets.state import MADE_HERE, ORIGINAL, State

TASKS = ("sweep", "minimal", "ladder", "minimize")


def results(state: State) -> list[str]:
    """Lines for each result that was made here, in the order they came; none for saved ones."""
    lines: list[str] = []
    imports: dict[str, None] = {}
    for result in state.results:
        if result.source != MADE_HERE:
            continue
        made, needed = _one(state, result.name)
        if made:
            imports[needed] = None
            lines.append(made)
    return ["", "# what the panel's longer tasks ran", *imports, *lines] if lines else []


def _one(state: State, name: str) -> tuple[str, str]:
    """The line that makes a result and the import it needs; empty where there is none."""
    task = "from workbench.diagnose.panel_tasks import run_task"
    if name in TASKS:
        return f"{name} = run_task(replay, {name!r}, {{}}, print)", task
    kind, _, number = name.partition(":")
    rows = items(state.findings, "counterfactuals")
    if kind == "counterfactual" and number.isdigit() and int(number) < len(rows):
        asked = {"intervention": str(rows[int(number)].get("intervention"))}
        return f"{kind}_{number} = run_task(replay, {kind!r}, {asked!r}, print)", task
    if name == "comparison":
        first, second = (_conditions(state, run) for run in compared(state))
        needed = "from workbench.replay.side_by_side import compare_runs"
        return f"comparison = compare_runs(replay, {first}, {second}, print)", needed
    if name == "bundles" and state.look.other:
        needed = "from workbench.replay.side_by_side import compare_paths"
        return f"bundles = compare_paths(str(bundle.path), {state.look.other!r}, print)", needed
    return "", ""


def compared(state: State) -> tuple[str, str]:
    """Names of the two runs that the Compare tab shows."""
    diagnostic = [run.name for run in state.runs if run.diagnostic]
    first, second = state.look.against
    return first or ORIGINAL, second or (diagnostic[-1] if diagnostic else ORIGINAL)


def _conditions(state: State, name: str) -> str:
    run = state.run(name)
    changed: Mapping[str, str] = dict(run.changed) if run is not None else {}
    if not changed:
        return "bundle.conditions"
    said = ", ".join(f"{key}={value!r}" for key, value in changed.items())
    return f"bundle.conditions.replace({said})"
