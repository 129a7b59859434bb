"""``workbench drill``: put faults into a training step and see what catches each."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from workbench.cli.command import Command
from workbench.cli.options import json_option
from workbench.cli.output import emit, say, table
from workbench.errors import CheckFailedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from workbench.record.drill import Drill


@click.command("drill", cls=Command, section="Development", order=2)
@click.argument("step")
@click.option("--bundle", type=click.Path(path_type=str), help="Take the batch from this bundle.")
@click.option("--steps", type=click.IntRange(min=3), default=4, show_default=True)
@click.option(
    "--ranks", type=click.IntRange(min=1), default=1, show_default=True,
    help="With 2 and more, also spoil one rank of so many gloo processes under DDP.",
)  # fmt: skip
@json_option
def command(step: str, bundle: str | None, steps: int, ranks: int, as_json: bool) -> None:
    """Run STEP (package.module:Name or file.py:Name) with faults put in, one run a fault.

    The batches come from the step's method example_batch(k), or from --bundle. Nothing is written
    but to a temporary directory. Exits 5 when a fault was not caught.
    """
    from workbench.record.drill import run_drill
    from workbench.step import load_step

    loaded = load_step(None, step=step)
    with _quiet():
        batches = _batches(loaded, step, bundle)
        drill = run_drill(loaded, batches, steps, ranks=ranks, bundle=bundle)
    if as_json:
        emit(drill.to_data())
    else:
        _print(drill)
    if drill.missed:
        raise CheckFailedError(
            f"{len(drill.missed)} of {len(drill.rows)} faults were not caught: "
            f"{', '.join(map(repr, drill.missed))}. The table says what was seen instead."
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the recorder's own messages of incidents that are made on purpose off the terminal."""
    logger = logging.getLogger("workbench")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _batches(loaded: Any, step: str, bundle: str | None) -> Callable[[int], Any]:
    if bundle is not None:
        from workbench.record.drill.ranks import recorded_batches

        return recorded_batches(bundle)
    own = getattr(loaded, "example_batch", None)
    if own is None:
        raise UsageError(
            f"The step {step!r} has no method example_batch(self, k), so the drill has nothing to "
            "train on. Write one that returns the batch of step k, or take a recorded batch with "
            "--bundle PATH."
        )
    found: Callable[[int], Any] = own
    return found


def _print(drill: Drill) -> None:
    rows = [("fault", "put in", "caught at", "step", "result")]
    for row in drill.rows:
        at = "" if row.caught_at is None else str(row.caught_at)
        words = row.result.replace("_", " ") + (f": {row.why}" if row.why else "")
        where = (row.boundary or "–").replace("_", " ")
        rows.append((row.what, f"step {row.put_at}", where, at or "–", words))
    for line in table(rows):
        say(line)
