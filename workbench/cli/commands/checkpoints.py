"""``workbench checkpoints``: scan them, list them, and name the one to resume from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workbench.checkpoints.states import CLEAN_STEPS, who_am_i
from workbench.cli.command import CommandGroup
from workbench.cli.options import json_option
from workbench.cli.output import emit, note, say, table
from workbench.errors import CheckFailedError
from workbench.evidence.wording import command_line, counted

if TYPE_CHECKING:
    from workbench.checkpoints import Known, ScanResult

_directory = click.argument("directory", type=click.Path(path_type=Path))


@click.group("checkpoints", cls=CommandGroup, section="Keep", order=1)
def command() -> None:
    """Keep bad checkpoints out of training.

    A checkpoint is suspect until a finiteness scan and enough clean training steps after it make
    it committed; it is quarantined when it holds non-finite values. Resume from committed ones.
    """


@command.command("scan")
@_directory
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Also those that were scanned before.")
@click.option(
    "--ledger",
    type=click.Path(path_type=Path),
    help="The run's ledger (or its directory): it tells which steps were clean.",
)
@click.option(
    "--clean-steps",
    type=click.IntRange(min=0),
    default=CLEAN_STEPS,
    show_default=True,
    help="Clean steps after a checkpoint before it is committed.",
)
@json_option
def scan(
    directory: Path,
    names: tuple[str, ...],
    everything: bool,
    ledger: Path | None,
    clean_steps: int,
    as_json: bool,
) -> None:
    """Look at every float of the checkpoints in DIRECTORY (or of NAMES in it).

    Whatever it finds, it exits 0; what must not be resumed from is quarantined and named.
    """
    from tqdm import tqdm

    from workbench.checkpoints import Registry

    registry = Registry(directory, clean_steps)
    wanted = [one.checkpoint.name for one in registry.known()] if everything else None
    with tqdm(unit="B", unit_scale=True, desc="scanning", disable=None) as bar:
        results = registry.scan(names or wanted, bar.update, who_am_i())
    if ledger is not None:
        _take_ledger(registry, ledger)
    states = {one.checkpoint.name: one for one in registry.known()}
    if as_json:
        emit(_scan_data(directory, results, states))
    else:
        _print_scan(results, states)
    bad = [one.checkpoint.name for one, result in results if not result.finite]
    if bad:
        note(
            f"Not to be resumed from: {len(bad):,} of {counted(len(results), 'checkpoint')} in "
            f"{str(directory)!r}, now quarantined: {', '.join(map(repr, bad[:5]))}. "
            f"{_next(registry)}"
        )


def _next(registry: Any) -> str:
    """What to resume from, if anything."""
    where = registry.directory
    if registry.latest() is not None:
        latest = command_line("checkpoints", "latest", where)
        return f"`{latest}` names the one to use."
    release = command_line("checkpoints", "release", where)
    return (
        "None is committed yet, so there is none to use: clean steps under a recorder commit one, "
        f"or `{release} NAME --by WHO --why WHY`."
    )


def _take_ledger(registry: Any, ledger: Path) -> None:
    """Tell the registry which steps the ledger knows to be clean."""
    from workbench.checkpoints.ledgers import clean_steps_of

    seen = clean_steps_of(ledger)
    if seen.last_incident is not None:
        registry.incident(seen.last_incident, seen.last_incident - 1, "an incident in the ledger")
    if seen.last_step is not None:
        registry.clean(seen.last_step)


def _scan_data(
    directory: Path, results: list[tuple[Known, ScanResult]], states: dict[str, Known]
) -> dict[str, Any]:
    return {
        "schema": "workbench.checkpoints/1",
        "directory": str(directory),
        "checkpoints": [_row(one) for one in states.values()],
        "scanned": [
            {
                "name": one.checkpoint.name,
                "state": states[one.checkpoint.name].state,
                "sentence": result.sentence,
                **result.as_dict(),
            }
            for one, result in results
        ],
    }


def _print_scan(results: list[tuple[Known, ScanResult]], states: dict[str, Known]) -> None:
    if not results:
        say("Every checkpoint was scanned already; --all scans them again.")
    rows = [
        (one.checkpoint.name, states[one.checkpoint.name].state, result.sentence)
        for one, result in results
    ]
    for line in table(rows):
        say(line)


@command.command("list")
@_directory
@json_option
def list_(directory: Path, as_json: bool) -> None:
    """List the checkpoints in DIRECTORY with their states, newest first."""
    from workbench.checkpoints import Registry

    known = Registry(directory).known()[::-1]
    if as_json:
        emit({"schema": "workbench.checkpoints/1", "checkpoints": [_row(one) for one in known]})
        return
    if not known:
        say("No checkpoints here.")
    rows = [
        (
            one.checkpoint.name,
            one.state,
            "" if one.entry.step is None else f"step {one.entry.step:,}",
            _why(one),
        )
        for one in known
    ]
    for line in table(rows):
        say(line)


def _row(one: Known) -> dict[str, Any]:
    return {
        "name": one.checkpoint.name,
        "path": str(one.checkpoint.path),
        "kind": one.checkpoint.kind,
        "state": one.state,
        "step": one.entry.step,
        "why": _why(one),
        "changed_since_scan": one.changed,
        "scan": one.entry.scan,
        "history": one.entry.history,
    }


def _why(one: Known) -> str:
    if one.waits:
        return f"{one.why}; {_clean_steps(one)}"
    who = one.entry.history[-1]["who"] if one.entry.history and not one.changed else None
    return f"{one.why} ({who})" if who else one.why


def _clean_steps(one: Known) -> str:
    """Whether the clean steps that would commit it can still come."""
    from workbench.checkpoints.states import RECORDED
    from workbench.evidence.presence import present

    alive = present(one.checkpoint.path.parent, RECORDED)
    if alive:
        return "a run counts them"
    return "no run counts them" if alive is None else "the run that counted them has ended"


@command.command("latest")
@_directory
@json_option
def latest(directory: Path, as_json: bool) -> None:
    """Print the path of the newest committed checkpoint in DIRECTORY, and nothing else.

    Exits 5 when none is committed.
    """
    from workbench.checkpoints import Registry

    path = Registry(directory).latest()
    if path is None:
        raise CheckFailedError(
            f"No checkpoint in {str(directory)!r} is committed, so none is known to be safe to "
            f"resume from. `{command_line('checkpoints', 'list', directory)}` says why for each; "
            f"`{command_line('checkpoints', 'scan', directory)}` looks at those that were not "
            "scanned."
        )
    if as_json:
        emit({"schema": "workbench.checkpoints/1", "latest": str(path)})
    else:
        say(str(path))


@command.command("release")
@_directory
@click.argument("name")
@click.option("--by", required=True, help="Who answers for it.")
@click.option("--why", required=True, help="The reason.")
def release(directory: Path, name: str, by: str, why: str) -> None:
    """Commit the checkpoint NAME on a person's word, once its scan is finite."""
    from workbench.checkpoints import Registry

    Registry(directory).release(name, by, why)
    say(f"{name} is committed: {why} ({by})")


@command.command("quarantine")
@_directory
@click.argument("name")
@click.option("--why", required=True, help="The reason.")
@click.option("--by", help="Who decided it; your login when left out.")
@click.option("--move", is_flag=True, help="Rename it, so that every loader passes it by.")
def quarantine(directory: Path, name: str, why: str, by: str | None, move: bool) -> None:
    """Forbid the checkpoint NAME for resuming."""
    from workbench.checkpoints import Registry

    path = Registry(directory).quarantine(name, by or who_am_i(), why, move)
    say(f"{name} is quarantined: {why}")
    if move:
        note(f"It lies in {path} now.")


@command.command("prune")
@_directory
@click.option("--keep", type=click.IntRange(min=1), required=True, help="How many to keep.")
def prune(directory: Path, keep: int) -> None:
    """Delete the oldest checkpoints; the newest committed one and quarantined ones stay."""
    from workbench.checkpoints import Registry

    deleted = Registry(directory).prune(keep)
    say(f"{len(deleted)} deleted.")
    for path in deleted:
        note(f"deleted {path}")
