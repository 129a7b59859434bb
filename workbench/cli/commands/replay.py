"""``workbench replay``: run the recorded step again, as it was or under changed conditions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from workbench.cli.command import Command
from workbench.cli.options import bundle_argument, code_options, json_option, require_code
from workbench.cli.output import emit, note, say, table

if TYPE_CHECKING:
    from pathlib import Path

    from workbench.evidence import Bundle, Conditions
    from workbench.evidence.schema import FirstBad
    from workbench.replay import RunResult

_GLYPHS = {"clean": "✓", "bad": "✕", "alert": "!", "not_run": "·", "unavailable": "–"}


@click.command("replay", cls=Command, section="Run", order=1)
@bundle_argument
@click.option("--until", metavar="STAGE", help="Last stage to run.")
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="Change one condition, for example autocast=off; may be repeated.",
)
@code_options
@json_option
def command(
    bundle: Path,
    until: str | None,
    settings: tuple[str, ...],
    step: str | None,
    trust: str | None,
    as_json: bool,
) -> None:
    """Replay the step of BUNDLE under its own or under changed conditions.

    Exits 0 whatever the replay finds. Started by torchrun, all ranks of the incident are replayed
    together; the worst exit code of theirs is in the last line, since torchrun ends with 1.
    """
    from workbench.evidence import open_bundle

    if _under_torchrun():
        from workbench.cli.replay_ranks import replay_together

        replay_together(bundle, step, trust, until, settings, as_json=as_json)
        return
    opened = open_bundle(bundle)
    wanted = _conditions(opened, settings)
    require_code(opened, step, trust)
    from workbench.replay import Replay  # loads torch, which no refusal needs

    replay = Replay(opened, step=step, trust=trust, progress=_progress)
    result = replay.run(until=until, conditions=wanted)
    data = result.to_data()
    if result.diagnostic:
        if result.first_bad is None:
            # A finite diagnostic run says little unless the original still fails after it.
            data["original_after"] = _brief(replay.run(until=until, conditions=replay.nearest))
    elif until is None:
        data["reproduction"] = replay.verdict().to_data()
        data["verdict"] = data["reproduction"]["verdict"]
    if as_json:
        emit(data)
    else:
        _print(result, data, opened.first_bad)


def _under_torchrun() -> bool:
    if "TORCHELASTIC_RUN_ID" not in os.environ:  # nobody waits for torch to learn that
        return False
    from workbench.replay.together import under_torchrun

    return under_torchrun()


def _conditions(bundle: Bundle, settings: tuple[str, ...]) -> Conditions | None:
    from workbench.evidence import parse_setting

    changes = dict(parse_setting(text) for text in settings)
    return bundle.conditions.replace(**changes) if changes else None


def _progress(event: dict[str, Any]) -> None:
    if event.get("event") == "stage_begun":
        note(f"{event['stage']} …")


def _brief(result: RunResult) -> dict[str, Any]:
    return {"verdict": result.verdict, "first_bad": result.first_bad, "loss": result.loss}


def _print(result: RunResult, data: dict[str, Any], recorded: FirstBad | None) -> None:
    if result.diagnostic:
        from workbench.diagnose.dependence import condition_words

        say(f"◇ Diagnostic: {condition_words(result.changed)}")
    else:
        say("● Original conditions")
    rows = [
        (_GLYPHS.get(stage["status"], "?"), stage["stage"], stage["sentence"])
        for stage in data["stages"]
    ]
    for line in table(rows, indent="  "):
        say(line)
    for line in _conclusions(result, data, recorded):
        say(line)


def _conclusions(result: RunResult, data: dict[str, Any], recorded: FirstBad | None) -> list[str]:
    from workbench.diagnose.dependence import bad_sentence, finite_sentence

    lines = [f"{item['key']}: {item['why']}" for item in result.without_effect]
    lines += result.notes
    idle = [item["key"] for item in result.without_effect]
    after, bad = data.get("original_after"), result.first_bad
    if after is not None:
        lines.append(_after(after, data))
        fails = after["first_bad"] is not None
        lines.append(finite_sentence(result.changed, fails, idle))
    elif result.diagnostic and bad is not None:
        place = (bad["stage"], bad["tensor"])
        same = recorded is None or (recorded.stage, recorded.tensor) == place
        here = f"{bad['stage']} ({bad['tensor']})"
        lines.append(bad_sentence(result.changed, here, moved=not same, idle=idle))
    if "reproduction" in data:
        lines.append(data["reproduction"]["sentence"])
    return lines


def _after(after: dict[str, Any], data: dict[str, Any]) -> str:
    skipped = any(stage.get("scaler_skip") for stage in data["stages"])
    here = "The loss is finite; gradients are not, and the scaler will skip. " if skipped else ""
    bad = after["first_bad"]
    ends = "finite too" if bad is None else f"still bad at {bad['stage']} ({bad['tensor']})"
    return f"{here}Original, run again after it: {ends}."
