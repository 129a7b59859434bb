"""What ``torchrun … -m workbench replay`` prints: one table of all ranks, by the first of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from workbench.cli.options import require_code
from workbench.cli.output import emit, note, say, table
from workbench.errors import WorkbenchError

if TYPE_CHECKING:
    from pathlib import Path

_GLYPHS = {"clean": "✓", "bad": "✕", "alert": "!", "skip": "✓", "not_run": "·", "unavailable": "–"}


def replay_together(
    bundle: Path,
    step: str | None,
    trust: str | None,
    until: str | None,
    settings: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """Replay every rank of an incident; rank 0 says what all of them found.

    Args:
        bundle: The bundle of any rank.
        step: Reference to the step's code.
        trust: What code named by the bundle may run.
        until: Last stage to run.
        settings: Conditions to change, each ``key=value``.
        as_json: Print ``workbench.replay-ranks/1``.

    Raises:
        WorkbenchError: What was given is wrong, or this rank's step raised, which ends the
            others, too.
        click.exceptions.Exit: The ranks could not begin; with the worst exit code of theirs.
    """
    from workbench.evidence import open_bundle, parse_setting
    from workbench.replay.together import run_ranks

    try:
        changes = dict(parse_setting(text) for text in settings)
        require_code(open_bundle(bundle), step, trust)
        data = run_ranks(
            bundle, step, trust, until, changes, lambda found: _print(found, as_json=as_json)
        )
    except WorkbenchError as error:
        raise type(error)(f"{error}\n{_code(error.exit_code)}") from error
    if data["exit_code"]:
        raise click.exceptions.Exit(data["exit_code"])


def _code(code: int) -> str:
    """The last line: torchrun ends with 1 whatever its ranks end with."""
    return f"Worst exit code of the ranks: {code}" + (" (torchrun ends with 1)." if code else ".")


def _print(data: Mapping[str, Any], *, as_json: bool) -> None:
    if data["refused"] is not None:
        note(str(data["refused"]))
    elif as_json:
        emit(data)
    else:
        _print_table(data)
    note(_code(data["exit_code"]))


def _print_table(data: Mapping[str, Any]) -> None:
    from workbench.evidence import clean
    from workbench.evidence.verdicts import verdict_sentence

    say(f"{_headline(data)}, {data['world']} ranks together ({data['backend']})")
    rows = [("rank", "verdict", "recorded", "here", "loss", "stages")]
    rows += [_cells(row) for row in data["ranks"]]
    for line in table(rows, indent="  "):
        say(line)
    for row in data["ranks"]:
        if row["verdict"] is not None:
            bad = row["recorded"]
            said = verdict_sentence(
                row["verdict"],
                max_relative=row["distance"],
                missing="; ".join(row["unequal"]) or None,
                sink=None if bad is None else "",
            )
            why = clean("; ".join(row["unequal"]), 300)
            told = f" ({why})" if why and row["verdict"] != "unverifiable" else ""
            say(f"Rank {row['rank']}: {said}{told}")
    for line in _conclusions(data):
        say(line)


def _headline(data: Mapping[str, Any]) -> str:
    if not data["diagnostic"]:
        return "● Original conditions"
    from workbench.diagnose.dependence import condition_words

    return f"◇ Diagnostic: {condition_words(data['changed'])}"


def _conclusions(data: Mapping[str, Any]) -> list[str]:
    from workbench.diagnose.dependence import finite_sentence

    lines = list(data["said"])
    ranks = data["ranks"]
    idle = {one["key"]: one["why"] for row in ranks for one in row["without_effect"]}
    lines += [f"{key}: {why}" for key, why in idle.items()]
    after = [row["original_after"] for row in ranks if "original_after" in row]
    if after:
        fails = [one for one in after if one["first_bad"] is not None]
        ends = "finite too" if not fails else f"still bad on {len(fails)} of {len(after)} ranks"
        lines.append(f"Original, run again after it: {ends}.")
        lines.append(finite_sentence(data["changed"], bool(fails), list(idle)))
    elif data["diagnostic"]:
        bad = [str(row["rank"]) for row in ranks if row["first_bad"] is not None]
        lines.append(f"Still bad on rank {', '.join(bad)}.")
    return lines


def _cells(row: Mapping[str, Any]) -> tuple[str, str, str, str, str, str]:
    from workbench.evidence import clean
    from workbench.evidence.wording import number

    recorded, here = row["recorded"], row["first_bad"]
    there = "nothing" if recorded is None else f"{recorded['tensor']} at {recorded['stage']}"
    if recorded is not None and row["recorded_rank"] != row["rank"]:
        there = f"finite (rank {row['recorded_rank']} tripped)"
    now = "nothing bad" if here is None else f"{here['tensor']} at {here['stage']}"
    loss = "–" if row["loss"] is None else number(row["loss"])
    stages = "".join(_GLYPHS.get(one["status"], "?") for one in row["stages"])
    verdict = row["verdict"] or "–"
    return str(row["rank"]), verdict, clean(there, 60), clean(now, 60), loss, stages
