"""What a finite diagnostic run may say: what the failure depends on, never what caused it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from workbench.evidence.wording import joined

_SUBJECTS = {
    "float32 modules": "the precision of these modules",
    "keep samples": "which samples are in the batch",
    "rng": "the random numbers",
}


def condition_words(changed: Mapping[str, Any]) -> str:
    """Changed conditions as they are read: ``autocast off and dtype float64``."""
    if not changed:
        return "the original conditions"
    words = [_condition(key, value) for key, value in changed.items()]
    return joined(words, at_most=len(words))


def _condition(key: str, value: Any) -> str:
    if key == "float32_modules" and value:
        return f"{value_words(value)} in float32"
    return f"{key_words(key)} {value_words(value)}"


def key_words(key: str) -> str:
    """A condition's name as it is read."""
    return key.replace("_", " ")


def value_words(value: Any) -> str:
    """A condition's value as it is read."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return ", ".join("the whole model" if item == "" else str(item) for item in value) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def finite_sentence(
    changed: Mapping[str, Any],
    original_fails: bool,
    idle: Collection[str] = (),
    finite: tuple[int, int] = (1, 1),
) -> str:
    """Say what a finite run under changed conditions shows.

    Args:
        changed: The conditions that differ from the original ones.
        original_fails: Whether the original, run again after it, still failed.
        idle: Conditions that cannot act here: nothing depends on them.
        finite: How many of how many runs were finite.
    """
    with_what = condition_words(changed)
    if not original_fails:
        return (
            f"Finite with {with_what}. The original, run again after it, was finite too, so this "
            "says nothing."
        )
    some, total = finite
    if some < total:
        return (
            f"{some:,} of {total:,} runs finite with {with_what}: not the same each time, so it "
            "settles nothing. The original, run again after them, still failed."
        )
    keys = [key_words(key) for key in changed if key not in idle]
    if not keys:
        return (
            f"Finite with {with_what}, though nothing that was changed can act here: the step does "
            "not do the same each time, so this says nothing."
        )
    if len(keys) == 1:
        on = _SUBJECTS.get(keys[0], keys[0])
        claim = f"{on} is its cause"
    else:
        on, claim = "these conditions together", "they are its cause"
    return f"Finite with {with_what}. The failure depends on {on}; this does not show that {claim}."


def bad_sentence(
    changed: Mapping[str, Any], here: str, *, moved: bool, idle: Collection[str] = ()
) -> str:
    """Say what a run under changed conditions shows that is still bad.

    Args:
        changed: The conditions that differ from the original ones.
        here: Where it was bad, for example ``loss (loss)``.
        moved: Whether that is another stage or tensor than in the record.
        idle: Conditions that cannot act here.
    """
    acting = [key_words(key) for key in changed if key not in idle]
    if not acting:
        return (
            f"Still bad at {here}. Nothing that was changed can act here, so this is the original "
            "run once more and says nothing about what was changed."
        )
    with_what = condition_words(changed)
    if moved:
        return (
            f"Bad elsewhere, at {here}, with {with_what}: it is not finite, and it is not the "
            "recorded failure either."
        )
    if list(changed) == ["keep_samples"]:  # what was kept is enough; what was left out is not tried
        return f"Still bad at {here} with {with_what}: what was kept is enough for the failure."
    alone = "it alone" if len(acting) == 1 else "these alone"
    return f"Still bad at {here} with {with_what}: the failure does not depend on {alone}."


def plain(changed: Mapping[str, Any]) -> dict[str, Any]:
    """Conditions as JSON has them."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in changed.items()}
