"""The Origin tab: the chain from birth to sink, the cause, and what was tried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.charts.words import number
from workbench.evidence.departures import departures
from workbench.evidence.verdicts import result_sentence
from workbench.evidence.wording import before_the_step, counted
from workbench.widgets import parts
from workbench.widgets.findings import items, mapping, place
from workbench.widgets.markup import esc, link, middle, name, note, table
from workbench.widgets.origin_graph import graph
from workbench.widgets.parts import Act
from workbench.widgets.state import State
from workbench.widgets.store import Store
from workbench.widgets.words import seconds

MAX_CHAIN = 7
MAX_SAMPLES = 8


class Origin:
    """Region: the diagnosis in sentences."""

    name = "origin"

    def __init__(self, store: Store, act: Act) -> None:
        del store, act
        self.widget = parts.html("", "wb-origin")

    def part(self, state: State) -> object:
        """The findings."""
        again = tuple(one for one in state.results if one.name.startswith("counterfactual:"))
        busy = state.activity is not None
        drawn = "graph" in state.look.open
        return (id(state.findings), busy, state.findings_from, again, state.takes, drawn)

    def draw(self, state: State) -> None:
        """Write the diagnosis, or offer one."""
        self.widget.value = origin_markup(state)


def origin_markup(state: State) -> str:
    """The whole tab as markup."""
    if state.findings is None:
        if state.activity is not None and state.activity.verb == "Diagnose":
            return note("The diagnosis is running; what it finds appears here.")
        takes = seconds(None if state.takes is None else 3 * state.takes)
        label = f"Diagnose, {takes}" if takes else "Diagnose"
        return note("Not diagnosed here yet. " + link("diagnose", label))
    data = state.findings
    origins = items(data, "origins")
    head = f'<p class="wb-dim">{esc(state.findings_from)}</p>' if state.findings_from else ""
    if not origins:
        body = "" if departures(data) else _nothing_wrong(data)
    else:
        body = _chain(data, origins) + graph(state) + "".join(_origin(one) for one in origins)
    body += _departed(data) + _tried(state) + _absorbed(data) + _limits(data) + _anomaly(state)
    return head + body


def _nothing_wrong(data: Any) -> str:
    verdict = mapping(mapping(data).get("reproduction")).get("verdict")
    if verdict is None:
        return note("The record alone does not show where the value was born: it needs a replay.")
    return note("No origin: nothing non-finite in this step reaches a result that is used.")


def _departed(data: Any) -> str:
    """What left its usual range: what an alert is about, and what led to an overflow."""
    said = "".join(f"<li>{esc(text)}</li>" for text in departures(mapping(data)))
    return f"<h4>What left its usual range</h4><ul>{said}</ul>" if said else ""


def _chain(data: Any, origins: list[Mapping[str, Any]]) -> str:
    rows = items(data, "chain")
    if not rows:
        rows = [*items(data, "contributors"), *origins[:1]]
    cells = [_chain_row(row) for row in rows[:MAX_CHAIN]]
    more = len(rows) - MAX_CHAIN
    tail = f'<li class="wb-dim">{more} more in the findings file</li>' if more > 0 else ""
    return f'<h4>How it happened</h4><ol class="wb-chain">{"".join(cells)}{tail}</ol>'


def _chain_row(row: Mapping[str, Any]) -> str:
    said = row.get("sentence") or row.get("text") or row.get("says")
    op = str(row.get("op") or "")
    if not said:
        role = str(row.get("role") or row.get("kind") or "").replace("_", " ")
        said = f"{op}: {role}" if op and role else op or role
        op = ""
    source = str(row.get("source") or "")
    at = f" · {name(source)}" if source else ""
    shown_op = f" · {name(op)}" if op and op not in str(said) else ""
    event = row.get("event")
    card = f" · {link(f'event:{event}', 'card')}" if isinstance(event, int) and event >= 0 else ""
    return f"<li>{esc(middle(str(said), 200))}{shown_op}{at}{card}</li>"


def _origin(origin: Mapping[str, Any]) -> str:
    tensor = mapping(origin.get("tensor"))
    count = mapping(tensor.get("positions")).get("count")
    kind = str(origin.get("kind") or "").replace("_", " ")
    op = str(origin.get("op") or "")
    stage = str(origin.get("stage") or "").replace("_", " ")
    held = before_the_step(origin)
    facts = [
        f"<b>Born at</b> {name(op) if op else esc(kind)} {esc(middle(place(origin), 90))}",
        esc(f"stage {stage}" if kind == "birth" else f"{kind}, stage {stage}"),
    ]
    if held is not None:
        facts = [f"<b>It was</b> {esc(held)}"]
    if origin.get("dtype"):
        facts.append(esc(str(origin["dtype"])))
    if isinstance(count, int) and count:
        facts.append(_positions(count, mapping(tensor.get("positions"))))
    line = f'<p class="wb-origin-line">{" · ".join(facts)}</p>'
    return line + _cause(origin)


def _positions(count: int, positions: Mapping[str, Any]) -> str:
    """How many elements are bad at the origin, the first one's index, and in which samples."""
    said = counted(count, "position")
    if positions.get("first"):
        said += f", first at {positions['first']}"
    samples = positions.get("samples")
    if isinstance(positions.get("sentence"), str) and positions["sentence"]:
        said += f", {middle(positions['sentence'], 120)}"
    elif isinstance(samples, list) and samples:
        shown = ", ".join(number(one) for one in samples[:MAX_SAMPLES])
        more = len(samples) - MAX_SAMPLES
        said += f", in index {shown}" + (f" and {more:,} more" if more > 0 else "")
        said += " of the first dimension"
    return esc(said)


