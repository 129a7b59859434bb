"""``workbench redact``: a copy of a bundle for others, without sample values."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from workbench.cli.command import Command
from workbench.cli.options import bundle_argument, code_options, json_option, require_code
from workbench.cli.output import emit, note, say
from workbench.evidence.wording import counted

if TYPE_CHECKING:
    from workbench.evidence import Bundle


@click.command("redact", cls=Command, section="Share", order=4)
@bundle_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="The new bundle's directory.",
)
@click.option("--drop-parameters", is_flag=True, help="Leave the values of parameters out too.")
@click.option("--no-findings", is_flag=True, help="Write no findings beside the copy.")
@click.option(
    "--keep-op-inputs",
    is_flag=True,
    help="Replay, and take along the real inputs of the failing op alone, with a script.",
)
@code_options
@json_option
def command(
    bundle: Path,
    output: Path,
    drop_parameters: bool,
    no_findings: bool,
    keep_op_inputs: bool,
    step: str | None,
    trust: str | None,
    as_json: bool,
) -> None:
    """Write a copy of BUNDLE without sample values, paths, host and user names.

    Batch, gradients and buffers become counts, rounded statistics and digests. The copy opens,
    verifies and reports like any bundle; it cannot be replayed, and says so.
    """
    from workbench.evidence import byte_size, open_bundle
    from workbench.evidence.redact import redact

    opened = open_bundle(bundle)
    inputs = _op_inputs(opened, step, trust) if keep_op_inputs else {}
    written = redact(
        opened,
        output,
        parameters=not drop_parameters,
        op_inputs=inputs,
        findings=not no_findings,
    )
    copy = open_bundle(written)
    size = sum(entry.size for entry in copy.manifest.files.values())
    if as_json:
        emit(
            {
                "schema": "workbench.redact/1",
                "bundle": str(bundle),
                "redacted": str(written),
                "digest": copy.digest,
                "bytes": size,
                "files": copy.files(),
                "left_out": dict(copy.manifest.dropped),
                "findings": copy.findings_dir.is_dir(),
            }
        )
        return
    say(f"{written}  {byte_size(size)}, {counted(len(copy.files()), 'file')}. {copy.digest}")
    say(f"Left out: {', '.join(_left_out(copy)) or 'nothing'}.")
    if copy.findings_dir.is_dir():
        say(f"Findings, without what quotes samples: {copy.findings_dir}")
    if inputs:
        note("op_inputs/ holds the real inputs of one op. Look at them before you share the copy.")


def _left_out(copy: Bundle) -> list[str]:
    """Names of what the copy lacks; the files of earlier steps, which may be hundreds, as one."""
    left = sorted(copy.manifest.dropped)
    earlier = [rel for rel in left if rel.startswith("trajectory/")]
    shown = [rel for rel in left if rel not in earlier]
    return [*shown, f"trajectory/… ({counted(len(earlier), 'file')})"] if earlier else shown


def _op_inputs(bundle: Bundle, step: str | None, trust: str | None) -> dict[str, bytes]:
    """The op-level repro, checked, as file contents."""
    from workbench.diagnose.minimize import minimize

    require_code(bundle, step, trust)
    with tempfile.TemporaryDirectory(prefix="workbench-redact-") as folder:
        made = minimize(bundle, Path(folder), step=step, trust=trust, progress=note)
        files = sorted(made.script.parent.iterdir())
        return {path.name: path.read_bytes() for path in files if path.is_file()}
