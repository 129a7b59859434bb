"""``workbench inspect``: what a bundle holds; runs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from workbench.cli.command import Command
from workbench.cli.options import bundle_argument, json_option
from workbench.cli.output import emit, say, table

if TYPE_CHECKING:
    from pathlib import Path

    from workbench.evidence import Bundle


@click.command("inspect", cls=Command, section="Look", order=2)
@bundle_argument
@json_option
def command(bundle: Path, as_json: bool) -> None:
    """Show what BUNDLE recorded and what it can replay; runs no code."""
    from workbench.evidence import open_bundle

    opened = open_bundle(bundle)
    if as_json:
        emit(_facts(opened))
        return
    for line in _lines(opened):
        say(line)


def _facts(bundle: Bundle) -> dict[str, Any]:
    import msgspec

    manifest: dict[str, Any] = msgspec.to_builtins(bundle.manifest)
    return {
        "schema": "workbench.inspect/1",
        "path": str(bundle.path),
        "digest": bundle.digest,
        "manifest": manifest,
        "summary": _summary(bundle),
        "ledger_records": len(bundle.ledger()),
    }


def _lines(bundle: Bundle) -> list[str]:
    from workbench.evidence import byte_size, clean

    manifest = bundle.manifest
    sealed = "sealed" if bundle.sealed else "incomplete: its writing did not come to its end"
    total = sum(entry.size for entry in manifest.files.values())
    step = manifest.step_reference
    rows = [
        ("Bundle", f"{clean(bundle.path)} ({byte_size(total)}, {sealed})"),
        ("Run", clean(f"{manifest.run_id}, step {manifest.step:,}, rank {manifest.rank}")),
        ("Recorded", clean(f"{manifest.created} by {manifest.created_by}")),
        ("Kind", clean(f"{bundle.kind} {bundle.fingerprint}")),
        ("Step code", clean(step.reference or "none recorded", 200)),
        ("Digest", bundle.digest),
    ]
    lines = [*_summary(bundle), "", *table(rows)]
    lines += ["", "Replay", *table(_goals(bundle), indent="  ")]
    lines += ["", "Conditions", *table(_conditions(bundle), indent="  ")]
    files = [(rel, byte_size(entry.size)) for rel, entry in manifest.files.items()]
    lines += ["", "Files", *table(files, indent="  ")]
    lines += [f"  {clean(rel)}: left out, {clean(why)}" for rel, why in manifest.dropped.items()]
    return lines + [f"Note: {clean(text, 300)}" for text in manifest.notes]


def _summary(bundle: Bundle) -> list[str]:
    """The five lines: of the findings saved beside the bundle, else of the record alone."""
    from workbench.diagnose import Findings
    from workbench.errors import BundleError
    from workbench.evidence import clean, summary_facts, summary_lines

    try:
        saved = Findings.load(bundle)
    except BundleError:  # what lies beside the bundle is not the bundle
        saved = None
    if saved is None or not saved.replayed:
        return summary_lines(summary_facts(bundle))
    return [clean(line, 600) for line in saved.summary]


def _goals(bundle: Bundle) -> list[tuple[str, str]]:
    from workbench.evidence import clean

    return [(clean(goal, 40), clean(state)) for goal, state in bundle.completeness.items()]


def _conditions(bundle: Bundle) -> list[tuple[str, str]]:
    """Those that differ from the defaults, and the device."""
    from workbench.evidence import Conditions

    changed = Conditions().changes(bundle.conditions)
    shown = {"device": bundle.conditions.device} | changed
    return [(key, _word(value)) for key, value in shown.items()]


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
