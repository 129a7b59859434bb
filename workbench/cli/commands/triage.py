"""``workbench triage``: a store of bundles, the same fault of many incidents put together."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workbench.cli.cluster import cluster
from workbench.cli.command import Command
from workbench.cli.options import dask_option, json_option
from workbench.cli.output import emit, note, say, table

if TYPE_CHECKING:
    from workbench.diagnose.triage.run import Triage


@click.command("triage", cls=Command, section="Share", order=5)
@click.argument("url", metavar="URL", default=".")
@click.option(
    "--since", metavar="WHEN", help="Only incidents since a date (2026-11-30) or so long: 12h, 7d."
)
@click.option(
    "--known",
    metavar="FINGERPRINTS",
    help="Known ones, NF-1a2b3c,NF-4d5e6f or a file with one a line: marked, and not listed.",
)
@click.option("--show-known", is_flag=True, help="List groups of known fingerprints too.")
@click.option(
    "--csv",
    "csv_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write one line an incident to this file.",
)
@click.option(
    "--report",
    "page",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the fleet-triage report to this HTML file.",
)
@click.option(
    "--jobs", type=click.IntRange(1, 256), default=8, show_default=True, help="Bundles at a time."
)
@dask_option
@json_option
def command(
    url: str,
    since: str | None,
    known: str | None,
    show_known: bool,
    csv_file: Path | None,
    page: Path | None,
    jobs: int,
    dask: str | None,
    as_json: bool,
) -> None:
    """Group the incidents of a store of bundles by fault.

    URL is a folder, or s3://, gs://, http:// or any other that fsspec knows. Only manifests,
    ledgers and findings are fetched; no code is run. Exits 0 whatever it finds.
    """
    from workbench.diagnose.triage.run import run_triage
    from workbench.diagnose.triage.selecting import parse_known, parse_since

    now = datetime.datetime.now(tz=datetime.UTC)
    chosen: dict[str, Any] = {
        "since": None if since is None else parse_since(since, now),
        "known": frozenset() if known is None else parse_known(known),
    }
    for option, path in (("--csv", csv_file), ("--report", page)):
        if path is not None:
            _refuse_unwritable(path, option)
    with cluster(dask) as executor:
        found = run_triage(url, **chosen, jobs=jobs, executor=executor, progress=note)
    if csv_file is not None:
        _write(csv_file, found.to_csv())
    if page is not None:
        _report(found, {"store": url, "since": since, "known": known, "jobs": jobs}, page)
    if as_json:
        emit(found.to_data())
    else:
        _print(found, show_known)


def _refuse_unwritable(path: Path, option: str) -> None:
    """Refuse a file that could not be written at the end, before a store is read for it."""
    import os

    from workbench.errors import CannotRunError

    if path.exists() and not path.is_file():
        return  # a pipe or /dev/stdout
    probe = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise CannotRunError(
            f"The file {str(path)!r} cannot be written ({error}), so nothing was read. Choose "
            f"another place with {option}."
        ) from error


def _write(path: Path, text: str) -> None:
    import os

    from workbench.errors import CannotRunError

    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        if path.exists() and not path.is_file():  # a pipe or /dev/stdout is written to as it is
            path.write_text(text, encoding="utf-8", newline="")
        else:
            part.write_text(text, encoding="utf-8", newline="")
            part.replace(path.resolve())
    except OSError as error:
        raise CannotRunError(
            f"The file {str(path)!r} cannot be written ({error}), so the table is lost. Choose "
            "another place with --csv."
        ) from error
    finally:  # an interrupted table is not left half-written
        part.unlink(missing_ok=True)
    note(f"Wrote {path}")


def _report(found: Triage, asked: dict[str, Any], page: Path) -> None:
    """Make the report of what was read, which is not read again."""
    import workbench
    from workbench.reports.fleets import hand_on

    given = {name: value for name, value in asked.items() if value}
    with hand_on(found, asked["store"], asked["since"] or "", asked["known"] or ""):
        note(f"Wrote {workbench.report(None, 'fleet-triage', page, given, progress=note)}")


def _print(found: Triage, show_known: bool) -> None:
    from workbench.evidence.wording import clean, joined, number

    groups = [group for group in found.groups if show_known or not group["known"]]
    lines = [["group", "incidents", "last seen", "stage", "what", "fingerprints", ""]]
    lines += [
        [
            group["id"],
            number(group["count"]),
            clean(group["last_seen"])[:16].replace("T", " "),
            group["stage"].replace("_", " "),
            clean(group["what"], 60),
            joined(group["fingerprints"], 2),
            "known" if group["known"] else "",
        ]
        for group in groups
    ]
    if groups:
        for line in table(lines):
            say(line)
        say()
        for group in groups:
            also = f" Caught where {joined(group['perhaps'])} was." if group["perhaps"] else ""
            say(f"{group['id']}: {group['why']}{also}")
            for sentence in _spreads(found, group["id"]):
                say(f"  {sentence}")
    for row in found.unreadable:
        say(f"Not read: {row['url']}: {row['error']}")
    for sentence in found.notes:
        note(sentence)
    say(_closing(found, len(found.groups) - len(groups)))
    if not found.bundles and not found.unreadable and not found.older:
        say(
            f"Nothing to triage: no folder that ends in .bundle, and no .bundle.zip, lies in "
            f"{clean(found.url, 200)} or below it. Give the folder that training writes to, as "
            "Recorder(directory=...) names it."
        )
    if groups:
        say(_next(groups[0]))


def _spreads(found: Triage, group: str) -> list[str]:
    """How incidents of several ranks spread, of the newest three."""
    members = [one for one in found.incidents if one["group"] == group and one["spread"]]
    return [f"{one['run_id']}: {one['spread']['sentence']}" for one in members[:3]]


def _closing(found: Triage, hidden: int) -> str:
    from workbench.evidence.wording import counted, number

    totals = found.totals
    text = f"{counted(totals['bundles'], 'bundle')}, {counted(totals['incidents'], 'incident')}, "
    text += f"{counted(totals['groups'], 'group')}"
    if hidden:
        text += f"; {counted(hidden, 'group')} of known fingerprints not listed"
    elif totals["known"]:
        text += f"; {counted(totals['known'], 'incident')} of known fingerprints"
    if totals["older"]:
        text += f"; {number(totals['older'])} older left out"
    if totals["unreadable"]:
        text += f"; {number(totals['unreadable'])} could not be read"
    return f"{text}."


def _next(group: dict[str, Any]) -> str:
    """The command for the newest group: diagnose what is not diagnosed, else show it."""
    import shlex

    from workbench.evidence.remote import is_local

    where = group["next"]
    word = "inspect" if group["by"] == "origin" else "diagnose"
    lead = "" if is_local(where) else "Fetch it first. "
    return f"{lead}Next: workbench {word} {shlex.quote(where)}"
