"""What can be done after the replay process died: again, on the CPU, or with fewer samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from workbench.errors import BundleError
from workbench.widgets.state import Activity, State
from workbench.widgets.store import Store

SHARE = 8
"""One in so many samples is kept: what ran out of memory then has room by far."""


class WaysOn:
    """The part of `Workbench` that goes on after the replay process died."""

    bundle: Any
    _store: Store
    _jobs: Any
    _watch: Callable[[], None]
    set_condition: Callable[[str, Any], None]
    replay: Callable[[], None]
    replay_samples: Callable[[Iterable[int]], None]

    def again(self) -> None:
        """Start the replay process anew with what it was doing when it died."""
        self._jobs.again()
        self._watch()

    def replay_on_cpu(self) -> None:
        """Replay on the CPU, as a diagnostic run."""
        self.set_condition("device", "cpu")
        self.replay()

    def replay_fewer(self) -> None:
        """Replay with one in eight samples of each micro-batch, as a diagnostic run."""
        self.replay_samples(range(fewer(_samples(self.bundle))))

    def _ways_on(self) -> tuple[tuple[str, str], ...]:
        """Action name and label of each way that is open, for a process that just died."""
        return ways_on(self._store.state, self._store.state.activity, _samples(self.bundle))


def ways_on(state: State, activity: Activity | None, samples: int) -> tuple[tuple[str, str], ...]:
    """Action name and label of each way on.

    Args:
        state: What is on screen.
        activity: What the process was doing.
        samples: Samples of the batch; 0 when it is not known.
    """
    found = [("again", f"{activity.verb} again" if activity is not None else "Run it again")]
    run = state.run(activity.run) if activity is not None else None
    device = state.facts.switch("device")
    here = set(device.choices) if device is not None else set()
    used = dict(run.changed).get("device") if run is not None else None
    used = used or (device.recorded if device is not None else "cpu")
    if used.startswith("cuda") and "cpu" in here and not state.facts.device_note:
        found.append(("on_cpu", "On CPU"))
    if fewer(samples) < samples:
        found.append(("fewer_samples", f"Replay with {fewer(samples)} of {samples} samples"))
    return tuple(found)


def fewer(samples: int) -> int:
    """How many samples are kept of so many."""
    return max(samples // SHARE, 1) if samples else 0


def _samples(bundle: Any) -> int:
    from workbench.widgets.batch import samples_of

    try:
        return samples_of(bundle)[0]
    except BundleError:
        return 0