def _cause(origin: Mapping[str, Any]) -> str:
    label = str(origin.get("cause") or "")
    if not label:
        return ""
    text = str(origin.get("explanation") or "")
    fix = str(origin.get("fix") or "")
    said = f" {esc(text)}" if text else ""
    tried = f"<p><b>To try</b> {esc(fix)}</p>" if fix else ""
    return f"<p><b>Cause</b> {esc(label.replace('_', ' '))}.{said}</p>{tried}"


def _tried(state: State) -> str:
    rows = []
    for number_of, one in enumerate(items(state.findings, "counterfactuals")):
        placebo = one.get("placebo")
        said = f"{esc(one.get('establishes') or '')} {esc(one.get('does_not_establish') or '')}"
        rows.append(
            (
                f"◇ {esc(one.get('intervention'))}",
                esc(_result(one)) + _again(state, number_of),
                esc(result_sentence(str(placebo)))
                if placebo
                else '<span class="wb-dim">none</span>',
                said.strip(),
            )
        )
    if not rows:
        return ""
    heads = ("Change tried", "Result", "Placebo: the same change elsewhere", "What it shows")
    return "<h4>Counterfactuals</h4>" + table(heads, rows)


def _result(row: Mapping[str, Any]) -> str:
    return result_sentence(str(row.get("result")), str(row.get("moved_to") or ""))


def _again(state: State, place_of: int) -> str:
    """The button that runs a counterfactual again here, and what came of it."""
    found = state.result(f"counterfactual:{place_of}")
    said = ""
    if found is not None:
        row = mapping(found.data)
        said = f"<br>Run again here, just now: {esc(_result(row))}"
    if state.activity is not None:
        return said
    return f"{said}<br>{link(f'counterfactual:{place_of}', 'Run', 'Trace, then run this change')}"


def _absorbed(data: Any) -> str:
    rows = items(data, "absorbed")
    if not rows:
        return ""
    said = "".join(
        f"<li>{name(str(row.get('op') or 'an op'))} {esc(middle(place(row), 90))}</li>"
        for row in rows
    )
    return f"<h4>Silent: an overflow was absorbed into finite values</h4><ul>{said}</ul>"


def _limits(data: Any) -> str:
    limits = mapping(data).get("limits")
    if not isinstance(limits, list) or not limits:
        return ""
    said = "".join(f"<li>{esc(text)}</li>" for text in limits)
    return f"<h4>What this does not show</h4><ul>{said}</ul>"


def _anomaly(state: State) -> str:
    """What autograd's anomaly mode says beside the origin, or the link that asks it."""
    found = mapping(state.findings).get("anomaly")
    if not isinstance(found, Mapping):
        if state.activity is not None or not items(state.findings, "origins"):
            return ""
        takes = seconds(None if state.takes is None else 4 * state.takes)
        ask = link("ask_anomaly", f"Ask it, {takes}" if takes else "Ask it")
        return f"<h4>Anomaly mode</h4>{note(f'Not asked. {ask}')}"
    node, source = found.get("node"), str(found.get("source") or "")
    if node is None:
        said = "It says nothing."
    else:
        at = f" ({source})" if source else ""
        agrees = found.get("agrees")
        same = "The same place." if agrees else "Another place than the origin found here."
        said = f"It names {node}{at}. {'' if agrees is None else same}".strip()
    text = f"{said} {found.get('note') or ''}".strip()
    return f"<h4>Anomaly mode</h4><p>{esc(text)}</p>"
