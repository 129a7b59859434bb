"""``workbench report``: one HTML file that opens anywhere, offline; of many bundles one each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import workbench
from workbench.cli.command import Command
from workbench.cli.extracting import extract
from workbench.cli.options import announce_source, code_options, json_option, newest_bundle
from workbench.cli.output import emit, note, say, table
from workbench.errors import UsageError

_DEFAULT = Path("report.html")
_FOLDER = Path("reports")
_PAGES = (".html", ".htm")


@click.command("report", cls=Command, section="Share", order=1)
@click.argument(
    "bundles", metavar="[BUNDLE]...", type=click.Path(path_type=Path), required=False, nargs=-1
)
@click.option(
    "--template",
    default="incident",
    show_default=True,
    help="Name, or path of a notebook, a percent script or a folder of your own.",
)
@click.option(
    "-p",
    "--parameter",
    "parameters",
    type=(str, str),
    multiple=True,
    metavar="NAME VALUE",
    help="Set a parameter of the template; may be repeated.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Where the file goes, report.html by default; for many bundles a folder, reports.",
)
@click.option(
    "--jobs", type=click.IntRange(1), default=1, show_default=True, help="Reports at a time."
)
@click.option(
    "--resume/--no-resume",
    default=None,
    help="Keep a complete page made from the same inputs; on for many bundles.",
)
@click.option(
    "--templates", "as_list", is_flag=True, help="List the templates and what they take, and stop."
)
@click.option(
    "--extract",
    "page",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="REPORT",
    help="Write the findings that a report carries instead; -o names the file, else stdout.",
)
@code_options
@json_option
def command(
    bundles: tuple[Path, ...],
    template: str,
    parameters: tuple[tuple[str, str], ...],
    output: Path | None,
    jobs: int,
    resume: bool | None,
    as_list: bool,
    page: Path | None,
    step: str | None,
    trust: str | None,
    as_json: bool,
) -> None:
    """Write a report of BUNDLE as one HTML file.

    Without BUNDLE it takes the newest below the current directory. Of many bundles it makes one
    each, into a folder, with a page that lists them; a folder of bundles stands for all in it.
    """
    if page is not None:
        extract(page, output)
        return
    # The public name goes first: it says in one paragraph which extra is missing.
    make = workbench.report
    if as_list:
        _list_templates(as_json)
        return
    from workbench.reports import find_template, read_parameters

    found = find_template(template)
    code: dict[str, Any] = {"step": step, "trust": trust}
    values = read_parameters(template, dict(parameters))
    if not found.bundles:  # about something else than bundles; a word names its folder
        chosen, many = _no_bundles(found, bundles, values), False
    else:
        chosen = _bundles(bundles) or [newest_bundle(None)]
        many = len(chosen) > found.bundles or _is_folder(bundles)
    if many:
        _make_many(chosen, template, output, values, code, (jobs, resume is not False), as_json)
        return
    target = _target(output, chosen[0] if chosen else Path(f"{found.name}.bundle"))
    if resume and _is_there(chosen, template, values, code, target):
        note(f"Kept, made before from the same inputs: {target}")
    else:
        _announce(chosen if found.bundles else [], trust)
        try:
            make(chosen, template, target, values, step=step, trust=trust, progress=note)
        except KeyboardInterrupt as stop:
            note(f"Stopped. What ran is in {str(target)!r}.")
            raise click.exceptions.Exit(getattr(stop, "exit_code", 130)) from stop
    if as_json:
        shown = {"bundle": str(chosen[0]) if chosen else None, "report": str(target)}
        emit({"schema": "workbench.report-file/1", **shown})
    else:
        say(str(target))


def _no_bundles(found: Any, given: tuple[Path, ...], values: dict[str, Any]) -> list[Path]:
    """What was given to a template that takes no bundle; one folder is its ``directory``."""
    if len(given) == 1 and "directory" in found.parameters and "directory" not in values:
        values["directory"] = str(given[0])
        return []
    return list(given)


def _bundles(given: tuple[Path, ...]) -> list[Path]:
    """The bundles given; a folder that is none stands for the bundles in it."""
    from workbench.evidence import find_bundles

    chosen: list[Path] = []
    for path in given:
        chosen += find_bundles(path) if _is_folder((path,)) else [path]
    return list(dict.fromkeys(chosen))


def _is_folder(given: tuple[Path, ...]) -> bool:
    """Whether one of them is a folder of bundles and no bundle."""
    from workbench.evidence import find_bundles

    return any(
        path.is_dir() and not (path / "manifest.json").exists() and bool(find_bundles(path))
        for path in given
    )


def _announce(chosen: list[Path], trust: str | None) -> None:
    from workbench.evidence import open_bundle

    for path in chosen:
        announce_source(open_bundle(path), trust)


def _target(output: Path | None, bundle: Path) -> Path:
    if output is None:
        return _DEFAULT
    if output.is_dir():
        return output / f"{bundle.name.removesuffix('.zip').removesuffix('.bundle')}.html"
    return output


def _is_there(
    chosen: list[Path], template: str, values: dict[str, Any], code: dict[str, Any], target: Path
) -> bool:
    from workbench.reports.batch import is_made
    from workbench.reports.run import prepare

    return is_made(target, prepare(chosen, template, values, **code).inputs)


def _make_many(
    chosen: list[Path],
    template: str,
    output: Path | None,
    values: dict[str, Any],
    code: dict[str, Any],
    how: tuple[int, bool],
    as_json: bool,
) -> None:
    from workbench.reports import report_batch

    if output is not None and (output.suffix.lower() in _PAGES or output.is_file()):
        raise UsageError(
            f"{len(chosen)} bundles were given, and {str(output)!r} is the name of one file, so "
            "nothing was run. Name a folder with -o, or give one bundle; the template "
            "incident-comparison is about two."
        )
    folder = output or _FOLDER
    jobs, resume = how
    done = report_batch(
        chosen, template, folder, values, **code, jobs=jobs, resume=resume, progress=note
    )
    if as_json:
        emit(done.to_data())
    else:
        rows = [
            (
                made.state,
                made.bundle.name,
                str(made.output) if made.output.exists() else "–",
                made.reason or made.headline,
            )
            for made in done.reports
        ]
        for line in table(rows):
            say(line)
        say(str(done.index))
    if done.interrupt is not None:
        raise click.exceptions.Exit(getattr(done.interrupt, "exit_code", 130))
    if done.exit_code:
        raise click.exceptions.Exit(done.exit_code)


def _list_templates(as_json: bool) -> None:
    from workbench.reports import find_template
    from workbench.reports.templates import names

    found = [find_template(name) for name in names()]
    if as_json:
        rows = [
            {
                "name": one.name,
                "path": str(one.path),
                "bundles": one.bundles,
                "parameters": {
                    p.name: {"type": p.type, "default": p.default, "help": p.help}
                    for p in one.parameters.values()
                },
            }
            for one in found
        ]
        emit({"schema": "workbench.templates/1", "templates": rows})
        return
    for one in found:
        say(f"{one.name}  {one.path}")
        parameters = [(p.name, p.type, p.default, p.help) for p in one.parameters.values()]
        for line in table(parameters, indent="  "):
            say(line)
