"""The sentences of a page beside the five answers, from findings and record alone."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from workbench.charts.words import number
from workbench.reports.incident import Incident


def title(incident: Incident) -> str:
    """``Non-finite incident NF-3f2a91 · run7, step 18,342``."""
    words = {"alert": "Alert", "captured": "Captured step"}
    what = words.get(incident.kind, "Non-finite incident")
    name = f"{what} {incident.fingerprint}".strip()
    return incident.about.get("title") or (
        f"{name} · {incident.run_id}, step {number(incident.step)}"
    )


def when(incident: Incident) -> str:
    """When the step ran, in UTC, from the ledger; else when the bundle was written."""
    time = incident.record.get("time")
    if isinstance(time, (int, float)):
        moment = datetime.datetime.fromtimestamp(time, tz=datetime.UTC)
    else:
        try:
            moment = datetime.datetime.fromisoformat(str(time or incident.manifest["created"]))
        except (KeyError, ValueError):
            return ""
        moment = moment.astimezone(datetime.UTC) if moment.tzinfo else moment
    return f"{moment.day} {moment:%b %Y, %H:%M} UTC"


_TONES = {"✕": "bad", "!": "alert", "·": ""}


def headline(incident: Incident) -> tuple[str, str]:
    """What happened, in one sentence, and its tone: ``bad``, ``alert`` or empty."""
    line = incident.summary[0] if incident.summary else ""
    glyph, _, rest = line.partition(" ")
    if glyph in _TONES:
        return rest, _TONES[glyph]
    return line, {"nonfinite": "bad", "alert": "alert"}.get(incident.kind, "")


def line(incident: Incident, label: str) -> str:
    """One of the lines Why, Sure?, Reach and Resume of the summary, without its label."""
    for text in incident.summary[1:]:
        head, _, rest = text.partition(" ")
        if head.rstrip(":") == label:
            return rest.strip()
    return ""


def words(stage: Any) -> str:
    """A stage's name as it is read aloud."""
    return str(stage or "an unknown stage").replace("_", " ")


def origins(incident: Incident) -> list[dict[str, Any]]:
    """The origins found, empty when there are none or no findings."""
    return list((incident.findings or {}).get("origins") or [])


def answer(incident: Incident, key: str) -> str:
    """The sentence of one of the five answers, by its key; a gap is named, not filled."""
    said = next((one.sentence for one in incident.answers if one.key == key), "")
    return said or "Not known."


def needs_replay(incident: Incident) -> bool:
    """Whether nothing replayed stands behind this report."""
    return not ((incident.findings or {}).get("reproduction") or {}).get("verdict")


def item_name(item: Any) -> str:
    """A sentence for, or the name of, something a list of findings holds."""
    if isinstance(item, Mapping):
        named = (item.get(key) for key in ("sentence", "name", "path", "op"))
        return str(next((name for name in named if name), "unnamed"))
    return str(item)


def resume(incident: Incident) -> str:
    """Where training can be taken up again."""
    # what to try before that is the row Prevent
    return line(incident, "Resume").partition(" Before that, try:")[0] or "Not known."


def not_shown(incident: Incident) -> str:
    """What this report does not establish."""
    data = incident.findings or {}
    limits = [str(item).rstrip(".") for item in data.get("limits") or []]
    if needs_replay(incident):
        # the full text, with the commands that would run the code, stands under Origin
        limits = [limit for limit in limits if not limit.startswith("Needs replay")]
        limits.insert(0, "Where the value was born, and why: that needs a replay (see Origin)")
    tried = [item.get("does_not_establish") for item in data.get("counterfactuals") or []]
    limits += [str(text).rstrip(".") for text in tried if text]
    if not limits:
        limits = ["Steps before and after this one; other seeds; other data"]
    return f"{'. '.join(dict.fromkeys(limits[:3]))}."


def chain(incident: Incident) -> list[tuple[str, str]]:
    """How it happened: one ``(sentence, source)`` per link, in the order of events."""
    links = (incident.findings or {}).get("chain") or []
    shown = []
    before = ""
    for link in links:
        source = chain_source(link)
        shown.append((chain_sentence(link), source if source != before else ""))
        before = source
    return shown


def chain_sentence(link: Any) -> str:
    """One link of the chain in words."""
    if not isinstance(link, Mapping):
        return str(link)
    for key in ("sentence", "text", "what"):
        if link.get(key):
            return str(link[key])
    role = words(link.get("role") or link.get("kind") or "")
    return f"{link.get('op') or link.get('tensor') or 'event'}: {role}".rstrip(": ")


def chain_source(link: Any) -> str:
    """The source line of a link, or nothing."""
    return str(link.get("source") or "") if isinstance(link, Mapping) else ""
