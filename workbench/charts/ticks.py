"""Where plotly puts the ticks of an axis and what it writes at them.

A chart that is drawn before plotly's script is in the page must not change when that draws it, so
the rules are plotly's own (``autoTicks``, ``calcTicks`` and ``numFormat`` of its axes).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from workbench.evidence.wording import number

_ROUND: Final = (2.0, 5.0, 10.0)
_DIGITS: Final = (-0.046, 0, 0.301, 0.477, 0.602, 0.699, 0.778, 0.845, 0.903, 0.954, 1)
_TWO_FIVE: Final = (-0.301, 0, 0.301, 0.699, 1)
_MOST: Final = 1000
_PX: Final = 80
MINUS: Final = "\u2212"
_RAISED: Final = "<sup>"


@dataclass(frozen=True)
class Tick:
    """One tick.

    Attributes:
        place: Where it stands, in the units of the axis's range (log10 on a log axis).
        text: What is written at it, an exponent apart.
        power: An exponent that is written raised; empty without one.
        size: Its letters over the axis's own.
    """

    place: float
    text: str
    power: str = ""
    size: float = 1.0


def decades(low: float, high: float, most: int, *, powers: bool) -> dict[str, Any]:
    """Settings that name powers of ten on a log axis, and nothing between them.

    Plotly itself writes 2 and 5 between the powers where there is little room, and those that it
    writes with an exponent in larger letters than the others.

    Args:
        low: Lower end of the axis.
        high: Its upper end.
        most: At most this many ticks.
        powers: Whether they are written as powers, else as numbers.
    """
    inside = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    step = max(1, math.ceil(len(inside) / most))
    values = [10.0**at for at in inside if at % step == 0]
    if len(inside) < 2:  # less than two powers of ten: 1, 2, 5
        start = math.floor(math.log10(low))
        wanted = (10.0 ** (start + i) * digit for i in (0, 1) for digit in (1, 2, 5))
        values = [value for value in wanted if low <= value <= high][:most]
    texts = [_power(value) if powers else number(value) for value in values]
    return {"tickmode": "array", "tickvals": values, "ticktext": texts}


def _power(value: float) -> str:
    exponent = math.floor(math.log10(value) + 1e-9)
    digit = round(value / 10.0**exponent)
    if exponent in (0, 1):
        return str(digit * 10**exponent)
    return f"{'' if digit == 1 else f'{digit}×'}10{_RAISED}{_signed(exponent)}</sup>"


def ticks_of(axis: dict[str, Any], length: float) -> list[Tick]:
    """The ticks of an axis of a figure's layout.

    Args:
        axis: The axis: ``range``, and where given ``type``, ``nticks``, ``tickformat`` and
            ``exponentformat``, or ``tickvals`` with ``ticktext``.
        length: Its length in pixels.
    """
    low, high = (float(end) for end in axis["range"])
    if "tickvals" in axis:
        return [_given(axis, *one) for one in zip(axis["tickvals"], axis["ticktext"], strict=True)]
    most = axis.get("nticks") or min(max(length / _PX, 4.0), 9.0) + 1
    rough = abs(high - low) / most
    low, high = low - 0.0001 * (high - low), high + 0.0001 * (high - low)
    if axis.get("type") != "log":
        step = _step(rough)
        round_to = (step, max(abs(low), abs(high)))
        places = _even(low, high, step)
        return [_written(at, at, axis, *round_to) for at in places]
    if rough > 0.7:
        return [_decade(at, axis) for at in _even(low, high, float(math.ceil(rough)))]
    if abs(high - low) < 1:
        return _linear_on_log(low, high, rough, axis)
    within = _TWO_FIVE if rough > 0.3 else _DIGITS
    return [
        _decade(at, axis)
        if (at + 0.01) % 1 < 0.1
        else Tick(at, str(round(10 ** (at % 1))), "", 0.75)
        for at in _digits(low, high, within)
    ]


def _given(axis: dict[str, Any], value: float, text: str) -> Tick:
    place = math.log10(value) if axis.get("type") == "log" else value
    base, _, power = text.partition(_RAISED)
    return Tick(place, base, power.removesuffix("</sup>"))


def _step(rough: float) -> float:
    base = 10.0 ** math.floor(math.log10(rough))
    return base * next((one for one in _ROUND if one > rough / base), _ROUND[-1])


def _even(low: float, high: float, step: float) -> list[float]:
    first = math.ceil(low / step)
    count = min(math.floor(high / step) - first + 1, _MOST)
    return [(first + i) * step for i in range(count)]


def _linear_on_log(low: float, high: float, rough: float, axis: dict[str, Any]) -> list[Tick]:
    """Less than a power of ten: even steps of the values themselves."""
    ends = (10.0**low, 10.0**high)
    step = _step((ends[1] - ends[0]) / (1.5 * (high - low) / rough))
    values = [value for value in _even(*ends, step) if value > 0]
    return [_written(math.log10(value), value, axis, step, ends[1]) for value in values]


def _digits(low: float, high: float, within: tuple[float, ...]) -> list[float]:
    found: list[float] = []
    for decade in range(math.floor(low), math.floor(high) + 1):
        digits = {round(10**part, 1) for part in within if 0 <= part < 1}
        found += [decade + math.log10(digit) for digit in sorted(digits)]
    return [at for at in found if low <= at <= high]


def _decade(at: float, axis: dict[str, Any]) -> Tick:
    if axis.get("exponentformat") != "power":
        value = 10.0**at
        return _written(at, value, {**axis, "exponentformat": "none"}, value / 1e4, value)
    exponent = round(at)
    if exponent in (0, 1):
        return Tick(at, "10" if exponent else "1", "", 1.25)
    return Tick(at, "10", _signed(exponent), 1.25)


def _written(at: float, value: float, axis: dict[str, Any], step: float, most: float) -> Tick:
    """A value with the digits that its step asks for."""
    if axis.get("tickformat") == ",d":
        return Tick(at, f"{round(value):,}".replace("-", MINUS))
    places = 2 - math.floor(math.log10(step) + 0.01)
    size, exponent = abs(value), 0
    if axis.get("exponentformat") == "power" and most > 0:
        order = math.floor(math.log10(most) + 0.01)
        exponent = order if abs(order) > 3 else 0
    if size < 10.0**-places / 2:
        size, minus = 0.0, ""
    else:
        minus = MINUS if value < 0 else ""
    places += exponent
    size /= 10.0**exponent
    text = f"{size:,.{min(max(places, 0), 20)}f}" if places > 0 else f"{round(size, places):,.0f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    if not exponent:
        return Tick(at, minus + text)
    return Tick(at, f"{minus}{text}\u00d710", _signed(exponent))


def _signed(exponent: int) -> str:
    return f"{MINUS if exponent < 0 else ''}{abs(exponent)}"
