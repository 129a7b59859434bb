"""``workbench list``: the bundles below a directory, newest first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from workbench.cli.command import Command
from workbench.cli.options import json_option
from workbench.cli.output import emit, say, table
from workbench.errors import BundleError


@click.command("list", cls=Command, section="Look", order=1)
@click.argument("directory", type=click.Path(path_type=Path, exists=True), default=Path())
@json_option
def command(directory: Path, as_json: bool) -> None:
    """List the bundles below DIRECTORY, newest first."""
    from workbench.errors import UsageError
    from workbench.evidence import find_bundles

    if not directory.exists():
        raise UsageError(
            f"There is no folder {str(directory)!r}, so no bundle was looked for. Name the folder "
            "that the recorder was given, or one above it."
        )
    rows = [_row(path) for path in find_bundles(directory)]
    if as_json:
        incidents = [_incident(group) for group in _incidents(rows) if group[0].get("incident")]
        emit({"schema": "workbench.list/1", "bundles": rows, "incidents": incidents})
        return
    if not rows:
        say(f"No bundle below {str(directory)!r}.")
    for line in table(_cells(group) for group in _incidents(rows)):
        say(line)


def _row(path: Path) -> dict[str, Any]:
    from workbench.evidence import open_bundle

    try:
        bundle = open_bundle(path)
    except BundleError as error:
        return {"path": str(path), "damaged": str(error)}
    manifest, bad = bundle.manifest, bundle.first_bad
    return {
        "path": str(path),
        "fingerprint": bundle.fingerprint,
        "kind": bundle.kind,
        "run_id": manifest.run_id,
        "step": manifest.step,
        "rank": manifest.rank,
        "world": manifest.world,
        "incident": manifest.incident,
        "level": manifest.level,
        "created": manifest.created,
        "caught": None if bad is None else {"stage": bad.stage, "tensor": bad.tensor},
        "sealed": bundle.sealed,
        "bytes": sum(entry.size for entry in manifest.files.values()),
    }


def _incidents(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Rows of one incident together, in the order of the newest of each; full bundles first."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        one = row.get("incident") or ""
        key = (one, str(Path(row["path"]).parent)) if one else ("", row["path"])
        groups.setdefault(key, []).append(row)
    for group in groups.values():
        group.sort(key=lambda r: (r.get("level") != "full", r.get("rank", 0)))
    return list(groups.values())


def _incident(group: list[dict[str, Any]]) -> dict[str, Any]:
    first = group[0]
    there = sorted(row["rank"] for row in group)
    return {
        "incident": first["incident"],
        "run_id": first["run_id"],
        "step": first["step"],
        "world": first["world"],
        "ranks": there,
        "absent": sorted(set(range(min(first["world"], 65_536))) - set(there)),
        "full": [row["rank"] for row in group if row["level"] == "full"],
        "paths": [row["path"] for row in group],
    }


def _cells(group: list[dict[str, Any]]) -> list[str]:
    from workbench.evidence import byte_size, clean, joined, number

    row = group[0]
    if "damaged" in row:
        return [row["path"], "–", "damaged", "–", "–", clean(row["damaged"], 80)]
    caught = row["caught"]
    what = f"{caught['tensor']}, caught at {caught['stage']}" if caught else "nothing caught"
    state = "" if all(one["sealed"] for one in group) else ", incomplete"
    if row["world"] > 1:
        names = joined([number(one["rank"]) for one in group], 6)
        what += f" (rank {number(row['rank'])}); bundles of rank {names} of {number(row['world'])}"
    return [
        row["path"],
        clean(row["fingerprint"], 20),
        row["kind"],
        f"step {row['step']:,}",
        byte_size(sum(one["bytes"] for one in group)),
        clean(what, 160) + state,
    ]
