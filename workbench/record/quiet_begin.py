"""The beginning of a quiet step: whether it can be one, and what is kept of it before it runs."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from workbench.record import requests
from workbench.record.group import Group
from workbench.record.trip import alone
from workbench.step.domains import is_plain_batch
from workbench.step.held import Held, hold
from workbench.step.optimizer_state import hyperparameters
from workbench.step.proof import OptimizerRecord
from workbench.step.rng import RngState, capture_rng, generators_of
from workbench.step.snapshots import snapshot_tree

if TYPE_CHECKING:
    from workbench.record.recorder import Recorder

_BATCH_BYTES: Final = 1 << 16
"""Bytes of a batch up to which its fingerprint is taken when the group is written."""


@dataclass
class Begun:
    """What was kept of a step before it ran, and what it has computed so far."""

    index: int
    time: float
    batch: Any
    looked: tuple[str, dict[str, Any], list[dict[str, Any]]] | None
    held: Held | None
    rng: RngState
    generators: dict[str, torch.Generator]
    groups: list[list[dict[str, Any]]]
    attributes: dict[str, Any]
    sample_ids: Any
    sums: dict[str, int] | None
    outputs: Any = None
    soft_gates: list[dict[str, Any]] | None = field(default_factory=list)
    loss: Tensor | None = None
    components: dict[str, Tensor] = field(default_factory=dict)
    number: float = math.nan
    parts: dict[str, float] = field(default_factory=dict)
    total_norm: Tensor | None = None
    gate_norm: float | None = None
    grad_norm: Tensor | float | None = None
    norm: float | None = None
    updating: bool = False
    spoiled: bool = False
    optimizer: OptimizerRecord | None = None
    rates: list[float | None] = field(default_factory=list)


class Beginning:
    """Begins the quiet steps of a recorder.

    Args:
        recorder: The recorder.
        group: Its records that wait.
    """

    def __init__(self, recorder: Recorder, group: Group) -> None:
        self._recorder = recorder
        self._group = group
        self._possible = _is_possible(recorder)
        self._request = str(recorder.directory / requests.REQUEST_FILE)

    def __call__(self, batch: Any, sample_ids: Any) -> Begun | None:
        """Keep what a step may need.

        Args:
            batch: The batch.
            sample_ids: Identifiers of the samples.

        Returns:
            What was kept; None where the step is not to be quiet.
        """
        recorder, step = self._recorder, self._recorder.step_object
        if not (self._possible and self._may_be()):
            return None
        started = time.time()
        plain = is_plain_batch(batch)
        looked = None
        if not plain or _bytes(batch) > _BATCH_BYTES:
            looked = self._group.look_at(batch)  # before it is kept: numpy's view would copy it
        generators = generators_of(step)
        rng = capture_rng(generators)
        prepared = recorder.prepared.model
        with torch.no_grad():
            kept = _keep(batch) if plain else snapshot_tree(batch)
            prepared.look(recorder.model)
            if prepared.lazy:
                return None
            held = hold(prepared.tensors)
        recorder.running = None  # what the step before has kept
        sums = recorder.ring.sums(recorder.model) if recorder.ring.every else None
        return Begun(
            recorder.step_index, started, kept, looked, held, rng, generators,
            [hyperparameters(recorder.optimizers[0])], recorder.prepared.step.of(step),
            _fixed(sample_ids), sums,
        )  # fmt: skip

    def _may_be(self) -> bool:
        """Whether nothing known before the step asks for more than the least."""
        recorder, step = self._recorder, self._recorder.step_object
        every, index = recorder.policy.deep_scan_every, recorder.step_index
        if recorder.ring.wants_state(index):
            return False
        if recorder.scan.is_small is None:  # no update was looked at yet
            return False
        if (
            recorder.at_risk
            or recorder.order.due
            or (every > 0 and index % every == 0)
            or recorder.agree is not alone
        ):
            return False
        if not recorder.monitor.at_rest or len(getattr(step, "phases", ("main",))) != 1:
            return False
        if recorder.generators or recorder.loaders.watched:
            return False
        if getattr(step, "domains", None) and recorder.policy.input != "off":
            return False
        return not requests.waits(self._request)


def _is_possible(recorder: Recorder) -> bool:
    """Whether steps of a recorder can be quiet, as far as its parts tell before the first."""
    return (
        recorder.step_object is not None
        and recorder.ranks is None
        and recorder.world == 1
        and recorder.scaler is None
        and len(recorder.optimizers) == 1
        and not recorder.schedulers
        and not recorder.may_update_early
        and not recorder.monitor.looks_at_updates
        and not recorder.monitor.looks_for_jumps
    )


def _bytes(batch: Any) -> int:
    """Bytes of a plain batch."""
    return sum(t.nbytes for t in (batch.values() if type(batch) is dict else (batch,)))


def _keep(batch: Any) -> Any:
    """Keep a plain batch of tensors that are no leaves of autograd."""
    try:
        if type(batch) is dict:
            return {name: torch._lazy_clone(t) for name, t in batch.items()}
        return torch._lazy_clone(batch)
    except (RuntimeError, NotImplementedError):  # shared memory, arrays, mapped files
        return snapshot_tree(batch)


def _fixed(sample_ids: Any) -> Any:
    """Identifiers as they are now: a loop may use their list or tensor again."""
    if isinstance(sample_ids, list):
        return list(sample_ids)
    return sample_ids.tolist() if hasattr(sample_ids, "tolist") else sample_ids
