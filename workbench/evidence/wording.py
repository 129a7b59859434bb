"""Numbers, shapes and names as they stand on screen, in reports and in messages."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

MINUS: Final = "\u2212"
_CONTROL: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]+"
)
_SMALL, _LARGE, _DIGITS = 1e-4, 1e7, 4


def number(value: float | int | None) -> str:
    """A number in words of this package: thousands separators, 4 significant digits.

    >>> number(18342), number(float("-inf")), number(0.00001234567)
    ('18,342', '−Inf', '1.235e-5')
    """
    if value is None:
        return "unknown"
    if isinstance(value, int):
        return f"{value:,}".replace("-", MINUS)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else f"{MINUS}Inf"
    size = abs(value)
    if size == 0:
        return "0"
    if not _SMALL <= size < _LARGE:
        mantissa, _, exponent = f"{value:.{_DIGITS - 1}e}".partition("e")
        text = f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    elif size >= 10 ** (_DIGITS - 1):
        text = f"{value:,.0f}"
    else:
        text = f"{value:.{_DIGITS}g}"
    return MINUS + text[1:] if text.startswith("-") else text


def shape(sizes: Sequence[int] | None) -> str:
    """A shape: ``[8, 128, 768]``."""
    return "unknown shape" if sizes is None else f"[{', '.join(str(int(n)) for n in sizes)}]"


def kind_word(kind: str) -> str:
    """``"nan"``, ``"+inf"``, ``"-inf"`` as they are spelled on screen."""
    return {"nan": "NaN", "+inf": "+Inf", "-inf": f"{MINUS}Inf"}.get(kind, kind)


def count_words(counts: Mapping[str, Any]) -> str:
    """``"1 NaN of 1"``, ``"2 NaN and 3 −Inf of 8,192"``, or ``"all 8,192 finite"``."""
    names = (("nan", "NaN"), ("pos_inf", "+Inf"), ("neg_inf", f"{MINUS}Inf"))
    found = [f"{number(int(counts.get(key, 0)))} {word}" for key, word in names if counts.get(key)]
    total = sum(int(counts.get(key, 0)) for key in ("nan", "pos_inf", "neg_inf", "finite"))
    if not found:
        return f"all {number(total)} finite" if total else "no element"
    return f"{joined(found)} of {number(total)}"


def counted(count: int, word: str, plural: str | None = None) -> str:
    """A number with its noun: ``"1 rank"``, ``"8,192 ranks"``, ``"0 entries"``.

    Args:
        count: How many.
        word: The noun in the singular.
        plural: Its plural; the singular with an s when None.
    """
    return f"{number(count)} {word if count == 1 else plural or f'{word}s'}"


def joined(words: Sequence[str], at_most: int = 3) -> str:
    """``"a, b and c"``; more than ``at_most`` end in ``"and 4 more"``."""
    shown = list(words[:at_most])
    if len(words) > at_most:
        shown.append(f"{number(len(words) - at_most)} more")
    return (
        shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}" if shown else ""
    )


def plurals(words: Sequence[str]) -> str:
    """``"parameters, optimizer state and buffers"``: all of them, each in the plural."""
    return joined([w if w.endswith("state") else f"{w}s" for w in words], len(words))


def clean(text: object, limit: int = 160) -> str:
    """One line without control or direction characters, cut in the middle when too long.

    For every text that came from a bundle or from user code.
    """
    line = _CONTROL.sub(" ", str(text)).strip()
    if len(line) <= limit:
        return line
    half = (limit - 1) // 2
    return f"{line[:half]}…{line[-half:]}"


def command_line(*words: object) -> str:
    """A command of this package, its words quoted: what is printed can be copied and run.

    >>> command_line("verify", "my runs/a.bundle")
    "workbench verify 'my runs/a.bundle'"
    """
    return shlex.join(["workbench", *map(str, words)])


def visible(text: str) -> str:
    """The same text with control and direction characters shown as "\ufffd"; line breaks stay.

    For every text on a page: a name could otherwise reverse what stands beside it.
    """
    return _CONTROL.sub(
        lambda found: "".join(c if c in "\n\t" else "\ufffd" for c in found[0]), text
    )


def byte_size(size: int) -> str:
    """``"3.1 GB"``; decimal units."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size} bytes"


_HELD: Final = {
    "poisoned_batch": "the batch field",
    "poisoned_parameter": "the parameter",
    "poisoned_buffer": "the buffer",
    "poisoned_optimizer_state": "the optimizer state",
    "captured_tensor": "the tensor",
}


def origin_place(origin: Mapping[str, Any]) -> str:
    """Where an origin is: ``loss``, ``blocks.3, backward``; ``the model`` is the outermost module.

    Args:
        origin: A row of the findings' ``origins``.
    """
    if origin.get("where") == "module":
        place = clean(origin.get("module") or "", 90) or "the model"
    else:
        place = clean(origin.get("where") or origin.get("stage") or "an unknown place", 40)
        place = place.replace("_", " ")
    return f"{place}, backward" if origin.get("stage") == "backward" != place else place


def lacking(completeness: str) -> str:
    """What a bundle has not, as a clause: ``the bundle has no batch (kept out by max_bytes)``.

    Args:
        completeness: What a manifest's ``completeness`` says of a goal that is not ``complete``.
    """
    what, _, why = clean(completeness, 200).removeprefix("missing ").partition(": ")
    has = "lacks" if what.startswith("parts ") else "has no"
    return f"the bundle {has} {what}" + (f" ({why.rstrip('.')})" if why else "")


def before_the_step(origin: Mapping[str, Any]) -> str | None:
    """Where an origin's value was before the step began: it was not born in it.

    Returns:
        ``in the parameter head.weight before the step began``; None for what the step made.
    """
    holder = _HELD.get(str(origin.get("kind")))
    if holder is None:
        return None
    tensor = origin.get("tensor")
    name = clean(tensor.get("name") or "", 80) if isinstance(tensor, Mapping) else ""
    name = name.removeprefix("tensor ")  # "the tensor seen at model.py:16" has no other name
    return f"in {holder}{f' {name}' if name else ''} before the step began"
