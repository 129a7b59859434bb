"""``workbench report``: one HTML file that opens anywhere, offline."""

from __future__ import annotations

from pathlib import Path

import click

import workbench
from workbench.cli.command import Command
from workbench.cli.extracting import extract
from workbench.cli.options import announce_source, code_options, json_option, newest_bundle
from workbench.cli.output import emit, note, say


@click.command("report", cls=Command, section="Share", order=1)
@click.argument("bundle", type=click.Path(path_type=Path), required=False)
@click.option("--template", default="incident", show_default=True, help="Name or path.")
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
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("report.html"),
    show_default=True,
    help="Where the file goes.",
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
@click.pass_context
def command(
    ctx: click.Context,
    bundle: Path | None,
    template: str,
    parameters: tuple[tuple[str, str], ...],
    output: Path,
    page: Path | None,
    step: str | None,
    trust: str | None,
    as_json: bool,
) -> None:
    """Write a report of BUNDLE as one HTML file.

    Without BUNDLE it takes the newest below the current directory.
    """
    if page is not None:
        named = ctx.get_parameter_source("output") is not click.core.ParameterSource.DEFAULT
        extract(page, output if named else None)
        return
    from workbench.evidence import open_bundle

    chosen = newest_bundle(bundle)
    announce_source(open_bundle(chosen), trust)
    # The public name goes first: it says in one paragraph which extra is missing.
    make = workbench.report
    from workbench.reports import read_parameters

    written = make(
        chosen,
        template=template,
        output=output,
        step=step,
        trust=trust,
        parameters=read_parameters(template, dict(parameters)),
        progress=note,
    )
    if as_json:
        emit({"schema": "workbench.report-file/1", "bundle": str(chosen), "report": str(written)})
    else:
        say(str(written))
