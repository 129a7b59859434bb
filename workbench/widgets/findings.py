"""What findings/1 says, as texts for the header and the Origin tab. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.evidence.wording import origin_place
from workbench.widgets.state import ORIGINAL, Line, State
from workbench.widgets.words import verdict_words

BORN = "Born at"
UNKNOWN = "not known yet: it takes a replay."
LABELS = ("Why", "Sure?", "Reach", "Resume")


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one: findings are read from disk."""
    return value if isinstance(value, Mapping) else {}


def items(data: Any, key: str) -> list[Mapping[str, Any]]:
    """A list of mappings under ``key``; what is not one is left out."""
    found = mapping(data).get(key)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def place(origin: Mapping[str, Any]) -> str:
    """Where an origin is, in words: ``in loss, train.py:31``."""
    source = str(origin.get("source") or "")
    return f"in {origin_place(origin)}" + (f", {source}" if source else "")


def born_at(state: State) -> str:
    """The origin in one phrase; empty when it is not known."""
    if state.findings is None:
        return ""
    origins = items(state.findings, "origins")
    if not origins:
        return "no origin was found" if diagnosed(state) else ""
    first = origins[0]
    leaf = _leaf(first)
    if leaf:
        return leaf
    op = str(first.get("op") or "") or str(first.get("kind") or "").replace("_", " ")
    more = f" (and {len(origins) - 1} more)" if len(origins) > 1 else ""
    where = place(first)
    return f"{op} {where}{more}".strip()


def diagnosed(state: State) -> bool:
    """Whether a replay was diagnosed, here or before."""
    return mapping(mapping(state.findings).get("reproduction")).get("verdict") is not None


def places(state: State) -> list[tuple[str, str]]:
    """*Caught at* and *born at*, never mixed; an alert is raised, and nothing bad was born."""
    facts, born = state.facts, born_at(state)
    if facts.kind == "nonfinite":
        unknown = "not known: replay is off." if state.no_replay else UNKNOWN
        return [("Caught at", facts.caught_at), (BORN, born or unknown)]
    found = [("Alert at", facts.caught_at)] if facts.stage else []
    return found + ([(BORN, born)] if items(state.findings, "origins") else [])


def _leaf(origin: Mapping[str, Any]) -> str:
    """An origin that was bad before the step began; empty for any other."""
    kind = str(origin.get("kind") or "")
    if not kind.startswith("poisoned_"):
        return ""
    what = kind.removeprefix("poisoned_").replace("_", " ")
    tensor = str(mapping(origin.get("tensor")).get("name") or "")
    return f"the {what} {tensor}".strip() + ", bad before the step began"


def headline(state: State) -> str:
    """The first sentence. What was recorded says it; a diagnosis does not change it."""
    return state.facts.headline


def split_line(text: str) -> tuple[str, str]:
    """A line of the five-line summary as label and sentence."""
    for label in LABELS:
        if text.startswith(label):
            return label, text[len(label) :].strip()
    return "", text.strip()


def summary(state: State) -> tuple[Line, ...]:
    """The four lines under the headline: from a diagnosis where there is one."""
    lines = {line.label: line.text for line in state.facts.lines}
    said = mapping(state.findings).get("summary")
    if isinstance(said, list):
        for text in said:
            label, sentence = split_line(str(text))
            if label and sentence:
                lines[label] = sentence
    original = state.run(ORIGINAL)
    if original is not None and original.verdict:
        lines["Sure?"] = verdict_words(original)
        if state.findings is None:
            lines["Why"] = "Not diagnosed yet: a replay shows that it fails, not why."
    return tuple(Line(label, lines.get(label, "")) for label in LABELS if lines.get(label))


def summary_text(state: State) -> str:
    """The header as plain text, with the digest, for a message to the team."""
    facts = state.facts
    where = " ".join(f"{label} {text.rstrip('.')}." for label, text in places(state))
    lines = [
        facts.title,
        f"{headline(state)} {where}".rstrip(),
        *(f"{line.label:8}{line.text}" for line in summary(state)),
        f"{facts.name} {facts.digest}",
    ]
    return "\n".join(lines)
