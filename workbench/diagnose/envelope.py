"""Where a finite step leaves the envelope of the calm steps before it, in order.

A finite incident (a loss spike, an exploding norm, a falling scale) has no origin. What can be said
is what left its usual range first: in the run, by the ledger; within the step, by replaying a calm
step beside it: parameters, samples, layers, loss, gradients and updates of parameter groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from workbench.evidence.wording import clean, counted, number
from workbench.replay.envelope import DEVIATIONS, EARLIER, FACTOR

if TYPE_CHECKING:
    from workbench.diagnose.samples import SampleLosses
    from workbench.replay.trace import Trace
    from workbench.replay.trace_events import LayerRow

MOST_ROWS = 40
WINDOW = 50
"""Steps before a value that say what is usual."""
SIGMA = 1.4826
"""Standard deviation of a normal distribution in median absolute deviations."""
_SHARE = 0.1
"""Samples with less than this share of the worst one's loss make no spike."""
_SERIES = {
    "learning rate": "update",
    "loss scale": "backward",
    "loss": "loss",
    "gradient norm": "backward",
}
_SAY = {
    "parameter": "the norm of the weights of {}",
    "sample": "the loss of sample {} alone",
    "activation": "the largest output of {}",
    "gradient": "the gradient norm of {}",
    "update": "the update of {}, relative to its weights,",
}


@dataclass(frozen=True, slots=True)
class Left:
    """One quantity outside its usual range.

    Attributes:
        step: The step.
        what: ``learning rate``, ``loss``, ``sample``, ``activation``, ``gradient`` and so on.
        name: Layer, parameter group or sample; empty for the step's own numbers.
        value: What it was.
        low: Least calm value.
        high: Largest calm value.
        stage: Stage it belongs to.
        event: Event of the traced replay, or None.
        sentence: All of it in words.
    """

    step: int
    what: str
    name: str
    value: float
    low: float
    high: float
    stage: str
    event: int | None
    sentence: str

    def as_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return asdict(self)


def outside(value: float, low: float, high: float) -> bool:
    """Whether a value is more than a factor of 4 away from a range.

    A range that holds numbers of both signs is widened by three times its largest magnitude.
    """
    if not math.isfinite(value):
        return True
    if low > 0 and value > 0:
        return value > FACTOR * high or value < low / FACTOR
    span = (FACTOR - 1) * max(abs(low), abs(high))
    return value > high + span or value < low - span


def from_ledger(records: Sequence[Mapping[str, Any]], last: int) -> list[Left]:
    """Series of the ledger that are outside their usual range at the incident's step.

    Args:
        records: L1 records.
        last: The incident's step; later records are not looked at.

    Returns:
        One row a series, at the step from which on it has been outside; earliest step first.
    """
    found = []
    for what, stage in _SERIES.items():
        pairs = [(s, v) for s, v in _series(records, what) if s <= last]
        if not pairs or pairs[-1][0] != last:
            continue
        values = [v for _, v in pairs]
        place = _since(values, upward=what in ("loss", "gradient norm"))
        if place is None:
            continue
        (step, value), earlier = pairs[place], values[max(0, place - WINDOW) : place]
        found.append(
            Left(
                step, what, "", value, min(earlier), max(earlier), stage, None,
                f"At step {number(step)}, {_ago(last - step)}, the {what} was {number(value)}, "
                f"where the {number(len(earlier))} steps before had a median of "
                f"{number(median(earlier))}.",
            )
        )  # fmt: skip
    order = list(_SERIES)
    return sorted(found, key=lambda one: (one.step, order.index(one.what)))


def _ago(steps: int) -> str:
    return f"{counted(steps, 'step')} before this one" if steps else "in this step"


def _since(values: Sequence[float], *, upward: bool) -> int | None:
    """From where on a series has been outside until its end, or None when its end is inside."""
    place = None
    for at in range(len(values) - 1, EARLIER - 1, -1):
        if not _unusual(values[at], values[max(0, at - WINDOW) : at], upward=upward):
            break
        place = at
    return place


def _unusual(value: float, earlier: Sequence[float], *, upward: bool) -> bool:
    """Whether a value is outside of what the steps before it lead one to expect."""
    logs = value > 0 and all(one > 0 for one in earlier)
    series = [math.log(one) for one in earlier] if logs else list(earlier)
    here, middle = (math.log(value) if logs else value), median(series)
    spread = SIGMA * median([abs(one - middle) for one in series])
    least = math.log(FACTOR) if logs else (FACTOR - 1) * abs(middle)
    away = here - middle if upward else abs(here - middle)
    return away > max(DEVIATIONS * spread, least)


def _series(records: Sequence[Mapping[str, Any]], what: str) -> list[tuple[int, float]]:
    key = {"loss scale": "loss_scale", "loss": "loss", "gradient norm": "grad_norm"}.get(what)
    found = []
    for record in records:
        value = record.get(key) if key is not None else _largest_rate(record)
        if not isinstance(value, int | float) or isinstance(value, bool):
            continue
        if isinstance(record.get("step"), int) and math.isfinite(value):
            found.append((int(record["step"]), float(value)))
    return found


def _largest_rate(record: Mapping[str, Any]) -> float | None:
    rates: list[float] = []

    def collect(value: Any) -> None:
        if isinstance(value, int | float) and not isinstance(value, bool):
            rates.append(float(value))
        elif isinstance(value, Mapping):
            for item in value.values():
                collect(item)
        elif isinstance(value, list | tuple):
            for item in value:
                collect(item)

    collect(record.get("learning_rates"))
    return max(rates) if rates else None


