"""How sure a replay makes us, in sentences: its verdict, and what the probes did."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from workbench.evidence.wording import clean, joined, number

NOT_REPLAYED: Final = "Not replayed yet."
_NOT_FAILED: Final = frozenset({"not_reproduced", "unverifiable"})
OTHER_RANK: Final = "rank"
"""The sink of a step that ended because another rank raised, was lost, or is out of step."""
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
    "gone": "the failure is gone",
    "moved": "the failure moves elsewhere",
    "benign_skip": "only a scaler skip is left",
    "unchanged": "it fails the same way",
}
_MOST_DIFFERENCES: Final = 3
_ELSEWHERE: Final = {
    "device": "On another device",
    "packages.torch": "With another torch",
    "cpu.model": "On another CPU",
    "cpu.capability": "With other instructions of the CPU",
    "threads.intra_op": "With another number of threads",
}
_PAIR: Final = re.compile(
    r"(?P<field>[\w.]+) differs \(recorded (?P<recorded>.*), here (?P<here>.*)\)"
)


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
        return "Replayed exactly: same loss bits; nothing trips here either."
    if verdict == "not_reproduced" and sink is None:
        return f"Came out otherwise here{_differs(environment)}."
    if verdict == "same_mask":
        distance = "" if max_relative is None else f" by at most {number(max_relative)} (relative)"
        same = "nothing trips here either" if sink is None else "the same elements are non-finite"
        return f"Replayed: {same}; finite values differ{distance}."
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
    if result == "moved" and moved_to:
        return f"It moves to {clean(moved_to, 100)}."
    words = result_words(result)
    return f"{words[:1].upper()}{words[1:]}."


def result_words(result: str) -> str:
    """What a counterfactual showed, within a sentence: ``the failure is gone``."""
    return _RESULTS.get(result, f"result {clean(result, 40)!r}, unknown to this version")


def reproduction_sentence(reproduction: Mapping[str, Any] | None) -> str:
    """The sentence for a replay against the record, with what the probes did to the failure.

    Args:
        reproduction: As in ``workbench.findings/1``; its own ``sentence`` names distance or
            difference and comes first. None where nothing was replayed.
    """
    verdict = (reproduction or {}).get("verdict")
    if reproduction is None or verdict is None:
        return NOT_REPLAYED
    tripped = reproduction.get("tripped") is not False
    text = str(reproduction.get("sentence") or "")
    if not text:
        text = verdict_sentence(str(verdict), sink="" if tripped else None)
        said = [_difference(one) for one in reproduction.get("differences") or []]
        if said and verdict in _NOT_FAILED:
            text = f"{text.partition(':')[0].rstrip('.')}: {'; '.join(said[:_MOST_DIFFERENCES])}."
        elif elsewhere := elsewhere_sentence(reproduction.get("differences") or []):
            text += f" {elsewhere}"
    survives = reproduction.get("survives_instrumentation")
    if survives is None or verdict in _NOT_FAILED:
        return text  # what does not fail without probes cannot stop failing with them
    return f"{text} {survival_sentence(survives is True, tripped=tripped)}"


def _difference(item: Any) -> str:
    """One difference, whether it is a sentence or a pair of recorded and here."""
    if not isinstance(item, Mapping):
        return clean(item, 200)
    field = item.get("field") or item.get("tensor") or item.get("name") or "difference"
    return f"{clean(field, 80)} recorded {_value(item.get('recorded'))}, here " + _value(
        item.get("here")
    )


def elsewhere_sentence(differences: Sequence[Any]) -> str:
    """Say that a replay that failed as recorded did so on another device or machine.

    Args:
        differences: Those of a reproduction, as sentences or as pairs of recorded and here.

    Returns:
        The weightiest one, ``On another device: recorded cuda:0, here cpu.``, or an empty text.
    """
    found = {}
    for item in differences:
        match = None if isinstance(item, Mapping) else _PAIR.fullmatch(str(item))
        pair = item if isinstance(item, Mapping) else match and match.groupdict()
        if pair and str(pair.get("recorded")) != "None":  # what was not recorded may be the same
            found[str(pair.get("field"))] = pair
    for field, words in _ELSEWHERE.items():
        if field in found:
            pair = found[field]
            return f"{words}: recorded {_value(pair['recorded'])}, here {_value(pair['here'])}."
    return ""


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
