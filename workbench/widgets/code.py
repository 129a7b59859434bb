"""Python for exactly the state on screen."""

from __future__ import annotations

from workbench.widgets.code_results import results
from workbench.widgets.presets import PRESETS
from workbench.widgets.reducer import pending_conditions
from workbench.widgets.state import ORIGINAL, Run, State


def to_code(state: State) -> str:
    """A script that opens the same bundle and makes the same runs.

    Every text from the bundle is written as a Python string literal.
    """
    lines = ["import workbench", "", f"bundle = workbench.open_bundle({state.facts.path!r})"]
    trust = state.trust
    reference = trust.reference or state.facts.step_reference
    if trust.given == "source":
        lines.append('replay = workbench.Replay(bundle, trust="source")')
    elif reference:
        lines.append(f"replay = workbench.Replay(bundle, step={reference!r})")
    else:
        lines.append("replay = workbench.Replay(bundle, step=...)  # your training step")
    for run in state.runs:
        lines += _run(run)
    pending = pending_conditions(state)
    if pending:
        named = preset_of(state)
        lines += ["", f"# set in the panel{', preset ' + named if named else ''}, not run yet"]
        lines.append(f"wanted = bundle.conditions.replace({_arguments(pending)})")
    if state.findings is not None:
        step = f", step={reference!r}" if reference and trust.given != "source" else ""
        lines += ["", f"findings = workbench.diagnose(bundle{step})"]
    lines += results(state)
    return "\n".join(lines) + "\n"


def preset_of(state: State) -> str:
    """The preset that the switches are set to; empty when they are set otherwise."""
    for preset, settings in PRESETS.items():
        working = {
            key: value
            for key, value in settings.items()
            for switch in [state.facts.switch(key)]
            if switch is not None and not switch.why_not and value != switch.recorded
        }
        if working and working == dict(state.wanted):
            return preset
    return ""


def _run(run: Run) -> list[str]:
    bad = run.bad
    stage = (
        bad.name if bad is not None else (run.stages[run.reached - 1].name if run.reached else "")
    )
    until = "" if run.finished or not stage else f"until={stage!r}"
    name = "original" if run.name == ORIGINAL else f"run_{run.name.lower()}"
    if not run.diagnostic:
        return ["", f"{name} = replay.run({until})"]
    wanted = f"conditions=bundle.conditions.replace({_arguments(run.changed)})"
    both = ", ".join(piece for piece in (until, wanted) if piece)
    return ["", f"{name} = replay.run({both})"]


def _arguments(changed: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in changed)
