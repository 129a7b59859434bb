"""Notes that somebody pinned in the workbench, as a section: who wrote them is not recorded."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from workbench.charts.words import number
from workbench.reports import blocks
from workbench.reports.blocks import Block, Section

if TYPE_CHECKING:
    from workbench.evidence.notes import Note
    from workbench.reports.incident import Incident


def notes(incident: Incident) -> Section:
    """Every note with what was on screen, what the panel said there, and what was written."""
    if incident.notes_problem:
        return Section("notes", [blocks.paragraph(incident.notes_problem, "alert")])
    if not incident.notes:
        text = "No note was pinned beside this bundle."
        return Section("notes", [blocks.paragraph(text, "muted")])
    text = "Written by people in the workbench; nothing in them was checked."
    shown: list[Block] = [blocks.paragraph(text, "muted")]
    for note in incident.notes:
        shown += _one(note)
    return Section("notes", shown)


def _one(note: Note) -> list[Block]:
    run = f" · {note.run}" if note.run else ""
    shown = [blocks.heading(f"{note.view or 'Note'}{run} · {_when(note.time)}")]
    if note.sentence:
        shown.append(blocks.markdown(note.sentence))
    if note.claim:
        shown.append(blocks.paragraph(f"The panel said there: {note.claim}", "muted"))
    return shown


def _when(time: str) -> str:
    try:
        moment = datetime.datetime.fromisoformat(time)
    except ValueError:
        return time
    moment = moment.astimezone(datetime.UTC) if moment.tzinfo else moment
    return f"{moment.day} {moment:%b %Y, %H:%M} UTC"


def summary(incident: Incident) -> str:
    """How many notes there are, for the first screen; empty when none."""
    count = len(incident.notes)
    if not count:
        return ""
    return (
        f"{number(count)} pinned in the workbench."
        if count > 1
        else "One, pinned in the workbench."
    )
