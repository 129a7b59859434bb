"""Records of calm steps, written to the ledger in groups.

What a step's record is made of is noted at its end; fingerprint, digest and JSON are worked out
for many steps at once, which costs a third of doing it step by step: the code stays in the
processor's cache. A record waits until a step ends ``HOLD_S`` after the first that waits, until
anything else is written, or ``STALL_S`` where training stands still. Whoever leaves without the
interpreter's exit (SIGKILL, ``os._exit``) loses at most these last calm records.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from workbench.record import soft
from workbench.record.alerts import Seen
from workbench.record.record import of_the_run, optimizer_entry

if TYPE_CHECKING:
    from workbench.record.quiet_step import QuietStep
    from workbench.record.recorder import Recorder

HOLD_S: Final = 0.05
"""Seconds that a record waits at most while steps end; of slower steps none waits."""
STALL_S: Final = 0.25
"""Seconds after which a record is written although no step ends."""
_MOST: Final = 64
_IDLE_S: Final = 10.0


class Group:
    """The calm records of one recorder that wait.

    Args:
        recorder: The recorder.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._waiting: deque[QuietStep] = deque()
        self._since = 0.0
        self._lock = threading.RLock()
        self._busy = False
        self._run: tuple[dict[str, Any], dict[str, Any]] | None = None

    def add(self, record: QuietStep) -> None:
        """Take a record; it is written now where it, or one before, need not wait."""
        now = time.time()
        if not self._waiting:
            # of steps that take long none waits: writing one costs them nothing
            self._since = record.time
            _WAITING.add(self)
        self._waiting.append(record)
        if now - self._since >= HOLD_S or len(self._waiting) >= _MOST or now < self._since:
            self.write()
        elif not _WATCH.runs:
            _WATCH.start()

    def write(self) -> None:
        """Write what waits; cheap where nothing does."""
        if not self._waiting and not self._busy:
            return
        with self._lock:
            self._busy = True
            waiting: list[QuietStep] = []
            while self._waiting:
                waiting.append(self._waiting.popleft())
            if waiting:
                self._recorder.guard("ledger", lambda: self._write(waiting))
            _WAITING.discard(self)
            if self._waiting:  # one came meanwhile
                _WAITING.add(self)
            self._busy = False

    def write_old(self) -> None:
        """Write what waits while no step ends."""
        if self._waiting and abs(time.time() - self._since) >= STALL_S:
            self.write()

    @property
    def waits(self) -> bool:
        """Whether a record waits."""
        return bool(self._waiting)

    def forget(self) -> None:
        """Let go of what waits: in a forked process, whose parent writes it."""
        self._waiting.clear()
        self._busy = False
        self._lock = threading.RLock()

    def _write(self, waiting: list[QuietStep]) -> None:
        records = [self._record(one) for one in waiting]
        for one, record in zip(waiting, records, strict=True):
            shard = one.provenance.get("shard_id")
            if shard is None:
                shard = record["batch_summary"]["scalars"].get("shard_id")
            skipped = tuple(did.skipped_by == "scaler" for did in one.records)
            told = None if shard is None else str(shard)
            self._recorder.monitor.look(
                Seen(skipped, one.scale_after, one.number, one.norm, shard=told)
            )
        self._recorder.ledger.append_all(records)

    def _record(self, one: QuietStep) -> dict[str, Any]:
        looked = one.looked
        if looked is None:
            looked = soft.Looked(one.batches, self._recorder.policy.input != "off")
        if self._run is None or self._run[0] != one.provenance:
            self._run = (one.provenance, of_the_run(self._recorder, one.provenance))
        return self._run[1] | {
            "step": one.index,
            "micro_step": 0,
            "time": one.time,
            "sample_ids": one.sample_ids,
            "batch_fingerprint": looked.fingerprint,
            "batch_summary": looked.summary,
            "precision": one.precision,
            "mode": "train" if one.training else "eval",
            "loss": one.number,
            "loss_components": one.parts or None,
            "loss_scale": one.scale,
            "loss_scale_previous": one.previous,
            "growth_tracker": _growth_tracker(one),
            "learning_rates": one.rates,
            "grad_norm": one.norm,
            "grad_norm_is_scaled": False,
            "optimizers": [optimizer_entry(did) for did in one.records],
            "consecutive_skips": 0,
            "schedulers_advanced": list(one.advanced),
            "rng_digest": one.rng.digest(),
            "soft_gates": looked.found + (one.soft_gates or []),
            "first_bad_stage": None,
            "alerts": [],
            "reduce": None,
            "decision": None,
            "order": [],
            "fingerprint": None,
        }


def _growth_tracker(one: QuietStep) -> int | None:
    """Steps since the scale changed last, before a step."""
    value = None if one.scale is None else one.scaler._growth_tracker
    return None if value is None else int(value)


class _Watch:
    """A thread that writes what waits while training stands still; it ends when nothing does."""

    def __init__(self) -> None:
        self.runs = False

    def start(self) -> None:
        self.runs = True
        try:
            threading.Thread(target=self._run, name="workbench-ledger", daemon=True).start()
        except RuntimeError:  # the interpreter is ending: its exit writes what waits
            self.runs = False

    def _run(self) -> None:
        last = time.monotonic()
        while self.runs:
            time.sleep(STALL_S)
            if _WAITING:
                last = time.monotonic()
                for group in list(_WAITING):
                    group.write_old()
            elif time.monotonic() - last > _IDLE_S:
                self.runs = False
                # one that came between the look and this line would start no other thread
                self.runs = bool(_WAITING)


_WAITING: set[Group] = set()
"""Groups in which a record waits; held, since their recorders may be let go of before."""
_WATCH = _Watch()


def write_all() -> None:
    """Write what waits in every recorder of this process."""
    for group in list(_WAITING):
        group.write()


def _after_fork() -> None:
    _WATCH.runs = False
    for group in list(_WAITING):
        group.forget()
    _WAITING.clear()


atexit.register(write_all)
os.register_at_fork(after_in_child=_after_fork)
