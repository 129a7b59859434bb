"""How sure a replay makes us, in sentences: its verdict, and what the probes did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from workbench.evidence.wording import clean, joined, number

_VERDICTS: Final = {
    "bitwise": "Replayed exactly: same loss bits, same non-finite values.",
    "same_class": (
        "Replayed in kind: the same tensor goes non-finite in the same way, at other positions."
    ),
    "same_alert": "Replayed: the same alert, all values finite.",
}

_UP_TO_REDUCTION: Final = {
    "bitwise": (
        "Replayed up to the reduction: same loss bits; the reduced gradients are those recorded, "
        "not computed again."
    ),
    "same_mask": (
        "Replayed up to the reduction, with other bits; the reduced gradients are those recorded, "
        "not computed again."
    ),
    "same_class": (
        "Replayed up to the reduction, with other values; the reduced gradients are those "
        "recorded, not computed again."
    ),
}

_RESULTS: Final = {
    "gone": "The failure is gone.",
    "benign_skip": "Only a scaler skip is left.",
    "unchanged": "It fails the same way.",
}


def verdict_sentence(
    verdict: str,
    *,
    max_relative: float | None = None,
    environment: Sequence[Mapping[str, Any]] = (),
    missing: str | None = None,
    sink: str | None = "",
    put_in: bool = False,
) -> str:
    """The sentence for a verdict of a replay.

    Args:
        verdict: One of the six verdicts.
        max_relative: Largest relative difference, for ``same_mask``.
        environment: Differences, for ``not_reproduced``.
        missing: What the bundle lacks, for ``unverifiable``.
        sink: Which kind of sink tripped in the record; None where nothing did.
        put_in: Whether the reduced gradients were put in from the record, so that what was
            computed again ends before the reduction.
    """
    if put_in and verdict in _UP_TO_REDUCTION:
        return _UP_TO_REDUCTION[verdict]
    if verdict == "bitwise" and sink == "exception":
        return "Replayed exactly: the same type of exception, raised in the same stage."
    if verdict == "bitwise" and sink == "alert":
        return "Replayed exactly: the same loss bits, and so the same alert."
    if verdict == "bitwise" and sink is None:
        return f"{_VERDICTS['bitwise'][:-1]}; nothing trips here either."
    if verdict == "not_reproduced" and sink is None:
        return f"Came out otherwise here{_differs(environment)}."
    if verdict == "same_mask":
        distance = "" if max_relative is None else f" by at most {number(max_relative)} (relative)"
        return f"Replayed: the same elements are non-finite; finite values differ{distance}."
    if verdict == "not_reproduced":
        return f"Did not fail here. That does not clear the step{_differs(environment)}."
    if verdict == "unverifiable":
        return f"Cannot be checked here: {missing or 'the bundle lacks what a replay needs'}."
    return _VERDICTS.get(verdict, f"Verdict {clean(verdict, 40)!r}, unknown to this version.")


def result_sentence(result: str, moved_to: str | None = None) -> str:
    """The sentence for what a counterfactual showed.

    Args:
        result: ``gone``, ``moved``, ``benign_skip`` or ``unchanged``.
        moved_to: Where a failure that moved is caught now.
    """
    if result == "moved":
        return (
            f"It moves to {clean(moved_to, 100)}." if moved_to else "The failure moves elsewhere."
        )
    return _RESULTS.get(result, f"Result {clean(result, 40)!r}, unknown to this version.")


def survival_sentence(survives: bool, *, tripped: bool = True) -> str:
    """What the probes of a traced replay did.

    Args:
        survives: Whether the traced replay ended as the record did.
        tripped: Whether anything had tripped in the step; where nothing did, nothing fails.
    """
    if not tripped:
        return "The same with probes on." if survives else "With probes on it ends otherwise."
    if survives:
        return "Still fails with probes on."
    return (
        "Stops failing with probes on. What follows comes from a run that did not fail: a hint, "
        "not evidence."
    )


def _differs(environment: Sequence[Mapping[str, Any]]) -> str:
    said = [
        f"{clean(d.get('field', ''), 40)} differs (recorded {_value(d.get('recorded'))}, here "
        f"{_value(d.get('here'))})"
        for d in environment
    ]
    return f": {joined(said, 2)}" if said else ""


def _value(value: Any) -> str:
    return "nothing" if value is None else clean(value, 40)


def said_missing(reproduction: Mapping[str, Any]) -> str | None:
    """What a replay itself said it lacked: other ranks, for one."""
    differences = reproduction.get("differences")
    if reproduction.get("verdict") != "unverifiable" or not isinstance(differences, list):
        return None
    return clean("; ".join(str(one) for one in differences[:2]), 300) or None
