"""Alerts: finite but unusual runs of steps, seen from the ledger's own numbers."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workbench.evidence.wording import counted, number
from workbench.record.policy import Alerts
from workbench.record.skips import SkipCounts, TripPlaces

_JUMPS = ("loss_factor", "grad_norm_factor")
_FEWEST = 4
"""Steps that make a usual size."""


@dataclass(frozen=True)
class Alert:
    """One alert.

    Attributes:
        name: Which threshold of ``Alerts``.
        value: What was seen.
        threshold: What was allowed.
        message: One sentence.
    """

    name: str
    value: float
    threshold: float
    message: str

    def as_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return {
            "name": self.name,
            "value": self.value,
            "threshold": self.threshold,
            "message": self.message,
        }


@dataclass(frozen=True)
class Seen:
    """What the monitor is told of one finished step.

    Attributes:
        skipped: Per optimizer whether the scaler skipped it; empty where no update was reached.
        scale: The loss scale after the step.
        loss: Its loss.
        norm: Its gradient norm.
        update_ratio: Its update over the parameters it changed.
        tripped: Whether a sink tripped.
        module: The module that tripped, None where it is no module.
        shard: The data shard of the step, None where it is not known.
    """

    skipped: tuple[bool, ...] = ()
    scale: float | None = None
    loss: float | None = None
    norm: float | None = None
    update_ratio: float | None = None
    tripped: bool = False
    module: str | None = None
    shard: str | None = None


def module_of(name: str) -> str | None:
    """The module a sink belongs to, by the sink's name; None for a loss, a norm or a scale."""
    kind, _, path = name.partition(":")
    if kind not in ("gradient", "parameter", "buffer", "optimizer_state"):
        return None
    return path.partition("/")[0].rpartition(".")[0]


