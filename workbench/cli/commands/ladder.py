"""``workbench ladder``: the step under eager code and under each compile backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from workbench.cli.command import Command
from workbench.cli.options import bundle_argument, code_options, json_option, require_code
from workbench.cli.output import emit, note, say, table

if TYPE_CHECKING:
    from pathlib import Path


@click.command("ladder", cls=Command, section="Run", order=4)
@bundle_argument
@click.option(
    "--backends",
    metavar="NAMES",
    default="eager,aot_eager,aot_eager_decomp_partition,inductor",
    show_default=True,
    help="Backends of torch.compile, separated by commas, in the order to run.",
)
@click.option(
    "--compiler-search/--no-compiler-search",
    default=True,
    help="Ask torch's compiler bisector when inductor is the first to differ.",
)
@code_options
@json_option
def command(
    bundle: Path,
    backends: str,
    compiler_search: bool,
    step: str | None,
    trust: str | None,
    as_json: bool,
) -> None:
    """Run the step of BUNDLE uncompiled and under compile backends, and say where they part.

    Exits 0 whatever it finds.
    """
    from workbench.evidence import open_bundle

    opened = open_bundle(bundle)
    require_code(opened, step, trust)
    from workbench.diagnose.ladder import ladder  # loads torch, which no refusal needs

    data = ladder(
        opened,
        step,
        trust,
        backends=[name.strip() for name in backends.split(",") if name.strip()],
        search_compiler=compiler_search,
        progress=note,
    ).to_data()
    if as_json:
        emit(data)
        return
    for line in _lines(data):
        say(line)


def _lines(data: dict[str, Any]) -> list[str]:
    rows = [_row(run, data["random_numbers"]) for run in data["reproductions"]]
    lines = table(rows)
    for backend, unlike in data["unaligned"].items():
        names = ", ".join(item["name"] for item in unlike[:5])
        lines.append(f"Not compared: {backend} does not start from the same state ({names})")
    lines += [
        f"Cache did not follow the precision: {cache['name']} ({cache['kind']}) is "
        f"{cache['dtype']}, parameters are {cache['parameters']}"
        for cache in data["stale_caches"]
    ]
    lines += [
        f"Changed trigger: {item['name']} has shape {item['here']}, recorded {item['recorded']}"
        for item in data["changed_trigger"]
    ]
    lines.append(data["conclusion"])
    module = data["first_module"]
    if module and module["module"] is not None:
        lines.append(f"First module to part, compiled alone: {module['module']} ({module['how']})")
    found = data["compiler_bisector"]
    if found:
        known = [
            str(found[k]) for k in ("backend", "subsystem", "debug_info", "why") if found.get(k)
        ]
        lines.append(f"Compiler bisector: {found['status']}, {' · '.join(known)}")
    return [*lines, *data["notes"]]


def _row(run: dict[str, Any], random: dict[str, Any]) -> tuple[str, str, str]:
    name = "uncompiled" if run["backend"] == "off" else run["backend"]
    if run["error"] and run["first_bad"] is None:
        return ("–", name, f"did not run: {run['error']}")
    bad = run["first_bad"]
    text = f"bad at {bad['stage']} ({bad['tensor']})" if bad else "finite"
    part = run["first_parting"]
    if part:
        drawn = random.get(run["backend"], {}).get("agrees")
        text += f"; parts at {part['name']} ({'random numbers' if drawn else part['how']})"
    return ("✕" if bad else "✓", name, text)
