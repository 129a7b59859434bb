"""What can be pinned: the view on screen in words, and every claim the panel makes about it."""

from __future__ import annotations

from workbench.widgets.findings import born_at, headline, items, mapping, summary
from workbench.widgets.state import RECORDED, State
from workbench.widgets.words import changed_words, run_result, stage_line, stage_words

LONGEST = 400
MAX_CLAIMS = 60
THIS_VIEW = ""
"""The claim of a note that pins the view alone."""


def view_words(state: State) -> str:
    """What is on screen, the tab first: ``Ranges · activations · blocks.3.attn``."""
    look = state.look
    pieces = [look.tab.capitalize()]
    if look.tab == "ranges":
        pieces += [look.tensor_kind, look.search]
    elif look.tab == "evidence":
        pieces.append(look.section)
    elif look.tab == "compare":
        pieces += [" with ".join(name for name in look.against if name)]
    if look.stage:
        pieces.append(f"stage {stage_words(look.stage)}")
    return " · ".join(piece for piece in pieces if piece)


def run_words(state: State) -> str:
    """The run on screen with its conditions: ``A: autocast off, finite``."""
    run = state.shown
    if run is None:
        return RECORDED
    changed = changed_words(run.changed)
    return f"{run.name}: {changed}, {run_result(run)}" if changed else run.name


def claims(state: State) -> tuple[str, ...]:
    """Every sentence on screen that says something about the incident, the most telling first."""
    said = [f"{headline(state)} Caught at {state.facts.caught_at}."]
    born = born_at(state)
    if born:
        said.append(f"Born at {born}.")
    said += [f"{line.label} {line.text}" for line in summary(state)]
    said += [f"{run.name}: {run.after}" for run in state.runs if run.after]
    said += _found(state)
    said += [
        f"{stage_words(stage.name)}: {stage_line(stage)}"
        for stage in state.stages
        if stage.status in ("bad", "alert", "skip", "unavailable")
    ]
    cut = (one if len(one) <= LONGEST else one[: LONGEST - 1] + "…" for one in said if one)
    return tuple(dict.fromkeys(cut))[:MAX_CLAIMS]


def _found(state: State) -> list[str]:
    """The claims of a diagnosis beyond the header."""
    data = state.findings
    said = [str(one.get("sentence") or "") for one in items(data, "chain")]
    for one in items(data, "counterfactuals"):
        what, result = one.get("intervention"), str(one.get("result") or "")
        if what and result:
            said.append(f"{what}: {result.replace('_', ' ')}. {one.get('establishes') or ''}")
    limits = mapping(data).get("limits")
    if isinstance(limits, list):
        said += [f"Not shown: {one}" for one in limits if isinstance(one, str)]
    return [one.strip() for one in said]
