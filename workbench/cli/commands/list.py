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
        emit({"schema": "workbench.list/1", "bundles": rows})
        return
    if not rows:
        say(f"No bundle below {str(directory)!r}.")
    for line in table(_cells(row) for row in rows):
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
        "created": manifest.created,
        "caught": None if bad is None else {"stage": bad.stage, "tensor": bad.tensor},
        "sealed": bundle.sealed,
        "bytes": sum(entry.size for entry in manifest.files.values()),
    }


def _cells(row: dict[str, Any]) -> list[str]:
    from workbench.evidence import byte_size, clean

    if "damaged" in row:
        return [row["path"], "–", "damaged", "–", "–", clean(row["damaged"], 80)]
    caught = row["caught"]
    what = f"{caught['tensor']} at {caught['stage']}" if caught else "nothing caught"
    state = "" if row["sealed"] else ", incomplete"
    return [
        row["path"],
        clean(row["fingerprint"], 20),
        row["kind"],
        f"step {row['step']:,}",
        byte_size(row["bytes"]),
        clean(what, 80) + state,
    ]
