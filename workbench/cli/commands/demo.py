"""``workbench demo``: a real training run goes non-finite; replay, diagnosis and report follow."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from workbench.cli.command import Command
from workbench.cli.options import json_option
from workbench.cli.output import emit, note, say
from workbench.errors import CannotRunError
from workbench.evidence.wording import command_line

if TYPE_CHECKING:
    from workbench.cli.demo_training import Trained


@click.command("demo", cls=Command, section="Development", order=1)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("demo"),
    show_default=True,
    help="Where the bundle and the report go.",
)
@click.option("--device", default="cpu", show_default=True, help="Device of the training run.")
@click.option("--seed", default=0, show_default=True, help="Seed of weights and batches.")
@click.option("--no-report", is_flag=True, help="Stop after the diagnosis.")
@json_option
def command(out: Path, device: str, seed: int, no_report: bool, as_json: bool) -> None:
    """Train a small model until it goes non-finite by itself, then explain it.

    A character model learns docstrings of the standard library in float16 autocast, with a
    hand-written log(softmax) loss. Nothing is planted. On CUDA, autocast runs softmax in float32,
    where this loss needs far larger logits to fail.
    """
    from workbench.cli.commands.diagnose import save
    from workbench.cli.demo_training import CharacterModelStep
    from workbench.diagnose import diagnose
    from workbench.evidence import open_bundle

    trained = _train(out, device, seed)
    note("Replaying it, then looking for the op where the bad value was born …")
    opened = open_bundle(trained.bundle)
    findings = diagnose(opened, step=CharacterModelStep(device), progress=note)
    save(findings, opened.findings_dir)
    report = None if no_report else _report(trained.bundle, out / "report.html")
    if as_json:
        emit(
            {
                "schema": "workbench.demo/1",
                "bundle": str(trained.bundle),
                "report": None if report is None else str(report),
                "summary": findings.summary,
            }
        )
        return
    for line in _closing(findings.summary, trained.bundle, report):
        say(line)


def _closing(summary: list[str], bundle: Path, report: Path | None) -> list[str]:
    """The last lines: the answer, where it is kept, and what to try next."""
    path = _relative(bundle)
    return [
        "",
        *summary,
        "",
        f"Bundle  {path}",
        *([f"Report  {_relative(report)}"] if report is not None else []),
        "Try next:",
        f"  {command_line('replay', path, '--trust', 'import', '--set', 'autocast=off')}",
        f"  {command_line('open', path)}",
    ]


def _train(out: Path, device: str, seed: int) -> Trained:
    from tqdm import tqdm

    from workbench.cli.demo_training import train

    note("Training a character model on docstrings of the standard library …")
    with tqdm(file=sys.stderr, unit=" steps", mininterval=1.0) as bar:

        def show(index: int, loss: float) -> None:
            del index
            bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
            bar.update()

        trained = train(out / "incidents", device, seed, show)
    note(
        f"Step {trained.steps - 1:,} went non-finite; the scaler had skipped {trained.skipped} "
        "steps before it, which is its normal work."
    )
    return trained


def _report(bundle: Path, output: Path) -> Path | None:
    import workbench

    note("Running the report's notebook …")
    try:
        workbench.report(
            bundle,
            template="incident",
            output=output,
            step="workbench.cli.demo_training:CharacterModelStep",
        )
    except CannotRunError as error:
        note(f"No report: {error}")
        return None
    return output


def _relative(path: Path) -> Path:
    """The shorter of the path and the path from here."""
    relative = os.path.relpath(path)
    return Path(relative) if len(relative) < len(str(path)) else path
