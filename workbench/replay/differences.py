"""What differs between the record and here, in plain sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.evidence import Conditions
    from workbench.replay.source import Source

LONGEST = 120
"""Characters of a recorded value that are shown: bundles are untrusted."""


def differences(source: Source, here: Conditions) -> list[str]:
    """List what differs: conditions first, then the environment by field, then what is missing.

    Args:
        source: The record.
        here: The conditions nearest to the recorded ones on this machine.
    """
    found = [
        f"{name} differs (recorded {_short(getattr(source.recorded, name))}, here {_short(value)})"
        for name, value in source.recorded.changes(here).items()
    ]
    found += _environment(source)
    missing: dict[str, list[str]] = {}
    for stage, reason in source.unavailable().items():
        missing.setdefault(reason, []).append(stage)
    found += [f"{', '.join(stages)} not available: {why}" for why, stages in missing.items()]
    return found


def _environment(source: Source) -> list[str]:
    if not source.environment:
        return []
    from workbench.evidence import environment, environment_differences

    rows: list[dict[str, Any]] = environment_differences(dict(source.environment), environment())
    return [
        f"{row['field']} differs (recorded {_short(row['recorded'])}, here {_short(row['here'])})"
        for row in rows
    ]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
