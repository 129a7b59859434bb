"""What findings/1 says, as texts for the header and the Origin tab. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.widgets.state import ORIGINAL, Line, State
from workbench.widgets.words import verdict_words

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
    where, module = str(origin.get("where") or ""), str(origin.get("module") or "")
    if where == "module":
        where = module or "the model's own forward"
    source = str(origin.get("source") or "")
    pieces = [piece for piece in (f"in {where}" if where else "", source) if piece]
    return ", ".join(pieces)


def born_at(state: State) -> str:
    """The origin in one phrase; empty when it is not known."""
    if state.findings is None:
        return ""
    origins = items(state.findings, "origins")
    if not origins:
        needs = mapping(mapping(state.findings).get("reproduction")).get("verdict")
        return "" if needs is None else "no origin was found"
    first = origins[0]
    leaf = _leaf(first)
    if leaf:
        return leaf
    op = str(first.get("op") or "") or str(first.get("kind") or "").replace("_", " ")
    more = f" (and {len(origins) - 1} more)" if len(origins) > 1 else ""
    where = place(first)
    return f"{op} {where}{more}".strip()


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
    born = born_at(state) or "not known yet"
    lines = [
        facts.title,
        f"{headline(state)} Caught at {facts.caught_at}. Born at {born}.",
        *(f"{line.label:8}{line.text}" for line in summary(state)),
        f"{facts.name} {facts.digest}",
    ]
    return "\n".join(lines)
