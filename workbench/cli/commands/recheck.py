"""``workbench recheck``: a report is made again and compared, claim by claim."""

from __future__ import annotations

import re
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
_MANY = {"Text of section ": "section", "Data of ": "chart"}
_LONGEST = 120
_FOR_PROGRAMS = re.compile(r'sha256:|\{"|\| |^\d+ (?:entry|entries|texts?)$')


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
    """What does not hold in whole; the rest by its reason, or in few words."""
    for claim in done.changed:
        say(_line(claim))
        if claim.found:
            say(f"    now: {claim.found}")
        if claim.why:
            say(f"    {claim.why}")
    unchecked: dict[str, list[str]] = {}
    for claim in done.claims:
        if claim.status == "cannot be checked here":
            unchecked.setdefault(claim.why, []).append(claim.name)
    for why, names in unchecked.items():
        say(f"· cannot be checked here, since {why}:")
        say(f"    {', '.join(names)}")
    for line in _same([one for one in done.claims if one.status == "same"]):
        say(line)
    counts = (f"{done.count(status)} {status}" for status in _MARKS)
    replayed = "the step was replayed" if done.replayed else "the step was not replayed"
    say(f"{', '.join(counts)}; {replayed}.")


def _same(claims: list[Claim]) -> list[str]:
    """Claims that hold: what a person reads one by one, texts and data by their number."""
    from workbench.evidence.wording import counted

    alone = [one for one in claims if not one.name.startswith(tuple(_MANY))]
    lines = [_line(one) for one in alone if _readable(one.said)]
    names = [one.name for one in alone if not _readable(one.said)]
    if names:
        lines.append(f"✓ same: {', '.join(names)}")
    for begin, noun in _MANY.items():
        found = [one.name.removeprefix(begin) for one in claims if one.name.startswith(begin)]
        if found:
            names_of = ", ".join(found)
            what = begin.removesuffix(f"{noun} ").strip()
            lines.append(f"✓ same: {what} {counted(len(found), noun)}: {names_of}")
    return lines


def _readable(said: str) -> bool:
    """Whether a claim's text says something to a person: no digest, no data, not "5 entries"."""
    return bool(said) and len(said) <= _LONGEST and not _FOR_PROGRAMS.search(said)


def _line(claim: Claim) -> str:
    said = f" — {claim.said}" if claim.said else ""
    return f"{_MARKS[claim.status]} {claim.status}: {claim.name}{said}"
