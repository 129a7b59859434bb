"""``workbench bisect``: the block, the part and the op where it went bad, with few runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from workbench.cli.command import Command
from workbench.cli.options import bundle_argument, code_options, json_option, require_code
from workbench.cli.output import emit, note, say, table
from workbench.errors import UsageError
from workbench.evidence.wording import before_the_step, counted, origin_place

if TYPE_CHECKING:
    from pathlib import Path


@click.command("bisect", cls=Command, section="Run", order=3)
@bundle_argument
@click.option(
    "--halve",
    is_flag=True,
    help="Halve over prefixes of the forward instead of scanning it once.",
)
@click.option(
    "--which",
    type=click.Choice(["precision", "remove"]),
    help="Find the blocks that must leave low precision, or be removed, for the step to be finite.",
)
@code_options
@json_option
def command(
    bundle: Path,
    halve: bool,
    which: str | None,
    step: str | None,
    trust: str | None,
    as_json: bool,
) -> None:
    """Find where the step of BUNDLE went bad without tracing all of it.

    Exits 0 whatever it finds.
    """
    from workbench.evidence import open_bundle

    if halve and which is not None:
        raise UsageError(
            f"'--halve' is about finding where, and '--which {which}' always halves, so nothing "
            "was run. Give one of the two."
        )
    opened = open_bundle(bundle)
    require_code(opened, step, trust)
    if which is None:
        from workbench.diagnose.bisect import bisect

        data = bisect(opened, step, trust, halve=halve, progress=note).to_data()
    else:
        from workbench.diagnose.bisect_change import bisect_change

        chosen: Any = which
        data = bisect_change(opened, chosen, step, trust, progress=note).to_data()
    if as_json:
        emit(data)
        return
    for line in _where(data) if which is None else _which(data):
        say(line)


def _where(data: dict[str, Any]) -> list[str]:
    origin = data["origin"]
    lines = ["Nothing non-finite reaches a sink of this step here."]
    if origin is not None:
        held = before_the_step(origin)
        what = origin["op"] or origin["kind"]
        place = origin_place(origin)
        at = "" if place.endswith("backward") else f" · {origin['stage']}"
        lines = [f"Born at {what} in {place}{at}"]
        if held is not None:
            lines = [f"It was {held}"]
        if origin["source"]:
            lines[0] += f" · {origin['source']}"
        block = f"Block {data['block']}" if data["block"] else "In no block"
        lines.append(f"{block}; traced {data['part']}")
    return lines + _runs(data)


def _which(data: dict[str, Any]) -> list[str]:
    lines = [f"Needed: {', '.join(data['needed'])}" if data["needed"] else "No block was found."]
    lines += [f"Cannot be changed: {path}: {why}" for path, why in data["unfit"].items()]
    if data["monotone"]:
        lines.append("Monotone as far as it was run: changing more never brought the failure back.")
    if data["needed"] and data["original_fails"] is not None:
        again = "still fails" if data["original_fails"] else "is finite too: this says nothing"
        lines.append(f"Original, run again after it: {again}.")
    return lines + _runs(data)


def _runs(data: dict[str, Any]) -> list[str]:
    rows = [
        (str(number), probe["what"], probe["result"])
        for number, probe in enumerate(data["probes"], 1)
    ]
    lines = [counted(data["probe_count"], "probe"), *table(rows, indent="  ")]
    if data.get("ops"):
        lines.append(f"Statistics of {data['ops_looked_at']:,} of {counted(data['ops'], 'op')}.")
    return [*lines, *data["notes"]]
