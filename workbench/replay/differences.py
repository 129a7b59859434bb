"""What differs between the record and here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.evidence import environment, environment_differences
from workbench.evidence.wording import clean, counted
from workbench.replay.settings import applied
from workbench.step.hooks import lacking

if TYPE_CHECKING:
    from torch import nn

    from workbench.evidence import Conditions
    from workbench.replay.source import Source

_NAMED = 3
"""Hooks that are named."""
LONGEST = 120
"""Characters of a recorded value that are shown: bundles are untrusted."""

Row = dict[str, Any]
"""``{"field", "recorded", "here"}``, as ``environment_differences`` gives it."""


def differences(source: Source, here: Conditions) -> list[Row]:
    """List what differs: conditions first, then the environment by field.

    Args:
        source: The record.
        here: The conditions nearest to the recorded ones on this machine.
    """
    rows = [
        {"field": name, "recorded": getattr(source.recorded, name), "here": value}
        for name, value in source.recorded.changes(here).items()
        # CUDA's own rules on another device: the device is what differs
        if value != "cuda-policy"
    ]
    for row in rows:
        if row["field"] == "device":
            row["recorded"] = _device_name(source) or row["recorded"]
    return rows + _environment(source, here)


def missing(source: Source, here: Conditions) -> list[str]:
    """List what cannot be replayed or repeated here, one sentence a reason."""
    by_reason: dict[str, list[str]] = {}
    for stage, reason in source.unavailable().items():
        by_reason.setdefault(reason, []).append(stage)
    found = [f"{', '.join(stages)} not available: {why}" for why, stages in by_reason.items()]
    if source.state.rng.cuda and here.device == "cpu":
        found.append("random numbers of the CUDA generator cannot be continued on the CPU")
    return found


def in_words(rows: Sequence[Row]) -> list[str]:
    """Say each difference in a plain sentence."""
    return [
        f"{row['field']} differs (recorded {_short(row['recorded'])}, here {_short(row['here'])})"
        for row in rows
    ]


def hooks_in_words(source: Source, model: nn.Module) -> list[str]:
    """Say which hooks of the recorded model the replayed one lacks; nothing where it lacks none.

    Args:
        source: The record.
        model: The replayed model, after its forward.
    """
    state = source.state.model
    found = [] if state is None else lacking(state, model)
    if not found:
        return []
    named = [
        f"{clean(name, LONGEST)} on {repr(clean(path, LONGEST)) if path else 'the model itself'}"
        for path, name in dict.fromkeys(found)
    ]
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    hooks = counted(len(found), "hook")
    return [
        f"The model built here lacks {hooks} of the recorded one: {', '.join(named[:_NAMED])}{more}"
    ]


def _environment(source: Source, here: Conditions) -> list[Row]:
    if not source.environment:
        return []
    # settings that the replay itself puts in place do not differ
    with applied(here, source.recorded):
        now = environment()
    return environment_differences(source.environment, now)


def _device_name(source: Source) -> str | None:
    devices = source.environment.get("devices")
    if source.recorded.device == "cpu" or not isinstance(devices, list) or not devices:
        return None
    first = devices[0]
    name = first.get("name") if isinstance(first, Mapping) else None
    return name if isinstance(name, str) else None


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