def from_samples(
    step: int, here: SampleLosses | None, calm: Iterable[SampleLosses | None]
) -> list[Left]:
    """Samples whose own loss is outside the range of calm samples, worst first.

    Without a calm batch the other samples of the same batch are the range.
    """
    if here is None:
        return []
    usual = [v for one in calm if one is not None for v in one.losses.values()]
    whose = f"the {number(len(usual))} samples of calm batches"
    if not usual:
        middle = median(here.losses.values())
        usual = [v for v in here.losses.values() if not outside(v, middle, middle)]
        whose = f"the {number(len(usual))} other samples"
    if not usual:
        return []
    low, high = min(usual), max(usual)
    worst = max(here.losses.values())
    found = [
        Left(
            step, "sample", str(index), value, low, high, "loss", None,
            f"{_SAY['sample'].format(number(index))} is {number(value)}, where {whose} have "
            f"{_range(low, high)}",
        )
        for index, value in here.losses.items()
        if outside(value, low, high) and value > max(high, _SHARE * worst)
    ]  # fmt: skip
    return sorted(found, key=lambda one: -one.value)


@dataclass(frozen=True)
class Measured:
    """What one replayed step is compared by.

    Attributes:
        trace: Its trace.
        weights: Norm of the weights of every parameter group before the step.
    """

    trace: Trace
    weights: Mapping[str, float]


def from_traces(
    step: int, here: Measured, calm: Sequence[Measured], groups: Mapping[str, str]
) -> list[Left]:
    """Parameters, layers, gradients and updates outside the range of calm steps, in order.

    Args:
        step: The incident's step.
        here: What was measured of it.
        calm: The same of calm steps.
        groups: Parameter group of every parameter, by name.
    """
    found: list[Left] = []
    for what, numbers, stage in (
        ("parameter", _group_norms, "input"),
        ("activation", _layer_sizes, "forward"),
        ("gradient", _group_gradients, "backward"),
        ("update", _group_updates, "update"),
    ):
        mine = numbers(here, groups)
        theirs = [numbers(one, groups) for one in calm]
        for name, (value, event) in mine.items():
            usual = [other[name][0] for other in theirs if name in other]
            if usual and outside(value, min(usual), max(usual)):
                found.append(_compared(step, what, name, value, usual, stage, event))
    return found


Sizes = dict[str, tuple[float, int | None]]


def _compared(
    step: int, what: str, name: str, value: float, usual: Sequence[float], stage: str,
    event: int | None,
) -> Left:  # fmt: skip
    low, high = min(usual), max(usual)
    subject = _SAY[what].format(clean(name, 80) or "the model")
    return Left(
        step, what, name, value, low, high, stage, event,
        f"{subject} is {number(value)}, where calm steps have {_range(low, high)}",
    )  # fmt: skip


def _range(low: float, high: float) -> str:
    return number(low) if low == high else f"{number(low)} to {number(high)}"


def _layer_sizes(measured: Measured, groups: Mapping[str, str]) -> Sizes:
    del groups
    found: Sizes = {}
    for row in measured.trace.rows:
        if row.tensor != "activation" or row.stats.absmax is None:
            continue
        name = row.module if row.name == "out" else f"{row.module}.{row.name}"
        before = found.get(name)
        if before is None or row.stats.absmax > before[0]:
            found[name] = (row.stats.absmax, row.event if row.event >= 0 else None)
    return found


def _squares(rows: Iterable[LayerRow], groups: Mapping[str, str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in rows:
        group = groups.get(row.name)
        if group is not None and row.stats.mean_square is not None:
            found[group] = found.get(group, 0.0) + row.stats.mean_square * row.stats.finite
    return found


def _norms(trace: Trace, tensor: str, groups: Mapping[str, str]) -> dict[str, float]:
    rows = [row for row in trace.rows if row.tensor == tensor]
    return {name: math.sqrt(value) for name, value in _squares(rows, groups).items()}


def _group_norms(measured: Measured, groups: Mapping[str, str]) -> Sizes:
    del groups
    return {name: (value, None) for name, value in measured.weights.items()}


def _group_gradients(measured: Measured, groups: Mapping[str, str]) -> Sizes:
    norms = _norms(measured.trace, "parameter_gradient", groups)
    return {name: (value, None) for name, value in norms.items()}


def _group_updates(measured: Measured, groups: Mapping[str, str]) -> Sizes:
    return {
        name: (value / measured.weights[name], None)
        for name, value in _norms(measured.trace, "update", groups).items()
        if measured.weights.get(name)
    }


@dataclass
class Envelope:
    """What a finite incident's diagnosis found.

    Attributes:
        step: The incident's step.
        left: Everything outside its range, in order: steps first, then places within the step.
        compared: Sentence on what it was compared with.
        limits: What was not compared, and why.
    """

    step: int
    left: list[Left] = field(default_factory=list)
    compared: str = ""
    limits: list[str] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """The answer in one or two sentences."""
        if not self.left:
            return f"Nothing that was compared left its usual range. {self.compared}".strip()
        first = self.left[0].sentence
        said = [_ended(first)]
        later = next((one for one in self.left[1:] if one.what != self.left[0].what), None)
        if later is not None:
            said.append(f"Then: {_ended(later.sentence)}")
        return " ".join(said)

    def to_data(self) -> dict[str, Any]:
        """As it stands in ``workbench.findings/1`` under ``envelope``."""
        return {
            "sentence": self.sentence,
            "compared": self.compared,
            "left": [one.as_dict() for one in self.left[:MOST_ROWS]],
            "left_total": len(self.left),
            "limits": self.limits,
        }


def _ended(text: str) -> str:
    text = text.rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."
