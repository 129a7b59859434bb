"""How it happened: the way from the origin to the sink, one sentence each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.evidence.wording import counted

if TYPE_CHECKING:
    from workbench.diagnose.analysis import Analysis
    from workbench.replay.trace_events import Event

MAX_ROWS = 7


def chain_rows(analysis: Analysis) -> list[dict[str, Any]]:
    """List at most seven events from what led to the origin to what broke.

    Returns:
        Rows of ``event, op, stage, where, module, source, counts, sentence``; where the way is
        longer, its middle is left out and ``skipped`` says how many events that were.
    """
    graph = analysis.trace.graph
    indices = list(analysis.slice.chain)
    if not indices:
        indices = [j.origin.event for j in analysis.origins[:1] if j.origin.event >= 0]
    rows = []
    if analysis.origins:
        first = analysis.origins[0]
        rows = [_zeros(graph[i], n) for i, n in first.case.zero_makers()[:1] if i not in indices]
        if first.origin.leaf is not None:
            rows = [_leaf(first.origin.leaf)]
    room = MAX_ROWS - len(rows)
    shown, skipped = indices, 0
    if len(indices) > room:
        head, tail = room // 2 + 1, room - room // 2 - 1
        shown = indices[:head] + indices[len(indices) - tail :]
        skipped = len(indices) - len(shown)
    for position, index in enumerate(shown):
        row = _row(graph[index])
        if skipped and position == room // 2:
            row["skipped"] = skipped
        rows.append(row)
    return rows


def _row(event: Event) -> dict[str, Any]:
    write = next((w for w in event.writes if w.bad), None)
    counts = write.counts if write is not None else (0, 0, 0)
    return _entry(event, counts, f"{_short(event)} gave {_words(counts)}")


def _zeros(event: Event, elements: int) -> dict[str, Any]:
    dtype = event.writes[0].dtype if event.writes else "its dtype"
    values = counted(elements, "value")
    return _entry(event, (0, 0, 0), f"{_short(event)} rounded {values} to 0 in {dtype}")


def _leaf(name: str) -> dict[str, Any]:
    return {
        "event": None,
        "op": "input",
        "stage": "input",
        "where": "batch",
        "module": "",
        "source": "",
        "counts": None,
        "sentence": f"{name} was non-finite before the step",
    }


def _entry(event: Event, counts: tuple[int, int, int], sentence: str) -> dict[str, Any]:
    return {
        "event": event.index,
        "op": event.op,
        "stage": event.stage,
        "where": event.where,
        "module": event.module,
        "source": event.source,
        "counts": {"nan": counts[0], "pos_inf": counts[1], "neg_inf": counts[2]},
        "sentence": sentence,
    }


def _short(event: Event) -> str:
    name = event.base.strip("_")
    return f"{name} (backward)" if event.node is not None else name


def _words(counts: tuple[int, int, int]) -> str:
    names = ("NaN", "+Inf", "−Inf")
    parts = [f"{count:,} {name}" for count, name in zip(counts, names, strict=True) if count]
    return ", ".join(parts) or "a finite result"
