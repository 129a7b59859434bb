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
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from workbench.record import soft
from workbench.record.alerts import Seen
from workbench.record.record import of_the_run, optimizer_entry
from workbench.step.domains import batch_fields
from workbench.step.proof import OptimizerRecord
from workbench.step.rng import RngState

if TYPE_CHECKING:
    from workbench.record.recorder import Recorder

HOLD_S: Final = 0.05
"""Seconds that a record waits at most while steps end; of slower steps none waits."""
STALL_S: Final = 0.25
"""Seconds after which a record is written although no step ends."""
_MOST: Final = 64
_IDLE_S: Final = 10.0


class CalmRecord(NamedTuple):
    """What the record of a calm step is made of.

    Attributes:
        step: Number of the step.
        time: When it began.
        batch: Its batch, kept from before it ran.
        looked: Fingerprint, summary and soft gates of a batch that was looked at in the step.
        soft_gates: What was non-finite among the outputs.
        rng: Random state from before it ran.
        loss: Its loss.
        components: Parts of the loss.
        norm: Its gradient norm.
        rates: Its learning rates.
        training: Whether the model was in training mode.
        precision: In the ledger's words.
        provenance: What the user knows of it.
        sample_ids: Identifiers of its samples.
        optimizer: What its optimizer did.
    """

    step: int
    time: float
    batch: Any
    looked: tuple[str, dict[str, Any], list[dict[str, Any]]] | None
    soft_gates: list[dict[str, Any]]
    rng: RngState
    loss: float
    components: dict[str, float]
    norm: float | None
    rates: list[float | None]
    training: bool
    precision: str
    provenance: dict[str, Any]
    sample_ids: Any
    optimizer: OptimizerRecord


class Group:
    """The calm records of one recorder that wait.

    Args:
        recorder: The recorder.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._waiting: deque[CalmRecord] = deque()
        self._since = 0.0
        self._lock = threading.RLock()
        self._busy = False
        self._run: tuple[dict[str, Any], dict[str, Any]] | None = None

    def add(self, record: CalmRecord) -> None:
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
            waiting: list[CalmRecord] = []
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

    def _write(self, waiting: list[CalmRecord]) -> None:
        records = [self._record(one) for one in waiting]
        for one, record in zip(waiting, records, strict=True):
            shard = one.provenance.get("shard_id")
            if shard is None:
                shard = record["batch_summary"]["scalars"].get("shard_id")
            skipped = (one.optimizer.skipped_by == "scaler",)
            self._recorder.monitor.look(
                Seen(skipped, None, one.loss, one.norm, shard=None if shard is None else str(shard))
            )
        self._recorder.ledger.append_all(records)

    def look_at(self, batch: Any) -> tuple[str, dict[str, Any], list[dict[str, Any]]]:
        """Fingerprint, summary and soft gates of a step's batch, as a session takes them."""
        named = batch_fields(batch)
        found = []
        if self._recorder.policy.input != "off":
            found = [e | {"micro_step": 0} for e in soft.scan_fields("batch", named, False)]
        return soft.fingerprint_fields([named]), soft.summarize_fields([batch], named), found

    def _record(self, one: CalmRecord) -> dict[str, Any]:
        looked = one.looked
        fingerprint, summary, found = looked if looked is not None else self.look_at(one.batch)
        if self._run is None or self._run[0] != one.provenance:
            self._run = (one.provenance, of_the_run(self._recorder, one.provenance))
        return self._run[1] | {
            "step": one.step,
            "micro_step": 0,
            "time": one.time,
            "sample_ids": one.sample_ids,
            "batch_fingerprint": fingerprint,
            "batch_summary": summary,
            "precision": one.precision,
            "mode": "train" if one.training else "eval",
            "loss": one.loss,
            "loss_components": one.components or None,
            "loss_scale": None,
            "loss_scale_previous": None,
            "growth_tracker": None,
            "learning_rates": [one.rates],
            "grad_norm": one.norm,
            "grad_norm_is_scaled": False,
            "optimizers": [optimizer_entry(one.optimizer)],
            "consecutive_skips": 0,
            "schedulers_advanced": [],
            "rng_digest": one.rng.digest(),
            "soft_gates": found + one.soft_gates,
            "first_bad_stage": None,
            "alerts": [],
            "reduce": None,
            "decision": None,
            "order": [],
            "fingerprint": None,
        }


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
