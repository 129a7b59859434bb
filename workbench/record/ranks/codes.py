"""A gate's result as a row of integers whose maximum over ranks is the decision of all.

The earliest trip is the largest number: its place in the step counts down, then the rank does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from workbench.step.stages import STAGES, Unit

Point = Literal["gate", "clip", "update", "after_update", "left"]
POINTS: Final[tuple[Point, ...]] = ("gate", "clip", "update", "after_update", "left")
"""Where in a step ranks may ask each other: all ask at the same one, or they are out of step."""

WIDTH: Final = 8
_RANKS: Final = 1 << 24
_TOP: Final = 1 << 62


class Vote(NamedTuple):
    """What one rank says.

    Attributes:
        step: Number of its step.
        point: Where it stands.
        trip: The unit of its earliest trip, or None.
        skips: Whether its loss scaler will skip.
        proceeds: Whether it is about to update.
        capture: Whether it wants a bundle of this step.
        alert: Whether its loss or gradient norm makes an alert.
        again: Whether it needs a second decision after the update.
    """

    step: int
    point: Point
    trip: Unit | None = None
    skips: bool = False
    proceeds: bool = True
    capture: bool = False
    alert: bool = False
    again: bool = False


class Result(NamedTuple):
    """What all ranks said.

    Attributes:
        trip: Stage and micro-step of the earliest trip, or None.
        rank: The lowest rank that has it.
        skips: A rank whose scaler will skip, or None.
        mixed: Whether one scaler skips and another does not.
        capture: A rank that wants a bundle, or None.
        alert: A rank with an alert, or None.
        again: Whether some rank needs a second decision.
        in_step: Whether all ranks stood at the same point of the same step.
    """

    trip: Unit | None
    rank: int
    skips: int | None
    mixed: bool
    capture: int | None
    alert: int | None
    again: bool
    in_step: bool


def encode(vote: Vote, rank: int) -> list[int]:
    """Write a vote as numbers to be reduced by their maximum."""
    place = POINTS.index(vote.point)
    return [
        0 if vote.trip is None else _TOP - (_order(vote.trip) * _RANKS + rank),
        rank + 1 if vote.skips else 0,
        int(vote.proceeds and not vote.skips and vote.trip is None),
        rank + 1 if vote.capture else 0,
        rank + 1 if vote.alert else 0,
        int(vote.again),
        vote.step * len(POINTS) + place,
        -(vote.step * len(POINTS) + place),
    ]


def decode(row: Sequence[int], phase: str) -> Result:
    """Read the maximum of all rows.

    Args:
        row: The reduced numbers.
        phase: The phase all ranks are in.
    """
    trip, rank = None, -1
    if row[0]:
        order, rank = divmod(_TOP - row[0], _RANKS)
        micro_step, stage = divmod(order, len(STAGES))
        trip = Unit(STAGES[stage], phase, micro_step)
    return Result(
        trip,
        rank,
        _who(row[1]),
        bool(row[1] and row[2]),
        _who(row[3]),
        _who(row[4]),
        bool(row[5]),
        row[6] == -row[7],
    )


def _order(unit: Unit) -> int:
    return unit.micro_step * len(STAGES) + STAGES.index(unit.stage)


def _who(number: int) -> int | None:
    return number - 1 if number else None
