"""What the panel knows before anything is replayed: recorded facts, read without running code.

Nothing here loads torch, so that the facts are on screen before it; the switches come after.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.charts.words import number
from workbench.errors import WorkbenchError
from workbench.evidence.facts import summary_facts
from workbench.evidence.summary import summary_lines
from workbench.evidence.wording import count_words, lacking
from workbench.widgets.findings import split_line
from workbench.widgets.state import STAGE_NAMES, Counts, Facts, Line, StageView

GOALS = {
    "forward_loss": ("input", "forward", "loss"),
    "backward": ("backward", "reduce", "unscale", "clip"),
    "update": ("update", "after_update", "logging"),
}
REDACTED = "A redacted copy"
"""How `redact` begins its note in the manifest."""

NOT_SHOWN = "Nothing from it is shown."


def read_facts(bundle: Any) -> Facts:
    """All recorded facts of a bundle.

    Args:
        bundle: An opened bundle; its manifest is read, and its ledger where there is one.
    """
    manifest, bad = bundle.manifest, bundle.first_bad
    reference = manifest.step_reference
    ledger, damaged = _ledger(bundle)
    said = summary_lines(summary_facts(bundle))
    return Facts(
        path=str(bundle.path),
        name=Path(bundle.path).name,
        digest=bundle.digest,
        title=_title(manifest, bundle.conditions),
        headline=headline(said[0]),
        caught_at=caught_at(bad),
        lines=tuple(Line(*split_line(text)) for text in said[1:]),
        kind=manifest.kind,
        stage=bad.stage if bad is not None else "",
        tensor=bad.tensor if bad is not None else "",
        step_reference=reference.reference,
        sealed=manifest.sealed,
        seconds=_step_seconds(ledger),
        missing=_missing(bundle.completeness),
        stages=_recorded_stages(bundle),
        damaged=tuple(dict.fromkeys((*damaged, *_damaged(bundle)))),
    )


def headline(line: str) -> str:
    """The first sentence of the summary: no glyph, and *caught at* is shown apart."""
    return line.lstrip("✕!·").strip().partition(" Caught at ")[0]


def caught_at(bad: Any) -> str:
    """The gate that tripped: stage, tensor and counts."""
    if bad is None:
        return "no gate"
    stage = bad.stage.replace("_", " ")
    found = count_words(bad.counts) if bad.counts else ""
    tensor = "" if bad.tensor == bad.stage else f", {bad.tensor}"
    return f"{stage}{tensor}" + (f" ({found})" if found else "")


def _title(manifest: Any, conditions: Any) -> str:
    bad = manifest.first_bad
    pieces = [
        str(manifest.run_id),
        f"step {number(manifest.step)}",
        f"micro-step {bad.micro_step if bad is not None else 0}",
        f"rank {manifest.rank}" + (f" of {manifest.world}" if manifest.world > 1 else ""),
    ]
    if conditions.autocast != "off":
        pieces.append(f"{conditions.autocast} autocast")
    pieces += [conditions.device, manifest.fingerprint]
    if any(note.startswith(REDACTED) for note in manifest.notes):
        pieces.append("redacted copy")
    if not manifest.sealed:
        pieces.append("not sealed: writing was cut short")
    return " · ".join(piece for piece in pieces if piece)


def _missing(completeness: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Stages that cannot be replayed, with the reason; what one goal lacks, later ones lack too."""
    found: list[tuple[str, str]] = []
    why = ""
    for goal, stages in GOALS.items():
        said = completeness.get(goal, "complete")
        if not why and said != "complete":
            why = lacking(said).replace("the bundle", "The bundle", 1) + "."
        if why:
            found += [(stage, why) for stage in stages]
    return tuple(found)


def _recorded_stages(bundle: Any) -> tuple[StageView, ...]:
    """The rail before any replay: what the gates of the recorded step said."""
    bad = bundle.first_bad
    missing = dict(_missing(bundle.completeness))
    at = STAGE_NAMES.index(bad.stage) if bad is not None and bad.stage in STAGE_NAMES else -1
    views = []
    for place, name in enumerate(STAGE_NAMES):
        if place == at:
            counts = Counts(**{k: int(bad.counts.get(k, 0)) for k in Counts.__dataclass_fields__})
            status = "alert" if bundle.kind == "alert" else "bad"
            known = counts if counts.total else None
            views.append(StageView(name, status, bad.tensor, known, bad.message))  # type: ignore[arg-type]
        elif place < at:
            views.append(
                StageView(name, sentence="Not replayed. In the record no gate tripped here.")
            )
        elif name in missing:
            views.append(StageView(name, "unavailable", reason=missing[name]))
        else:
            views.append(StageView(name))
    return tuple(views)


def _ledger(bundle: Any) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """The ledger, or none and what is wrong with it: the rest of the panel works without."""
    try:
        return list(bundle.ledger()), ()
    except WorkbenchError:
        return [], (f"ledger.jsonl does not match its digest. {NOT_SHOWN}",)


def _damaged(bundle: Any) -> tuple[str, ...]:
    """Files that are missing or of another size; digests are checked when a file is read."""
    said = {"missing": "is missing.", "size": "does not match its digest: its size differs."}
    return tuple(
        f"{check.rel} {said[check.status]} {NOT_SHOWN}"
        for check in bundle.verify("size")
        if check.status in said
    )


def _step_seconds(ledger: list[dict[str, Any]]) -> float | None:
    """Time between the last two records: about what one step took."""
    times = [record.get("time") for record in ledger[-2:]]
    if len(times) == 2 and all(isinstance(one, int | float) for one in times):
        spent = float(times[1]) - float(times[0])  # type: ignore[arg-type]
        return spent if 0 <= spent < 3600 else None
    return None
