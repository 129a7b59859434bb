"""``workbench recheck``: a report is made again and compared, claim by claim."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

import workbench
from workbench.cli.command import Command
from workbench.cli.options import announce_source, code_options, json_option
from workbench.cli.output import emit, note, say
from workbench.errors import CheckFailedError

if TYPE_CHECKING:
    from workbench.reports.claims import Claim
    from workbench.reports.recheck import Recheck

_MARKS = {"same": "✓", "changed": "✕", "cannot be checked here": "·"}


@click.command("recheck", cls=Command, section="Share", order=2)
@click.argument("report", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--bundle",
    "bundles",
    type=click.Path(path_type=Path),
    multiple=True,
    required=True,
    help="The bundle the report is about; twice for a report that compares two.",
)
@click.option("--template", type=click.Path(path_type=Path), help="Your copy of its template.")
@code_options
@json_option
def command(
    report: Path,
    bundles: tuple[Path, ...],
    template: Path | None,
    step: str | None,
    trust: str | None,
    as_json: bool,
) -> None:
    """Run again what REPORT claims, and say of each claim whether it is the same.

    Code that the report names is never run: give the step with --step or --trust. Without it, what
    needs a replay cannot be checked. Exits 5 when something changed.
    """
    from workbench.evidence import open_bundle

    _ = workbench.report  # says in one paragraph which extra is missing
    from workbench.reports.recheck import recheck

    opened = [open_bundle(bundle) for bundle in bundles]
    announce_source(opened[0], trust)
    done = recheck(report, opened, step=step, trust=trust, template=template, progress=note)
    if as_json:
        emit(done.to_data())
    else:
        _print(done)
    if done.changed:
        raise CheckFailedError(
            f"{len(done.changed)} of {len(done.claims)} claims of {str(report)!r} are not what "
            f"{str(bundles[0])!r} gives here, the first of them: {done.changed[0].name}. Do not "
            "rely on this page; make the report again from the bundle."
        )


def _print(done: Recheck) -> None:
    said = ""
    for claim in done.claims:
        say(_line(claim))
        if claim.status == "changed" and claim.found:
            say(f"    now: {claim.found}")
        if claim.why and claim.why != said:
            say(f"    {claim.why}")
        said = claim.why
    counts = (f"{done.count(status)} {status}" for status in _MARKS)
    replayed = "the step was replayed" if done.replayed else "the step was not replayed"
    say(f"{', '.join(counts)}; {replayed}.")


def _line(claim: Claim) -> str:
    said = f" — {claim.said}" if claim.said else ""
    return f"{_MARKS[claim.status]} {claim.status}: {claim.name}{said}"
