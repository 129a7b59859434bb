"""``workbench pack``: a bundle and what was found out about it, in one file."""

from __future__ import annotations

from pathlib import Path

import click

from workbench.cli.command import Command
from workbench.cli.options import bundle_argument, json_option
from workbench.cli.output import emit, note, say
from workbench.evidence.wording import command_line, counted


@click.command("pack", cls=Command, section="Share", order=3)
@bundle_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The zip to write; BUNDLE.zip when left out.",
)
@click.option("--no-findings", is_flag=True, help="Leave findings, trace and notes out.")
@json_option
def command(bundle: Path, output: Path | None, no_findings: bool, as_json: bool) -> None:
    """Pack BUNDLE into one uncompressed zip, with its findings and trace.

    Every command takes the zip as it takes the directory. It holds the batch as it was recorded;
    `workbench redact` makes a copy that does not.
    """
    from workbench.evidence import byte_size, open_bundle, pack

    opened = open_bundle(bundle)
    target = output or opened.path.with_name(f"{opened.path.name.removesuffix('.zip')}.zip")
    written = pack(opened, target, findings=not no_findings)
    packed = open_bundle(written)
    taken = packed.packed_findings()
    size = written.stat().st_size
    if as_json:
        emit(
            {
                "schema": "workbench.pack/1",
                "bundle": str(bundle),
                "packed": str(written),
                "bytes": size,
                "digest": packed.digest,
                "findings": taken,
            }
        )
        return
    results = f"with {counted(len(taken), 'file')} of findings" if taken else "without findings"
    say(f"{written}  {byte_size(size)}, {results}. {packed.digest}")
    if opened.has("batch.safetensors") or opened.has("batch.json"):
        copy = opened.path.with_name(f"{opened.path.name.partition('.bundle')[0]}-redacted.bundle")
        note("It holds the batch as recorded. To make a copy without it:")
        note(f"  {command_line('redact', bundle, '-o', copy)}")