class AlertMonitor:
    """Watches the steps of a run; each alert fires once and again only after it has cleared."""

    def __init__(self, settings: Alerts) -> None:
        self._settings = settings
        self._skips = SkipCounts(settings.window)
        self._losses = Usual(settings.window)
        self._norms = Usual(settings.window)
        self._ratios = Usual(settings.window)
        self._places = TripPlaces(settings.window)
        self._previous_scale: float | None = None
        self._scale_falls = 0
        self._raised: set[str] = set()

    @property
    def consecutive_skips(self) -> int:
        """Scaler skips in a row: of the optimizer that has been skipped longest."""
        return max(self._skips.consecutive, default=0)

    def skips_of(self, optimizer: int) -> int:
        """Scaler skips in a row of one optimizer."""
        counts = self._skips.consecutive
        return counts[optimizer] if optimizer < len(counts) else 0

    @property
    def at_rest(self) -> bool:
        """Whether a step without skip and trip can make an alert by a jump at most.

        Only of one whose loss scale does not fall; ``will_jump`` tells of jumps.
        """
        if not (self._places.at_rest and self._ratio_is_settled()) or self.looks_at_updates:
            return False
        return self._raised.isdisjoint(_JUMPS)

    def _ratio_is_settled(self) -> bool:
        """Whether the share of skipped steps was judged already: without a skip it only falls."""
        if not self._skips.any:
            return True
        return self._skips.most[1] >= self._fewest_judged

    @property
    def _fewest_judged(self) -> int:
        return max(4, self._settings.window // 4)

    @property
    def previous_scale(self) -> float | None:
        """The loss scale after the step before."""
        return self._previous_scale

    @property
    def looks_at_updates(self) -> bool:
        """Whether the size of updates makes an alert, and has to be sampled."""
        return self._settings.update_ratio_factor is not None

    def look(self, seen: Seen) -> list[Alert]:
        """Take in one finished step.

        Args:
            seen: What is known of it.
        """
        self._skips.add(seen.skipped)
        limits = self._settings
        found = [self._streak(), self._ratio(), self._scale(seen.scale), self._falls(seen.scale),
                 self._repeated(seen)]  # fmt: skip
        if limits.grad_norm_factor is not None:
            found.append(self._jump("grad_norm_factor", "gradient norm", self._norms, seen.norm))
        if limits.loss_factor is not None:
            found.append(self._jump("loss_factor", "loss", self._losses, seen.loss))
        if limits.update_ratio_factor is not None:
            what = "update, over the parameters it changed,"
            found.append(self._jump("update_ratio_factor", what, self._ratios, seen.update_ratio))
        self._previous_scale = seen.scale
        return [alert for alert in found if alert is not None]

    def note(self, loss: float, norm: float | None) -> None:
        """Take in the numbers of a calm step at its end; ``take_calm`` may come later.

        Args:
            loss: Its loss.
            norm: Its gradient norm.
        """
        limits = self._settings
        if limits.loss_factor is not None:
            self._losses.add(abs(loss))
        if limits.grad_norm_factor is not None and norm is not None:
            self._norms.add(abs(norm))

    def take_calm(self, skipped: tuple[bool, ...], scale: float | None, shard: str | None) -> None:
        """Take in a step that made no alert: ``at_rest``, no jump, no skip, no scale that fell.

        Args:
            skipped: As in ``Seen``.
            scale: The loss scale after it.
            shard: Its data shard.
        """
        if self._raised:  # an alert may have cleared
            self.look(Seen(skipped, scale, shard=shard))
            return
        self._skips.add(skipped)
        self._places.add(False, None, shard)
        before, self._previous_scale = self._previous_scale, scale
        if scale is not None and before is not None and scale > before:
            self._scale_falls = 0

    def will_jump(self, loss: float | None, norm: float | None) -> bool:
        """Whether a step that is still running has a loss or a norm that will make an alert.

        Known before the update, so that the state it began with can be kept through it.

        Args:
            loss: Its loss.
            norm: Its gradient norm.
        """
        limits = self._settings
        return any(
            limit is not None and (times := _times_usual(history, value)) and times >= limit
            for limit, history, value in (
                (limits.loss_factor, self._losses, loss),
                (limits.grad_norm_factor, self._norms, norm),
            )
        )

    @property
    def looks_for_jumps(self) -> bool:
        """Whether a jump of the loss or of the gradient norm makes an alert."""
        return self._settings.loss_factor is not None or self._settings.grad_norm_factor is not None

    def _once(
        self, name: str, now: bool, value: float, threshold: float, message: Callable[[], str]
    ) -> Alert | None:
        """An alert the first time it holds; its sentence is made only then."""
        if not now:
            self._raised.discard(name)
            return None
        if name in self._raised:
            return None
        self._raised.add(name)
        return Alert(name, value, threshold, message())

    def _streak(self) -> Alert | None:
        limit = self._settings.consecutive_skips
        if limit is None:
            return None
        count = self.consecutive_skips
        return self._once(
            "consecutive_skips", count >= limit, count, limit,
            lambda: f"The loss scaler skipped {counted(count, 'step')} in a row.",
        )  # fmt: skip

    def _ratio(self) -> Alert | None:
        limit = self._settings.skip_ratio
        skipped, seen = self._skips.most
        if limit is None or seen < self._fewest_judged:
            return None
        share = skipped / seen
        return self._once(
            "skip_ratio", share >= limit, share, limit,
            lambda: f"The loss scaler skipped {skipped} of the last {seen} steps.",
        )  # fmt: skip

    def _scale(self, scale: float | None) -> Alert | None:
        limit = self._settings.minimum_scale
        before = self._previous_scale
        if limit is None or scale is None or before is None:
            return None
        fell = scale < limit and (before >= limit or "minimum_scale" in self._raised)
        return self._once(
            "minimum_scale", fell, scale, limit,
            lambda: f"The loss scale fell from {number(before)} to {number(scale)}.",
        )  # fmt: skip

    def _falls(self, scale: float | None) -> Alert | None:
        limit, before = self._settings.scale_falls, self._previous_scale
        if scale is not None and before is not None:
            if scale > before:
                self._scale_falls = 0
            self._scale_falls += scale < before
        if limit is None or scale is None:
            return None
        count, times = self._scale_falls, counted(self._scale_falls, "time")
        return self._once(
            "scale_falls", count >= limit, count, limit,
            lambda: f"The loss scale fell {times}, to {number(scale)}, and never rose in between.",
        )  # fmt: skip

    def _repeated(self, seen: Seen) -> Alert | None:
        limit = self._settings.repeated_trips
        count, where = self._places.add(seen.tripped, seen.module, seen.shard)
        if limit is None:
            return None
        return self._once(
            "repeated_trips", count >= limit, count, limit,
            lambda: f"{where} tripped in {count} of the last {self._settings.window} steps.",
        )  # fmt: skip

    def _jump(self, name: str, what: str, history: Usual, value: float | None) -> Alert | None:
        if value is None or not math.isfinite(value):
            return None
        size, limit = abs(value), getattr(self._settings, name)
        times, usual = _times_usual(history, value), history.median
        history.add(size)
        if times is None:
            return None
        return self._once(
            name, times >= limit, times, limit,
            lambda: f"The {what} {number(size)} is {number(float(format(times, '.3g')))} times "
            f"its usual {number(usual)}.",
        )  # fmt: skip


class Usual:
    """The last values of a number, and their median; each new value costs a search, no sorting.

    Args:
        window: How many values are kept.
    """

    def __init__(self, window: int) -> None:
        self._values: deque[float] = deque(maxlen=window)
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        """Take in a value; the oldest one goes where the window is full."""
        if len(self._values) == self._values.maxlen:
            del self._sorted[bisect_left(self._sorted, self._values[0])]
        self._values.append(value)
        insort(self._sorted, value)

    @property
    def median(self) -> float:
        """The middle value, or the mean of both; 0 of none."""
        count = len(self._sorted)
        if not count:
            return 0.0
        high = self._sorted[count // 2]
        return high if count % 2 else (self._sorted[count // 2 - 1] + high) / 2


def _times_usual(history: Usual, value: float | None) -> float | None:
    """How many times its usual size a value has; None where no usual size is known."""
    if value is None or not math.isfinite(value) or len(history) < _FEWEST:
        return None
    usual = history.median
    return abs(value) / usual if usual else None
