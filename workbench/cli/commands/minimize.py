"""``workbench minimize``: the smallest failing samples, and a script with just the op's inputs."""

from __future__ import annotations

from pathlib import Path

import click

from workbench.cli.command import Command
from workbench.cli.options import bundle_argument, code_options, json_option, require_code
from workbench.cli.output import emit, note, say


@click.command("minimize", cls=Command, section="Run", order=6)
@bundle_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("repro"),
    show_default=True,
    help="Where repro.py and inputs.safetensors go.",
)
@code_options
@json_option
def command(bundle: Path, output: Path, step: str | None, trust: str | None, as_json: bool) -> None:
    """Make the smallest script that repeats BUNDLE's failure.

    The script needs torch only and is checked before it is handed over.
    """
    from workbench.diagnose.minimize import minimize
    from workbench.evidence import open_bundle

    opened = open_bundle(bundle)
    require_code(opened, step, trust)
    made = minimize(opened, output, step=step, trust=trust, progress=note)
    if as_json:
        emit(made.to_data())
        return
    if made.samples is not None and made.of:
        names = ", ".join(map(str, made.samples[:20]))
        say(f"{len(made.samples)} of {made.of} samples still fail the same way: {names}")
    say(f"{made.op} alone, with its real inputs: {made.printed}")
    say(f"python {made.script}")
