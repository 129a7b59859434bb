"""Alerts: finite but unusual runs of steps, seen from the ledger's own numbers."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench.evidence.wording import counted
from workbench.record.policy import Alerts
from workbench.record.skips import SkipCounts, TripPlaces

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
        self._losses: deque[float] = deque(maxlen=settings.window)
        self._norms: deque[float] = deque(maxlen=settings.window)
        self._ratios: deque[float] = deque(maxlen=settings.window)
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
    def looks_at_updates(self) -> bool:
        """Whether the size of updates makes an alert, and has to be sampled."""
        return self._settings.update_ratio_factor is not None

    def look(self, seen: Seen) -> list[Alert]:
        """Take in one finished step.

        Args:
            seen: What is known of it.
        """
        self._skips.add(seen.skipped)
        found = [
            self._streak(),
            self._ratio(),
            self._scale(seen.scale),
            self._falls(seen.scale),
            self._repeated(seen),
            self._jump("grad_norm_factor", "gradient norm", self._norms, seen.norm),
            self._jump("loss_factor", "loss", self._losses, seen.loss),
            self._jump("update_ratio_factor", "update, over the parameters it changed,",
                       self._ratios, seen.update_ratio),
        ]  # fmt: skip
        self._previous_scale = seen.scale
        return [alert for alert in found if alert is not None]

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

    def _once(self, name: str, now: bool, alert: Alert | None) -> Alert | None:
        if not now:
            self._raised.discard(name)
            return None
        if name in self._raised:
            return None
        self._raised.add(name)
        return alert

    def _streak(self) -> Alert | None:
        limit = self._settings.consecutive_skips
        if limit is None:
            return None
        count = self.consecutive_skips
        message = f"The loss scaler skipped {counted(count, 'step')} in a row."
        alert = Alert("consecutive_skips", count, limit, message)
        return self._once("consecutive_skips", count >= limit, alert)

    def _ratio(self) -> Alert | None:
        limit = self._settings.skip_ratio
        skipped, seen = self._skips.most
        if limit is None or seen < max(4, self._settings.window // 4):
            return None
        share = skipped / seen
        message = f"The loss scaler skipped {skipped} of the last {seen} steps."
        return self._once("skip_ratio", share >= limit, Alert("skip_ratio", share, limit, message))

    def _scale(self, scale: float | None) -> Alert | None:
        limit = self._settings.minimum_scale
        before = self._previous_scale
        if limit is None or scale is None or before is None:
            return None
        message = f"The loss scale fell from {before:g} to {scale:g}."
        fell = scale < limit and (before >= limit or "minimum_scale" in self._raised)
        return self._once("minimum_scale", fell, Alert("minimum_scale", scale, limit, message))

    def _falls(self, scale: float | None) -> Alert | None:
        limit, before = self._settings.scale_falls, self._previous_scale
        if scale is not None and before is not None:
            if scale > before:
                self._scale_falls = 0
            self._scale_falls += scale < before
        if limit is None or scale is None:
            return None
        count = self._scale_falls
        times = counted(count, "time")
        message = f"The loss scale fell {times}, to {scale:g}, and never rose in between."
        alert = Alert("scale_falls", count, limit, message)
        return self._once("scale_falls", count >= limit, alert)

    def _repeated(self, seen: Seen) -> Alert | None:
        limit = self._settings.repeated_trips
        count, where = self._places.add(seen.tripped, seen.module, seen.shard)
        if limit is None:
            return None
        message = f"{where} tripped in {count} of the last {self._settings.window} steps."
        alert = Alert("repeated_trips", count, limit, message)
        return self._once("repeated_trips", count >= limit, alert)

    def _jump(
        self, name: str, what: str, history: deque[float], value: float | None
    ) -> Alert | None:
        limit = getattr(self._settings, name)
        if limit is None or value is None or not math.isfinite(value):
            return None
        size = abs(value)
        times = _times_usual(history, value)
        usual = statistics.median(history) if times is not None else 0.0
        history.append(size)
        if times is None:
            return None
        message = f"The {what} {size:g} is {times:.3g} times its usual {usual:g}."
        return self._once(name, times >= limit, Alert(name, times, limit, message))


def _times_usual(history: Sequence[float], value: float | None) -> float | None:
    """How many times its usual size a value has; None where no usual size is known."""
    if value is None or not math.isfinite(value) or len(history) < _FEWEST:
        return None
    usual = statistics.median(history)
    return abs(value) / usual if usual else None
