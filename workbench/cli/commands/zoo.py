"""``workbench zoo``: run a folder of incident files through recorder, replay and diagnosis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from workbench.cli.cluster import cluster
from workbench.cli.command import Command
from workbench.cli.options import dask_option, json_option
from workbench.cli.output import emit, note, say, table


@click.command("zoo", cls=Command, section="Development", order=3)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Incidents at once."
)
@click.option("--minimize", is_flag=True, help="Minimise each failure too: one repro.py each.")
@dask_option
@json_option
def command(directory: Path, jobs: int, minimize: bool, dask: str | None, as_json: bool) -> None:
    """Record, replay and diagnose every incident file of DIRECTORY.

    Runs the files. Where labels.json is there, says how often the answers agree with it. Exits 0
    whatever it finds.
    """
    from workbench.diagnose.zoo import run_zoo

    with cluster(dask) as executor:
        data = run_zoo(
            directory,
            jobs=jobs,
            done=_done,
            executor=executor,
            minimized=minimize,
            isolated=True,
        )
    if as_json:
        emit(data)
        return
    for line in table(_cells(stem, row) for stem, row in data["incidents"].items()):
        say(line)
    for stem, why in data["misses"].items():
        say(f"{stem}: {why}")
    for line in table((key.replace("_", " "), f"{n:,}") for key, n in data["totals"].items()):
        say(line)


def _done(stem: str, row: dict[str, Any]) -> None:
    note(f"{stem}: {row['error'] or 'done'}, {row['seconds']:.1f} s")


def _place(row: dict[str, Any]) -> str:
    if row["where"] == "module":
        return row["module"] or "the model"
    return row["module"] or row["where"] or "–"


def _cells(stem: str, row: dict[str, Any]) -> list[str]:
    if row["error"] is not None:
        return [stem, "error", "", "", "", str(row["error"])[:80]]
    agrees = row["agrees"]
    if agrees is None:
        word = ""
    else:
        wrong = [field for field, ok in agrees.items() if ok is False and field != "all"]
        word = "agrees" if not wrong else f"differs in {', '.join(wrong)}"
    return [
        stem,
        row["stage"] or "–",
        row["op"] or ("no origin" if not row["origins"] else "–"),
        _place(row),
        row["cause"] or "–",
        word,
    ]
