"""``workbench capture``: ask a live run for a bundle of its next step."""

from __future__ import annotations

import time
from pathlib import Path

import click

from workbench.cli.command import Command
from workbench.cli.options import json_option
from workbench.cli.output import emit, note, say
from workbench.errors import CheckFailedError
from workbench.evidence.wording import command_line

_POLL_S = 0.2


@click.command("capture", cls=Command, section="Keep", order=2)
@click.argument("run_dir", type=click.Path(path_type=Path))
@click.option("--why", required=True, help="The reason; it goes into the bundle.")
@click.option("--run", "run_id", help="Which run, where RUN_DIR has several.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Seconds to wait for the bundle.",
)
@json_option
def command(run_dir: Path, why: str, run_id: str | None, wait: float, as_json: bool) -> None:
    """Ask a live run, recording to RUN_DIR, for a bundle of its next step.

    Training is not stopped or changed. Exits 4 when no recorder is alive there, 5 when --wait
    passes without a bundle.
    """
    from workbench.evidence import find_bundles
    from workbench.evidence.presence import present
    from workbench.record.requests import ask

    before = set(find_bundles(run_dir)) if run_dir.is_dir() else set()
    request = ask(run_dir, why, run_id)
    path = _wait(run_dir, before, wait)
    alive = present(run_dir, run_id)
    if path is None and wait:
        raise CheckFailedError(
            f"No bundle appeared in {str(run_dir)!r} within {wait:g} s. "
            f"{_so_far(request, alive)} Look again with: {command_line('list', run_dir)}"
        )
    if as_json:
        emit(
            {
                "schema": "workbench.capture/1",
                "request": str(request),
                "bundle": None if path is None else str(path),
                "alive": alive,
            }
        )
    elif path is not None:
        say(str(path))
    else:
        said = "The next step of the run" if alive else "If a run is alive there, its next step"
        note(f"Asked. {said} makes a bundle. To see it:")
        say(command_line("list", run_dir))


def _so_far(request: Path, alive: bool | None) -> str:
    """What became of a request that no bundle has answered yet."""
    if not request.exists():
        return "A run has taken the request; its bundle may still be being written."
    if alive is False:
        return "The run ended before it took the request, which waits for the next one."
    return "No run has taken it yet: a step may take longer" + (
        "." if alive else ", or none is alive."
    )


def _wait(run_dir: Path, before: set[Path], seconds: float) -> Path | None:
    from workbench.evidence import find_bundles

    end = time.monotonic() + seconds
    while True:
        new = [path for path in find_bundles(run_dir) if path not in before]
        if new or time.monotonic() >= end:
            return new[0] if new else None
        time.sleep(_POLL_S)
