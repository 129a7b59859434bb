"""What a sweep teaches, in one closing sentence, whatever its cells came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.evidence.wording import counted, joined

Row = Mapping[str, Any]
_NO_ANSWER = frozenset({"error", "died", "stopped"})
_FINITE = frozenset({"gone", "benign_skip"})


def conclusion(rows: Sequence[Row], findings: Sequence[Row] = ()) -> str:
    """Say what a sweep's cells show together.

    Args:
        rows: Its rows; the first is the original.
        findings: What its finite cells show; ``original_after`` is how the original ended when it
            was run again after one.
    """
    if not rows:
        return "Nothing was run, so nothing was learnt."
    original, others = rows[0], rows[1:]
    if original["result"] in _NO_ANSWER:
        return (
            f"The original came to no answer here ({original['error']}), so nothing can be "
            "compared with it."
        )
    if original["result"] in _FINITE:
        return "The original is finite here, so a finite cell says nothing about the failure."
    if original["result"] == "varies":
        return "The original does not do the same each time here, so no cell settles anything."
    acting = [row for row in others if not _all_idle(row)]
    finite = [row for row in acting if row["result"] in _FINITE]
    if finite:
        said = _finite(finite, acting) + _original_again(findings)
    else:
        said = _not_finite(original, acting, others)
    return said + _left_out(acting)


def _all_idle(row: Row) -> bool:
    return bool(row["changed"]) and set(row["changed"]) <= set(row["without_effect"])


def _names(rows: Sequence[Row]) -> str:
    return joined([str(row["name"]) for row in rows], at_most=6)


def _finite(finite: Sequence[Row], acting: Sequence[Row]) -> str:
    still = [row for row in acting if row["result"] in ("unchanged", "moved")]
    said = f"Finite with {len(finite):,} of {counted(len(acting), 'change')}: {_names(finite)}."
    if still:
        said += f" It is still bad with {_names(still)}."
    return f"{said} What the failure depends on is narrowed down by that; nothing is repaired."


def _original_again(findings: Sequence[Row]) -> str:
    after = [one["original_after"] for one in findings]
    finite = sum(one["tensor"] is None for one in after)
    if not after:
        return ""
    if finite:
        return (
            f" The original, run again after each finite run, was finite {counted(finite, 'time')} "
            f"of {len(after):,}, so nothing is settled."
        )
    each = "it" if len(after) == 1 else "each of them"
    return f" The original, run again after {each}, still failed."


def _not_finite(original: Row, acting: Sequence[Row], others: Sequence[Row]) -> str:
    fails = original["tensor"] is not None
    answered = [row for row in acting if row["result"] not in _NO_ANSWER | {"varies"}]
    if not others:
        end = f"it is bad at {original['stage']}" if fails else "it is finite, as recorded"
        return f"Only the original was run: {end}."
    if not answered:
        return "No change that can act here came to an answer, so nothing was learnt from them."
    if not fails:
        appears = [row for row in answered if row["result"] == "appears"]
        if appears:
            return f"The record is finite, and it turns bad with {_names(appears)}."
        return f"The record is finite, and so is the step with {_names(answered)}."
    moved = [row for row in answered if row["result"] == "moved"]
    kept = [row for row in answered if set(row["changed"]) == {"keep_samples"}]
    if kept and len(kept) == len(answered):
        return f"It is not finite with {_names(kept)} either: what was kept is enough for it."
    said = (
        f"No change made it finite: it does not depend on any one of {_names(answered)} alone."
        if len(answered) > 1
        else f"It is not finite with {_names(answered)} either: it does not depend on that alone."
    )
    return said + (f" With {_names(moved)} it is bad elsewhere." if moved else "")


def _left_out(acting: Sequence[Row]) -> str:
    unsure = [row for row in acting if row["result"] in _NO_ANSWER | {"varies"}]
    return f" No answer from {_names(unsure)}." if unsure else ""
