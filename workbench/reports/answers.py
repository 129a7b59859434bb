"""The five answers and the sentences of the first screen, from findings and record alone.

Nothing here says more than its evidence: what was not replayed, not recorded or not read is said
to be so.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from workbench.charts.words import number, result
from workbench.reports.incident import Incident

NEEDS_REPLAY = "Needs a replay, which was not run."


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


def needs_replay(incident: Incident) -> bool:
    """Whether nothing replayed stands behind this report."""
    return not ((incident.findings or {}).get("reproduction") or {}).get("verdict")


def where(incident: Incident) -> str:
    """Where it was caught, and where it was born."""
    bad = incident.first_bad
    world = int(incident.manifest.get("world") or incident.record.get("world") or 1)
    rank = f"rank {incident.rank} of {world}" if world > 1 else "one process"
    if bad is None:
        return f"step {number(incident.step)} · {rank}"
    caught = (
        f"Caught at {words(bad.get('stage'))} ({bad.get('tensor')}) · step {number(incident.step)}"
        f" · micro-step {bad.get('micro_step', 0)} · {rank}."
    )
    born = [origin_place(origin) for origin in origins(incident)[:3]]
    return f"{caught} Born at {'; '.join(born)}." if born else caught


def origin_place(origin: Mapping[str, Any]) -> str:
    """``aten.log.default in loss, train.py:31``."""
    what = str(origin.get("op") or words(origin.get("kind")))
    place = str(origin.get("where") or "")
    if place == "module":
        place = str(origin.get("module") or "the root module")
    source = f", {origin['source']}" if origin.get("source") else ""
    stage = words(origin.get("stage"))
    backward = " (backward)" if stage == "backward" else ""
    return f"{what} in {place or stage}{backward}{source}"


def contaminated(incident: Incident) -> str:
    """What holds a bad value now."""
    return line(incident, "Reach") or "Not known."


def item_name(item: Any) -> str:
    """A sentence for, or the name of, something a list of findings holds."""
    if isinstance(item, Mapping):
        named = (item.get(key) for key in ("sentence", "name", "path", "op"))
        return str(next((name for name in named if name), "unnamed"))
    return str(item)


def ranks(incident: Incident) -> str:
    """What is known of the other ranks."""
    world = int(incident.manifest.get("world") or incident.record.get("world") or 1)
    if world == 1:
        return "One process."
    collective = ((incident.findings or {}).get("contamination") or {}).get("collective")
    carried = " The gradient collective carried the value to all of them." if collective else ""
    return (
        f"This bundle is from rank {incident.rank} of {world}; bundles of other ranks were not "
        f"read.{carried}"
    )


def reproduced(incident: Incident) -> str:
    """What a replay under the recorded conditions showed."""
    return line(incident, "Sure?") or "Not replayed yet."


def prevent(incident: Incident) -> str:
    """What to try, and what trying it here showed."""
    tried = list((incident.findings or {}).get("counterfactuals") or [])
    gone = [item for item in tried if item.get("result") in ("gone", "benign_skip")]
    fixes = [str(origin["fix"]) for origin in origins(incident) if origin.get("fix")]
    if gone:
        best = gone[0]
        placebo = best.get("placebo")
        control = f" The same kind of change elsewhere: {result(str(placebo))}" if placebo else ""
        advice = f"{fixes[0].rstrip('.')}. " if fixes else ""
        return (
            f"{advice}Tried as a diagnostic, {best.get('intervention')}: "
            f"{result(str(best.get('result')))}{control}"
        )
    if fixes:
        return f"{fixes[0].rstrip('.')}. Not tried here."
    if needs_replay(incident):
        return NEEDS_REPLAY
    if not origins(incident):
        return "Nothing to prevent was found."
    return "Nothing was tried that made the failure go away."


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
