"""What holds bad values now, in sentences: the line ``Reach`` after a diagnosis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from workbench.evidence.wording import clean, joined, plurals

BEFORE_UPDATE: Final = frozenset(
    {"input", "forward", "loss", "backward", "reduce", "unscale", "clip"}
)
"""Stages whose ops run before any parameter is written by an optimizer."""
_WORDS: Final = {
    "parameters": "parameter",
    "optimizer_state": "optimizer state",
    "buffers": "buffer",
    "checkpoints": "checkpoint",
}


def contaminated(
    contamination: Mapping[str, Any], bad: Mapping[str, Any] | None, withheld: bool | None
) -> str:
    """Say what holds bad values.

    Args:
        contamination: ``contamination`` of the findings.
        bad: The first bad record, or None.
        withheld: Whether the update of this step was kept from happening; None where it is open.
    """
    held, unknown = [], []
    for key, word in _WORDS.items():
        names = contamination.get(key)
        if names is None and key in contamination:
            unknown.append(word)
        elif isinstance(names, list) and names:
            held.append(f"{word} {joined([clean(name, 60) for name in names], 2)}")
    early = bad is not None and bad.get("stage") in BEFORE_UPDATE
    if held:
        text = f"Bad values in {'; '.join(held)}."
        text += f" Not known: {plurals(unknown)}." if unknown else ""
    elif "parameter" in unknown and early and withheld is True:
        text = (
            "Stopped before the update, so no parameter or optimizer state took it up in this "
            f"step. Not scanned or not recorded: {plurals(unknown)}."
        )
    elif unknown == ["checkpoint"]:
        text = "No parameter, buffer or optimizer state holds a bad value; later checkpoints were "
        text += "not recorded."
    elif unknown:
        text = f"Not known, since not scanned or not recorded: {plurals(unknown)}."
    elif early and withheld is not False:
        text = (
            "Stopped before the update: no parameter, optimizer state or checkpoint holds a bad "
            "value."
        )
    else:
        text = "No parameter, buffer, optimizer state or checkpoint holds a bad value."
    if contamination.get("collective") is True:
        text += " The bad value went through a collective to all ranks."
    return text
