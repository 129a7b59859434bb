"""``workbench trajectory``: replay the kept steps before an incident, up to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from workbench.cli.command import Command
from workbench.cli.options import bundle_argument, code_options, json_option, require_code
from workbench.cli.output import emit, note, say, table

if TYPE_CHECKING:
    from pathlib import Path

    from workbench.replay.trajectory import Trajectory


@click.command("trajectory", cls=Command, section="Run", order=5)
@bundle_argument
@code_options
@json_option
def command(bundle: Path, step: str | None, trust: str | None, as_json: bool) -> None:
    """Replay BUNDLE's kept steps from their recovery point to the failing one.

    The first step that departs from the record is named, and the first value that left its usual
    envelope. Exits 0 whatever it finds.
    """
    from workbench.evidence import open_bundle

    opened = open_bundle(bundle)
    require_code(opened, step, trust)
    from workbench.replay.source import Source  # loads torch, which no refusal needs
    from workbench.replay.trajectory import replay_trajectory

    source = Source.from_bundle(opened, step, trust)
    found = replay_trajectory(opened, source, note)
    _save(found, opened.findings_dir / "trajectory")
    if as_json:
        emit(found.to_data())
        return
    for line in table(_lines(found.steps.rows()), indent="  "):
        say(line)
    for sentence in found.sentences:
        say(sentence)


def _save(found: Trajectory, directory: Path) -> None:
    from workbench.evidence import write_table

    try:
        write_table(directory, "steps", found.steps)
        write_table(directory, "ranges", found.ranges)
    except OSError as error:
        note(f"The tables were not saved in {str(directory)!r}: {error}.")


def _lines(rows: list[dict[str, Any]]) -> list[list[str]]:
    from workbench.evidence.wording import number
    from workbench.replay.step_ranges import known

    def told(value: float | None) -> str:
        return "–" if value is None else number(value)

    head = ["step", "loss", "as recorded", "gradient norm", "max |parameter|", "update", "bad"]
    equal = {True: "yes", False: "no", None: "–"}
    return [
        head,
        *(
            [
                f"{row['step']:,}",
                number(row["loss"]),
                equal[row["loss_equal"]],
                *(told(row[key]) for key in ("gradient_norm", "absmax", "update_ratio")),
                row["bad"] or "",
            ]
            for row in map(known, rows)
        ),
    ]
