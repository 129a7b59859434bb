"""``workbench diagnose``: where the bad value was born, why, and how sure that is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from workbench.cli.command import Command
from workbench.cli.findings_text import answer_lines, findings_lines
from workbench.cli.options import (
    announce_source,
    bundle_argument,
    code_options,
    code_words,
    json_option,
    require_code,
)
from workbench.cli.output import note, say
from workbench.evidence.wording import counted

if TYPE_CHECKING:
    from workbench.diagnose import Findings
    from workbench.evidence import Bundle

_LINES = 15


@click.command("diagnose", cls=Command, section="Look", order=4)
@bundle_argument
@click.option(
    "--require",
    type=click.Choice(["replay"]),
    help="Exit 4 when the step's code cannot be run, instead of answering from the record alone.",
)
@click.option("--anomaly", is_flag=True, help="Ask autograd's anomaly mode too, on the replay.")
@click.option(
    "--checkpoints",
    "checkpoints",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIRECTORY",
    help="Quarantine checkpoints in DIRECTORY that were saved after the incident, where it cannot "
    "be reproduced or persists in float32 or bfloat16.",
)
@click.option("--full", is_flag=True, help="Print everything that was found.")
@code_options
@json_option
def command(
    bundle: Path,
    require: str | None,
    anomaly: bool,
    checkpoints: Path | None,
    full: bool,
    step: str | None,
    trust: str | None,
    as_json: bool,
) -> None:
    """Find where BUNDLE's bad value was born.

    Without the step's code it answers what the record supports. Exits 0 whatever it finds. No
    checkpoint's state is changed unless --checkpoints names their directory.
    """
    from workbench.evidence import open_bundle

    opened = open_bundle(bundle)
    if require == "replay":
        require_code(opened, step, trust)
    else:
        announce_source(opened, trust)
    from workbench.diagnose import diagnose  # loads torch, which no refusal needs
    from workbench.diagnose.answers import five_answers
    from workbench.evidence.made import made_sentence

    findings = diagnose(
        opened, step=step, trust=trust, require=require, progress=note, anomaly=anomaly
    )
    earlier = None if findings.replayed else _earlier(opened)
    if earlier is not None:
        label = made_sentence(opened)
        note(
            "The step's code was not run now. Shown are the findings saved by an earlier diagnosis"
            f"{f', {label}' if label else ''}."
        )
        findings = earlier
    if checkpoints is not None:
        _doubt(opened, findings, checkpoints, step, trust)
    saved = None if earlier is not None else save(findings, opened.findings_dir)
    if as_json:
        say(findings.to_json())
        return
    answers = five_answers(opened, findings, path=str(bundle), code=code_words(step, trust))
    lines = [*findings.summary, *answer_lines(answers, full=full), *findings_lines(findings.data)]
    if saved:
        lines.append(f"Saved in {saved}")
    shown = lines if full or len(lines) <= _LINES else [*lines[: _LINES - 1], _more(lines)]
    for line in shown:
        say(line)


def _doubt(
    bundle: Bundle, findings: Findings, directory: Path, step: str | None, trust: str | None
) -> None:
    """Tell the states of checkpoints what was found, and say what that changed."""
    from workbench.checkpoints import Registry
    from workbench.diagnose.checkpoint_doubt import doubt_of

    found = doubt_of(bundle, findings, step, trust, note)
    registry, changed = Registry(directory), []
    if found.reason is not None and bundle.first_bad is not None:
        changed = registry.diagnosed(bundle.first_bad.step, found.reason)
    what = f"quarantined {', '.join(changed)}" if changed else "no state was changed"
    note(f"Checkpoints in {str(directory)!r}: {found.sentence} So {what}.")


def _earlier(bundle: Bundle) -> Findings | None:
    """Findings of an earlier replay of exactly this bundle; they are not replaced by less."""
    from workbench.diagnose import Findings
    from workbench.errors import BundleError

    try:
        found = Findings.load(bundle)
    except BundleError:
        return None
    return found if found is not None and found.replayed else None


def _more(lines: list[str]) -> str:
    return f"… {counted(len(lines) - _LINES + 1, 'more line')} with --full."


def save(findings: Findings, directory: Path) -> Path | None:
    """Save findings beside the bundle; a read-only place is no reason to lose the answer."""
    try:
        findings.save(directory)
    except OSError as error:
        note(f"The findings were not saved in {str(directory)!r}: {error}.")
        return None
    return directory
