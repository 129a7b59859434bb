"""``workbench inspect``: what a bundle holds; runs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from workbench.cli.command import Command
from workbench.cli.options import bundle_argument, json_option
from workbench.cli.output import emit, say, table
from workbench.evidence.wording import counted

if TYPE_CHECKING:
    from pathlib import Path

    from workbench.evidence import Bundle

_MOST_RANKS = 64
_EARLIER = "trajectory/"


@click.command("inspect", cls=Command, section="Look", order=2)
@bundle_argument
@json_option
def command(bundle: Path, as_json: bool) -> None:
    """Show what BUNDLE recorded and what it can replay; runs no code.

    Exits 3 when a listed file is missing, has another size or cannot be read; `verify` reads every
    byte.
    """
    from workbench.errors import BundleError
    from workbench.evidence import open_bundle

    opened = open_bundle(bundle)
    damage = _damage(opened)
    try:
        if as_json:
            emit(_facts(opened) | {"damaged": damage})
        else:
            for line in _lines(opened):
                say(line)
    except BundleError:
        if not damage:
            raise
    if damage:
        raise BundleError(
            f"{str(bundle)!r} is damaged in {len(damage):,} of "
            f"{counted(len(opened.manifest.files), 'file')}: {_damage_words(damage)}. What rests "
            "on that is neither shown nor replayed. Get a fresh copy of the bundle."
        )


def _damage(bundle: Bundle) -> list[dict[str, Any]]:
    """Listed files that are missing, have another size or cannot be read; no digest is computed."""
    return [
        {"path": check.rel, "status": check.status, "bytes": check.size, "found": check.found}
        for check in bundle.verify("open")
        if check.status != "ok"
    ]


def _damage_words(damage: list[dict[str, Any]]) -> str:
    said = {"missing": "is missing", "unreadable": "cannot be read"}
    words = [
        f"{one['path']!r} "
        + said.get(one["status"], f"has {one['found']} bytes where {one['bytes']} are listed")
        for one in damage[:5]
    ]
    left = len(damage) - len(words)
    return ", ".join(words) + (f", and {left} more" if left else "")


def _facts(bundle: Bundle) -> dict[str, Any]:
    import msgspec

    manifest: dict[str, Any] = msgspec.to_builtins(bundle.manifest)
    return {
        "schema": "workbench.inspect/1",
        "path": str(bundle.path),
        "digest": bundle.digest,
        "manifest": manifest,
        "summary": _summary(bundle),
        "ledger_records": len(bundle.ledger()),
        **_ranks(bundle),
    }


def _ranks(bundle: Bundle) -> dict[str, Any]:
    from workbench.evidence.incidents import incident_of, ranks_file

    incident = incident_of(bundle)
    if incident is None:
        return {}
    said = ranks_file(bundle)
    parts = {key: said.get(key) for key in ("parallel", "bad_shards", "lender")}
    return {"incident": incident.as_dict() | parts}


def _rank_lines(bundle: Bundle) -> list[str]:
    """All ranks of the incident: what each had to do with it, and where its bundle is."""
    from workbench.evidence import clean
    from workbench.evidence.incidents import incident_of, ranks_file

    incident = incident_of(bundle)
    if incident is None:
        return []
    rows = []
    for member in incident.members[:_MOST_RANKS]:
        place = str(member.path) if member.path is not None else "not beside this bundle"
        rows.append((clean(member.words(), 80), member.level or "–", clean(place, 200)))
    lines = ["", f"Ranks of incident {clean(incident.id, 40)}", *table(rows, indent="  ")]
    left = len(incident.members) - _MOST_RANKS
    if left > 0:
        lines.append(f"  and {left:,} more")
    said = ranks_file(bundle)
    return lines + _spread_lines(said)


def _spread_lines(said: dict[str, Any]) -> list[str]:
    from workbench.evidence import clean

    parallel = said.get("parallel")
    parallel = parallel if isinstance(parallel, dict) else {}
    mesh = parallel.get("mesh")
    places = [
        f"{clean(name, 40)} {at[0]} of {at[1]}"
        for name, at in (mesh.items() if isinstance(mesh, dict) else ())
        if isinstance(at, list) and len(at) == 2
    ]
    kinds = ", ".join(clean(k, 20) for k in parallel.get("kinds") or [])
    lines = [f"  Spread by {kinds}{'; ' if places else ''}{', '.join(places)}"] if kinds else []
    shards = said.get("bad_shards")
    for name, shard in list(shards.items())[:8] if isinstance(shards, dict) else ():
        if isinstance(shard, dict):
            lines.append(f"  {clean(name, 80)}: {clean(_shard_words(shard), 200)}")
    return lines


def _shard_words(shard: dict[str, Any]) -> str:
    runs = [
        "+".join(f"{begin}:{end}" for begin, end in of_dimension) or "nothing"
        for of_dimension in shard.get("runs") or []
    ]
    placed = ", ".join(str(one) for one in shard.get("placements") or [])
    return f"this rank's part is [{', '.join(runs)}] of {shard.get('shape')} ({placed})"


def _lines(bundle: Bundle) -> list[str]:
    from workbench.evidence import byte_size, clean

    manifest = bundle.manifest
    sealed = "sealed" if bundle.sealed else "incomplete: its writing did not come to its end"
    total = sum(entry.size for entry in manifest.files.values())
    step = manifest.step_reference
    rows = [
        ("Bundle", f"{clean(bundle.path)} ({byte_size(total)}, {sealed})"),
        (
            "Run",
            clean(
                f"{manifest.run_id}, step {manifest.step:,}, rank {manifest.rank}"
                f"{f' of {manifest.world:,}' if manifest.world > 1 else ''}"
            ),
        ),
        ("Recorded", clean(f"{manifest.created} by {manifest.created_by}")),
        ("Kind", clean(f"{bundle.kind} {bundle.fingerprint}")),
        ("Step code", clean(step.reference or "none recorded", 200)),
        ("Digest", bundle.digest),
    ]
    lines = [*_summary(bundle), "", *table(rows)]
    lines += ["", "Replay", *table(_goals(bundle), indent="  ")]
    lines += ["", "Conditions", *table(_conditions(bundle), indent="  ")]
    lines += _rank_lines(bundle)
    lines += ["", "Files", *table(_files(bundle), indent="  ")]
    lines += [f"  {clean(rel)}: left out, {clean(why)}" for rel, why in manifest.dropped.items()]
    return lines + [f"Note: {clean(text, 300)}" for text in manifest.notes]


def _files(bundle: Bundle) -> list[tuple[str, str]]:
    """The files with their sizes; those of earlier steps, which may be hundreds, as one line."""
    from workbench.evidence import byte_size, clean

    files = bundle.manifest.files
    earlier = {rel: entry.size for rel, entry in files.items() if rel.startswith(_EARLIER)}
    rows = [(clean(rel, 200), byte_size(files[rel].size)) for rel in files if rel not in earlier]
    if earlier:
        steps = len({rel.split("/")[1] for rel in earlier if rel.count("/") > 1})
        what = f"{counted(steps, 'earlier step')} in {counted(len(earlier), 'file')}"
        rows.append((f"{_EARLIER}…", f"{byte_size(sum(earlier.values()))}, {what}"))
    return rows


def _summary(bundle: Bundle) -> list[str]:
    """The five lines: of the findings saved beside the bundle, else of the record alone."""
    from workbench.diagnose import Findings
    from workbench.errors import BundleError
    from workbench.evidence import clean, summary_facts, summary_lines

    try:
        saved = Findings.load(bundle, tables=False)
    except BundleError:  # what lies beside the bundle is not the bundle
        saved = None
    if saved is None or not saved.replayed:
        return summary_lines(summary_facts(bundle))
    return [clean(line, 600) for line in saved.summary]


def _goals(bundle: Bundle) -> list[tuple[str, str]]:
    from workbench.evidence import clean

    return [(clean(goal, 40), clean(state)) for goal, state in bundle.completeness.items()]


def _conditions(bundle: Bundle) -> list[tuple[str, str]]:
    """Those that differ from the defaults, and the device."""
    from workbench.evidence import Conditions

    changed = Conditions().changes(bundle.conditions)
    shown = {"device": bundle.conditions.device} | changed
    return [(key, _word(value)) for key, value in shown.items()]


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
