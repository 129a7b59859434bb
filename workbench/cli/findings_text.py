"""Findings as lines of text, the most useful first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from workbench.evidence.departures import departures
from workbench.evidence.verdicts import result_words
from workbench.evidence.wording import before_the_step, origin_place

if TYPE_CHECKING:
    from workbench.diagnose.answers import Answer

_LABELS = {
    "where": "1 Where",
    "contaminated": "2 Contaminated",
    "ranks": "3 Ranks",
    "reproduced": "4 Reproduced",
    "prevent": "5 Prevent",
}
_WIDTH = max(map(len, _LABELS.values())) + 2


def answer_lines(answers: Iterable[Answer], *, full: bool) -> list[str]:
    """The five answers, a line each.

    Args:
        answers: The answers.
        full: Whether evidence and command follow each.
    """
    lines = []
    for one in answers:
        lines.append(f"{_LABELS[one.key]:{_WIDTH}}{one.sentence}")
        if full:
            lines += [f"{'':{_WIDTH}}from {one.evidence}", f"{'':{_WIDTH}}{one.command}"]
    return lines


def findings_lines(data: Mapping[str, Any]) -> list[str]:
    """Say everything below the five-line summary, a line each.

    Args:
        data: A ``workbench.findings/1`` object.
    """
    lines: list[str] = []
    bad = data.get("first_bad")
    if bad and bad.get("kind") != "alert":  # the headline says what an alert is about
        lines.append(f"Caught at {bad['stage']}: {bad['tensor']}, step {bad['step']:,}")
    lines += [_origin(origin) for origin in data.get("origins", [])]
    lines += departures(data)
    lines += [_counterfactual(item) for item in data.get("counterfactuals", [])]
    lines += [
        f"Contributor: {item.get('op')}, event {item.get('event')}, {_words(item.get('role'))}"
        for item in data.get("contributors", [])
    ]
    lines += _anomaly(data.get("anomaly"))
    lines += [_absorbed(item) for item in data.get("absorbed", [])]
    lines += [f"Differs: {text}" for text in _texts(data, "reproduction", "differences")]
    lines += [f"Chain: {_plain(item)}" for item in data.get("chain", [])]
    lines += [f"Limit: {text}" for text in data.get("limits", [])]
    return lines


def _origin(origin: Mapping[str, Any]) -> str:
    held = before_the_step(origin)
    born = [f"Born at {origin.get('op') or _words(origin.get('kind'))} in {origin_place(origin)}"]
    if origin.get("stage") != "backward":  # the place says so
        born.append(f"stage {_words(origin.get('stage'))}")
    parts = [
        *(born if held is None else [f"It was {held}"]),
        _words(origin.get("cause") or "cause not known"),
    ]
    if origin.get("dtype"):
        parts.append(str(origin["dtype"]))
    if origin.get("source"):
        parts.append(str(origin["source"]))
    if origin.get("event") is not None:
        parts.append(f"event {origin['event']}")
    return " · ".join(parts)


def _counterfactual(item: Mapping[str, Any]) -> str:
    result = result_words(str(item.get("result")))
    placebo = item.get("placebo")
    control = f" (placebo: {result_words(str(placebo))})" if placebo else ""
    return f"Tried {item.get('intervention')}: {result}{control}"


def _anomaly(said: Mapping[str, Any] | None) -> list[str]:
    if not said:
        return []
    node, source = said.get("node"), said.get("source")
    place = f" ({source})" if source else ""
    agreed = {True: ", as found here", False: ", not the origin found here"}
    end = "" if node is None else agreed.get(said.get("agrees") is True, "")
    line = f"Anomaly mode: {'says nothing' if node is None else node}{place}{end}."
    return [f"{line} {said['note']}" if said.get("note") else line]


def _absorbed(item: Mapping[str, Any]) -> str:
    return f"Absorbed: {item.get('op')}, event {item.get('event')}, in {item.get('stage')}"


def _texts(data: Mapping[str, Any], *keys: str) -> Iterable[str]:
    value: Any = data
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value or ()


def _words(label: Any) -> str:
    return str(label).replace("_", " ")


def _plain(item: Any) -> str:
    if isinstance(item, Mapping):
        return str(item.get("sentence") or item.get("text") or item.get("op") or dict(item))
    return str(item)
