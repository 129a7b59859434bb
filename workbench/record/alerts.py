"""Alerts: finite but unusual runs of steps, seen from the ledger's own numbers."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench.record.policy import Alerts

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


class AlertMonitor:
    """Watches the steps of a run; each alert fires once and again only after it has cleared."""

    def __init__(self, settings: Alerts) -> None:
        self._settings = settings
        self._skips: deque[bool] = deque(maxlen=settings.window)
        self._losses: deque[float] = deque(maxlen=settings.window)
        self._norms: deque[float] = deque(maxlen=settings.window)
        self._previous_scale: float | None = None
        self._raised: set[str] = set()
        self.consecutive_skips = 0

    def look(
        self, skipped: bool, scale: float | None, loss: float | None, norm: float | None
    ) -> list[Alert]:
        """Take in one finished step.

        Args:
            skipped: Whether the scaler skipped it.
            scale: The loss scale after it.
            loss: Its loss.
            norm: Its gradient norm.
        """
        self.consecutive_skips = self.consecutive_skips + 1 if skipped else 0
        self._skips.append(skipped)
        found = [
            self._streak(),
            self._ratio(),
            self._scale(scale),
            self._jump("grad_norm_factor", "gradient norm", self._norms, norm),
            self._jump("loss_factor", "loss", self._losses, loss),
        ]
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
        message = f"The loss scaler skipped {count} steps in a row."
        alert = Alert("consecutive_skips", count, limit, message)
        return self._once("consecutive_skips", count >= limit, alert)

    def _ratio(self) -> Alert | None:
        limit = self._settings.skip_ratio
        seen = len(self._skips)
        if limit is None or seen < max(4, self._settings.window // 4):
            return None
        share = sum(self._skips) / seen
        message = f"The loss scaler skipped {sum(self._skips)} of the last {seen} steps."
        return self._once("skip_ratio", share >= limit, Alert("skip_ratio", share, limit, message))

    def _scale(self, scale: float | None) -> Alert | None:
        limit = self._settings.minimum_scale
        before, self._previous_scale = self._previous_scale, scale
        if limit is None or scale is None or before is None:
            return None
        message = f"The loss scale fell from {before:g} to {scale:g}."
        fell = scale < limit and (before >= limit or "minimum_scale" in self._raised)
        return self._once("minimum_scale", fell, Alert("minimum_scale", scale, limit, message))

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
