"""The ten stages as rows: what the trace or the record says of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from workbench.charts.rows import Rows
from workbench.charts.words import KIND_WORDS, KINDS, number
from workbench.evidence.wording import count_words, counted
from workbench.reports import wording
from workbench.reports.incident import Incident
from workbench.step.stages import ESTABLISHES, STAGES

NBSP = "\u00a0"
_GLYPHS = {"bad": "✕", "clean": "✓", "soft": "!", "unknown": "·"}


def stage_rows(incident: Incident) -> Rows:
    """One row a stage: its mark, what is known of it, and what looking at it can establish."""
    events = None if incident.events is None else dict(incident.events.columns)
    caught = (incident.first_bad or {}).get("stage")
    rows = tuple(
        (f"{mark} {wording.words(stage)}".replace(" ", NBSP), text, ESTABLISHES[stage])
        for stage in STAGES
        for mark, text in [_stage(incident, events, stage, caught)]
    )
    source = "the traced replay" if events is not None else "the record; no replay was traced"
    return Rows(
        f"The stages in order, from {source}.", ("Stage", "Shown", "What it can establish"), rows
    )


def _stage(
    incident: Incident, events: Mapping[str, Any] | None, stage: str, caught: str | None
) -> tuple[str, str]:
    if stage == caught:
        return _GLYPHS["soft" if incident.kind == "alert" else "bad"], _caught(incident)
    order = [str(name) for name in STAGES]
    later = caught in order and order.index(stage) > order.index(str(caught))
    if events is None:
        return _GLYPHS["unknown"], "Came after the gate." if later else "No gate tripped."
    found = _in_events(events, stage)
    if found is not None:
        bad, total = found
        if not any(bad.values()):
            return _GLYPHS["clean"], f"{counted(total, 'op')}, every result finite."
        kinds = ", ".join(f"{number(bad[k])} with {KIND_WORDS[k]}" for k in KINDS if bad[k])
        return _GLYPHS["soft"], f"{counted(total, 'op')}; results {kinds}."
    return _GLYPHS["unknown"], "Came after the gate." if later else "No op of this stage traced."


def _caught(incident: Incident) -> str:
    bad = incident.first_bad or {}
    found = bad.get("counts") or {}
    if incident.kind == "alert":
        return f"Alert: {bad.get('message') or bad.get('tensor')}"
    tensor = "" if bad.get("tensor") == bad.get("stage") else str(bad.get("tensor"))
    if bad.get("message"):
        return f"Caught here: {f'{tensor}. ' if tensor else ''}{bad['message']}"
    what = [text for text in (tensor, count_words(found) if found else "") if text]
    return f"Caught here{''.join(f': {text}' for text in what)}."


def _in_events(events: Mapping[str, Any], stage: str) -> tuple[dict[str, int], int] | None:
    """How many results of a stage's ops hold each kind, and how many ops there were."""
    rows = [i for i, value in enumerate(events.get("stage", ())) if str(value) == stage]
    if not rows:
        return None
    bad = {kind: int((np.asarray(events[kind])[rows] > 0).sum()) for kind in KINDS}
    return bad, len(rows)
