"""``workbench minimize``: the smallest failing samples, and a script with just the op's inputs."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from workbench.cli.command import Command
from workbench.cli.options import bundle_argument, code_options, json_option, require_code
from workbench.cli.output import emit, note, say
from workbench.evidence.wording import counted


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

    Looks for the smallest set of samples that still fails by the same op, then for the smallest
    torch computation: a forward function and its gradient, an op alone, or a short chain, with its
    real inputs cut to the elements that matter. The script needs torch only and is checked in a
    process of its own before it is handed over.
    """
    from workbench.evidence import open_bundle

    opened = open_bundle(bundle)
    require_code(opened, step, trust)
    from workbench.diagnose.minimize import minimize  # loads torch, which no refusal needs

    made = minimize(opened, output, step=step, trust=trust, progress=note)
    if as_json:
        emit(made.to_data())
        return
    if made.samples is not None and made.of:
        names = ", ".join(map(str, made.samples[:20]))
        say(
            f"Fails the same way with {len(made.samples):,} of {counted(made.of, 'sample')}: "
            f"{names}"
        )
    before, after = made.whole
    say(f"{made.op}: {made.shows}; {after:,} of {before:,} input elements are left")
    say(f"{shlex.join(['python', str(made.script)])} prints:")
    for line in made.printed.splitlines():
        say(f"  {line}")
