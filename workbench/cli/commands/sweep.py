"""``workbench sweep``: the recorded step under many conditions, one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workbench.cli.cluster import cluster
from workbench.cli.command import Command
from workbench.cli.options import (
    bundle_argument,
    code_options,
    dask_option,
    json_option,
    require_code,
)
from workbench.cli.output import emit, note, say, table
from workbench.evidence.wording import counted

if TYPE_CHECKING:
    from workbench.diagnose.minimal import Minimal
    from workbench.diagnose.sweep import Sweep
    from workbench.evidence import Bundle


@click.command("sweep", cls=Command, section="Run", order=2)
@bundle_argument
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE,VALUE",
    multiple=True,
    help="Values of one condition, for example autocast=off,bfloat16; may be repeated. Values of "
    "keep_samples and float32_modules are separated by /.",
)
@click.option("--grid", is_flag=True, help="Run every combination instead of one change at a time.")
@click.option("--repeats", type=click.IntRange(1), default=1, help="Runs per cell.")
@click.option("--jobs", type=click.IntRange(1), default=1, help="Cells at a time.")
@click.option("--resume", is_flag=True, help="Keep the finished cells of an earlier sweep.")
@click.option("--trace", is_flag=True, help="Name each cell's origin by one more, traced run.")
@click.option("--minimal", is_flag=True, help="Find the smallest changes that make it finite.")
@click.option(
    "--minimal-modules", is_flag=True, help="Find the modules that must leave low precision."
)
@click.option("--timeout", "timeout_s", type=float, help="Longest time of one cell in seconds.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, file_okay=False), help="Where results go."
)
@dask_option
@code_options
@json_option
def command(
    bundle: Path,
    settings: tuple[str, ...],
    grid: bool,
    repeats: int,
    jobs: int,
    resume: bool,
    trace: bool,
    minimal: bool,
    minimal_modules: bool,
    timeout_s: float | None,
    output: Path | None,
    dask: str | None,
    step: str | None,
    trust: str | None,
    as_json: bool,
) -> None:
    """Replay BUNDLE under many conditions, each in a process of its own.

    A finite cell narrows the failure down; it is no repair. Exits 0 whatever it finds.
    """
    from workbench.errors import UsageError
    from workbench.evidence import open_bundle

    opened = open_bundle(bundle)
    if not settings and not (minimal or minimal_modules):
        raise UsageError(
            "No condition was given to sweep over ('--set' is missing), so there is nothing to "
            "compare the original with. Give values, for example --set autocast=off, or --minimal."
        )
    require_code(opened, step, trust)
    from workbench.diagnose.sweep import cells_of, parse_values, run_sweep  # torch, once it may run

    values = parse_values(settings)
    directory = output or opened.findings_dir / "sweep"
    found: dict[str, Any] = {}
    if minimal or minimal_modules:
        changes = {key: chosen[0] for key, chosen in values.items()}
        found = _minimal(opened, step, trust, changes, (minimal, minimal_modules), timeout_s)
        _save_minimal(found, directory)
        if as_json:
            emit({name: one.to_data() for name, one in found.items()})
        else:
            _print_minimal(found)
        return
    with cluster(dask) as executor:
        swept = run_sweep(
            opened,
            cells_of(values, combine=grid),
            step=step,
            trust=trust,
            repeats=repeats,
            jobs=jobs,
            resume=resume,
            trace=trace,
            directory=directory,
            executor=executor,
            isolated=True,
            timeout_s=timeout_s,
            progress=note,
        )
    _save(swept, directory)
    if as_json:
        emit(swept.to_data())
    else:
        _print(swept)


def _minimal(
    bundle: Bundle,
    step: str | None,
    trust: str | None,
    changes: dict[str, Any],
    which: tuple[bool, bool],
    timeout_s: float | None,
) -> dict[str, Minimal]:
    from workbench.diagnose import minimal as search
    from workbench.diagnose.probe import InWorker
    from workbench.replay.devices import nearest

    found = {}
    with InWorker(bundle, step, trust, timeout_s) as probe:
        if which[0]:
            wanted = changes or search.usual_changes(nearest(bundle.conditions))
            found["conditions"] = search.minimal_changes(probe, wanted, say=note)
        if which[1]:
            modules = list(bundle.pytree("state/model")["modules"])
            found["modules"] = search.minimal_modules(probe, modules, say=note)
    return found


def _save(swept: Sweep, directory: Path) -> None:
    try:
        swept.save(directory)
    except OSError as error:
        note(f"The tables were not saved in {str(directory)!r}: {error}.")


def _save_minimal(found: dict[str, Minimal], directory: Path) -> None:
    from workbench.numerics import jsonio

    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, one in found.items():
            text = jsonio.dumps(one.to_data(), indent=1) + "\n"
            (directory / f"minimal_{name}.json").write_text(text, encoding="utf-8")
    except OSError as error:
        note(f"The result was not saved in {str(directory)!r}: {error}.")


def _print(swept: Sweep) -> None:
    from workbench.evidence.wording import number

    lines = [["", "conditions", "result", "caught at", "loss", "non-finite set", "seconds"]]
    for row in swept.rows:
        caught = f"{row['stage']}: {row['tensor']}" if row["tensor"] else row["error"] or "–"
        glyph = "◇" if row["diagnostic"] else "●"
        loss = "–" if row["loss"] is None else number(row["loss"])
        seconds = f"{row['seconds']:.2g}"
        lines.append([glyph, row["name"], row["result"], caught, loss, row["mask"], seconds])
    for line in table(lines):
        say(line)
    for finding in swept.findings:
        say(finding["sentence"])
    for row in swept.rows:
        for key, why in row["without_effect"].items():
            say(f"{row['name']}: {key}: {why}")
    say(swept.conclusion)


def _print_minimal(found: dict[str, Minimal]) -> None:
    for one in found.values():
        for sentence in one.sentences:
            say(sentence)
        for key, why in one.idle.items():
            say(f"{key}: {why}")
        say(f"{counted(one.probes, 'probe')}.")
