"""The beginning of a quiet step: whether it can be one, and what is kept of it before it runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import torch

from workbench.record import requests, soft
from workbench.record.group import Group
from workbench.record.quiet_step import QuietStep
from workbench.record.trip import alone
from workbench.step.domains import is_plain_batch, violations
from workbench.step.gates import scale_value
from workbench.step.held import hold
from workbench.step.object_state import capture_object, twin_of
from workbench.step.optimizer_state import (
    capture_optimizer,
    hold_optimizer,
    hyperparameters,
    parameter_names,
)
from workbench.step.rng import capture_rng, generators_of
from workbench.step.snapshots import snapshot_tree

if TYPE_CHECKING:
    from workbench.record.recorder import Recorder

_BATCH_BYTES: Final = 1 << 16
"""Bytes of a batch up to which its fingerprint is taken when the group is written."""
_NESTED_SCHEDULERS: Final = frozenset({"SequentialLR", "ChainedScheduler"})


class Beginning:
    """Begins the quiet steps of a recorder.

    Args:
        recorder: The recorder.
        group: Its records that wait.
    """

    def __init__(self, recorder: Recorder, group: Group) -> None:
        self._recorder = recorder
        self._group = group
        self._low_level = _is_possible(recorder)
        self._high_level = self._low_level and _is_possible_high_level(recorder)
        self._own: dict[str, Any] | None = None
        self._generators: dict[str, torch.Generator] = {}
        self._request = str(recorder.directory / requests.REQUEST_FILE)

    def __call__(self, batch: Any, sample_ids: Any, low_level: bool) -> QuietStep | None:
        """Keep what a step may need.

        Args:
            batch: The batch.
            sample_ids: Identifiers of the samples.
            low_level: Whether the user's own loop runs the step.

        Returns:
            What was kept; None where the step is not to be quiet.
        """
        possible = self._low_level if low_level else self._high_level
        if not (possible and self._may_be() and self.is_within_domains(batch)):
            return None
        recorder, step = self._recorder, self._recorder.step_object
        begun = QuietStep(recorder.step_index, time.time(), low_level, _fixed(sample_ids))
        if step is not None:
            begun.attributes = recorder.prepared.step.of(step)
        begun.generators = self._generators_of(step)
        begun.rng = begun.unit_rng["main", 0] = capture_rng(begun.generators)
        prepared = recorder.prepared.model
        with torch.no_grad():
            self.keep_batch(begun, batch)
            prepared.look(recorder.model)
            if prepared.lazy:
                return None
            begun.held = hold(prepared.tensors)
            begun.groups = [hyperparameters(optimizer) for optimizer in recorder.optimizers]
            if low_level:
                begun.optimizers = self._held_optimizers(begun.groups)
        self._keep_others(begun)
        recorder.running = None  # what the step before has kept
        if recorder.ring.every:
            begun.sums = recorder.ring.sums(recorder.model)
        return begun

    def is_within_domains(self, batch: Any) -> bool:
        """Whether no field of a micro-batch is outside of its declared domain."""
        recorder = self._recorder
        if recorder.policy.input == "off" or recorder.step_object is None:
            return True
        outside = recorder.guard("domains", lambda: violations(recorder.step_object, [batch]))
        return outside == ()  # None where the step's own code failed

    def keep_batch(self, begun: QuietStep, batch: Any) -> None:
        """Keep a micro-batch of a step; call it without grad mode.

        Args:
            begun: The step.
            batch: The micro-batch.
        """
        plain = is_plain_batch(batch)
        if begun.looked is not None or not plain or _bytes(batch) > _BATCH_BYTES:
            if begun.looked is None:
                begun.looked = soft.Looked(begun.batches, self._recorder.policy.input != "off")
            begun.looked.add(batch)  # before it is kept: numpy's view would copy it
        begun.batches.append(_keep(batch) if plain else snapshot_tree(batch))

    def _generators_of(self, step: Any) -> dict[str, torch.Generator]:
        own = self._recorder.prepared.step.own
        if own is not self._own:
            self._own, self._generators = own, generators_of(step)
        return self._generators

    def _may_be(self) -> bool:
        """Whether nothing known before the step asks for more than the least."""
        recorder, step = self._recorder, self._recorder.step_object
        every, index = recorder.policy.deep_scan_every, recorder.step_index
        if recorder.ring.wants_state(index) or getattr(
            recorder.scaler, "_per_optimizer_states", None
        ):
            return False
        if recorder.scan.is_small is None:  # no update was looked at yet
            return False
        if recorder.schedulers:
            recorder.order.begin()
        if (
            recorder.at_risk
            or recorder.order.due
            or recorder.order.asks
            or (every > 0 and index % every == 0)
            or recorder.agree is not alone
        ):
            return False
        if not recorder.monitor.at_rest or len(getattr(step, "phases", ("main",))) != 1:
            return False
        if recorder.generators or recorder.loaders.watched:
            return False
        return not requests.waits(self._request)

    def _held_optimizers(self, groups: list[list[dict[str, Any]]]) -> list[Any]:
        recorder = self._recorder
        found: list[Any] = [hold_optimizer(optimizer) for optimizer in recorder.optimizers]
        if any(one is None for one in found):
            names = parameter_names(recorder.model, recorder.optimizers)
            return [
                capture_optimizer(optimizer, names, group)
                for optimizer, group in zip(recorder.optimizers, groups, strict=True)
            ]
        return found

    def _keep_others(self, begun: QuietStep) -> None:
        """Keep loss scaler and schedulers."""
        recorder = self._recorder
        if recorder.scaler is not None:
            begun.scaler = twin_of(recorder.scaler)
            begun.scale = scale_value(recorder.scaler)
            begun.previous = recorder.previous_scale
        if recorder.schedulers:
            begun.schedulers = [
                twin_of(one) if _is_simple(one) else capture_object(one)
                for one in recorder.schedulers
            ]


def _is_possible(recorder: Recorder) -> bool:
    """Whether steps of a recorder can be quiet, as far as its parts tell before the first."""
    return (
        recorder.ranks is None
        and recorder.world == 1
        and (recorder.scaler is None or type(recorder.scaler) in _scalers())
        and not recorder.monitor.looks_at_updates
    )


def _is_possible_high_level(recorder: Recorder) -> bool:
    """Whether the recorder can run steps quietly itself."""
    return (
        recorder.step_object is not None
        and len(recorder.optimizers) == 1
        and not recorder.may_update_early
    )


def _scalers() -> tuple[type, ...]:
    """Loss scalers whose attributes are known to be plain."""
    return (torch.amp.GradScaler, torch.cuda.amp.GradScaler)


def _is_simple(scheduler: Any) -> bool:
    """Whether a scheduler's attributes are numbers, lists of them, and what never changes."""
    kind = type(scheduler)
    return kind.__module__ == "torch.optim.lr_scheduler" and kind.__name__ not in _NESTED_SCHEDULERS


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
