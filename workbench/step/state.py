"""The state of one training step from before it ran: captured in training, restored in replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from workbench.step.bad_sets import BadSet
from workbench.step.host_copies import Copies
from workbench.step.model_restore import materialize, model_differences, restore_model
from workbench.step.model_snapshot import ModelSnapshot, PreparedModel
from workbench.step.model_state import ModelState
from workbench.step.moving import Copier, move_batches, move_state
from workbench.step.object_state import (
    KnownAttributes,
    ObjectState,
    capture_object,
    restore_object,
    type_name,
)
from workbench.step.optimizer_state import (
    OptimizerState,
    capture_optimizer,
    hyperparameters,
    optimizer_differences,
    parameter_names,
    refuse_differences,
    restore_optimizers,
)
from workbench.step.rng import RngState, capture_rng, generators_of, restore_rng
from workbench.step.snapshots import (
    Kept,
    assume,
    exact_copy,
    keep,
    plain,
    snapshot_tree,
    storage_key,
)

if TYPE_CHECKING:
    from torch.optim import Optimizer

UnitKey = tuple[str, int]
"""Phase and micro-step."""


@dataclass
class StepState:
    """Everything a step reads that its code does not say.

    Attributes:
        step_index: Number of the step in the run.
        micro_batches: Every micro-batch as the model was given it.
        model: The model's state; None when it was dropped before the update.
        optimizers: The optimizers' states; empty when they were not kept.
        scaler: The loss scaler's state, or None without a scaler.
        schedulers: States of the learning-rate schedulers.
        rng: Random state before the step.
        unit_rng: Random state before each micro-step, by phase and micro-step.
        hyperparameters: Per optimizer and parameter group, as used in this step; there even where
            optimizer state is not.
        step_attributes: Simple attributes of the user's training step object.
        low_level: Whether the user's own loop ran the step.
    """

    step_index: int
    micro_batches: list[Any]
    model: ModelState | None
    optimizers: list[OptimizerState]
    scaler: ObjectState | None
    schedulers: list[ObjectState]
    rng: RngState
    unit_rng: dict[UnitKey, RngState] = field(default_factory=dict)
    hyperparameters: list[list[dict[str, Any]]] = field(default_factory=list)
    step_attributes: dict[str, Any] = field(default_factory=dict)
    low_level: bool = False


class Prepared:
    """What the snapshots of a run's steps know from one another; it makes the next one cheap."""

    def __init__(self) -> None:
        self.model = PreparedModel()
        self.step = KnownAttributes(skip=("step_index",))


class StepSnapshot:
    """A snapshot of a step that costs little until it is needed.

    Args:
        model: The model, possibly wrapped.
        optimizers: The optimizers.
        scaler: The loss scaler, or None.
        schedulers: The learning-rate schedulers.
        micro_batches: The batches of the step.
        step_index: Number of the step.
        keep_optimizers: Whether to take snapshots of optimizer state now; otherwise it is read at
            the trip and marked ``assumed``, which is right as long as no update has run.
        generators: The user's own random generators by name.
        step: The user's training step object, whose simple attributes are kept.
        low_level: Whether the user's own loop runs the step.
        loaders: Seeds of data loader workers, by loader.
        prepared: What the snapshot of the step before has seen.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        scaler: Any = None,
        schedulers: Sequence[Any] = (),
        micro_batches: Sequence[Any] = (),
        step_index: int = 0,
        keep_optimizers: bool = True,
        generators: Mapping[str, torch.Generator] | None = None,
        step: Any = None,
        low_level: bool = False,
        loaders: dict[str, dict[str, Any]] | None = None,
        prepared: Prepared | None = None,
    ) -> None:
        prepared = Prepared() if prepared is None else prepared
        self.low_level = low_level
        self._model_object = model
        self._optimizer_objects = list(optimizers)
        self._generators = generators_of(step)
        if generators:
            self._generators |= generators
        self.step_index = step_index
        self.rng = capture_rng(self._generators)
        if loaders:
            self.rng = replace(self.rng, loaders=loaders)
        self.unit_rng: dict[UnitKey, RngState] = {}
        self.micro_batches = [snapshot_tree(batch) for batch in micro_batches]
        self.model: ModelSnapshot | None = ModelSnapshot(model, prepared.model)
        self.buffers: ModelSnapshot | None = None
        self._groups = [hyperparameters(optimizer) for optimizer in optimizers]
        self._optimizers: list[OptimizerState] | None = None
        if keep_optimizers:
            self._optimizers = self._capture_optimizers("cow")
        self.scaler = None if scaler is None else capture_object(scaler)
        self.step_attributes: dict[str, Any] = {}
        self.copies: list[Copies] = []
        if step is not None:
            self.step_attributes = prepared.step.of(step)
        self.schedulers = [capture_object(scheduler) for scheduler in schedulers]

    @classmethod
    def of(
        cls,
        model: tuple[nn.Module, ModelSnapshot | None],
        optimizers: tuple[Sequence[Optimizer], Sequence[Any] | None],
        groups: list[list[dict[str, Any]]],
        others: tuple[Any, Sequence[Any]],
        micro_batches: list[Any],
        step_index: int,
        rng: tuple[RngState, dict[UnitKey, RngState]],
        generators: dict[str, torch.Generator],
        step_attributes: dict[str, Any],
        low_level: bool = False,
    ) -> StepSnapshot:
        """The snapshot of a step whose parts were kept already.

        Args:
            model: The model and its snapshot.
            optimizers: The optimizers, and what ``hold_optimizer`` or ``capture_optimizer`` kept of
                each; None where their state was not kept.
            groups: Their hyperparameters.
            others: Loss scaler and schedulers, or twins of them, or what was captured; None without
                a scaler.
            micro_batches: Snapshots of the batches.
            step_index: Number of the step.
            rng: Random state from before the step, and from before its micro-steps.
            generators: The generators whose state is in it.
            step_attributes: Simple attributes of the training step object.
            low_level: Whether the user's own loop runs the step.
        """
        self = object.__new__(cls)
        self.low_level = low_level
        self._model_object, self.model = model
        self._optimizer_objects = list(optimizers[0])
        self._groups = groups
        self.micro_batches = micro_batches
        self.step_index = step_index
        self.rng, self.unit_rng = rng
        self._generators = generators
        self.step_attributes = step_attributes
        self.buffers = None
        self.copies = []
        self._optimizers = None
        if optimizers[1] is not None:
            self._optimizers = self._capture_optimizers("cow", optimizers[1])
        scaler, schedulers = others
        self.scaler = None if scaler is None else _captured(scaler)
        self.schedulers = [_captured(scheduler) for scheduler in schedulers]
        return self

    def add_micro_batch(self, batch: Any) -> None:
        """Keep one more micro-batch (a low-level loop names them one by one)."""
        self.micro_batches.append(snapshot_tree(batch))

    def before_unit(self, phase: str, micro_step: int) -> None:
        """Note the random state before a micro-step."""
        first = not self.unit_rng
        self.unit_rng[phase, micro_step] = self.rng if first else capture_rng(self._generators)

    def drop_before_update(self) -> None:
        """Let go of what an update would have to copy."""
        if self.model is not None:
            self.buffers = self.model.only_buffers()
        self.model = None
        self._optimizers = None

    def keep_buffers(self) -> None:
        """Keep the buffers as they are now: what DDP broadcast is what the step began with."""
        if self.model is not None:
            self.model.keep_buffers()

    def buffer_masks(self) -> dict[str, BadSet]:
        """The non-finite set of every buffer that had one before the step."""
        kept = self.model or self.buffers
        return {} if kept is None else kept.buffer_masks()

    def settle_optimizers(self) -> None:
        """Read optimizer state now unless it was kept before; call only before an update."""
        if self._optimizers is None:
            self._optimizers = self._capture_optimizers("assumed")

    def move_state(self, copy: Copier) -> None:
        """Begin to copy what an update will write into host memory."""
        if self.model is not None and self._optimizers is not None:
            self.copies += move_state(self.model, self._optimizer_objects, self._optimizers, copy)

    def move_batches(self, copy: Copier) -> None:
        """Begin to copy the batches into host memory, where they are on a device."""
        self.micro_batches, begun = move_batches(self.micro_batches, copy)
        self.copies += begun

    def freeze(self) -> StepState:
        """Turn the snapshot into a state that can be stored or restored."""
        for copies in self.copies:
            copies.wait()
        return self.peek()

    def peek(self) -> StepState:
        """The same state without a wait: shapes and places, not values, can be relied on."""
        return StepState(
            step_index=self.step_index,
            micro_batches=self.micro_batches,
            model=None if self.model is None else self.model.freeze(),
            optimizers=self._optimizers or [],
            scaler=self.scaler,
            schedulers=self.schedulers,
            rng=self.rng,
            unit_rng=dict(self.unit_rng),
            hyperparameters=[
                [{k: v for k, v in group.items() if plain(v)} for group in groups]
                for groups in self._groups
            ],
            step_attributes=self.step_attributes,
            low_level=self.low_level,
        )

    def _capture_optimizers(
        self, how: Any, held: Sequence[Any] | None = None
    ) -> list[OptimizerState]:
        names = parameter_names(self._model_object, self._optimizer_objects)
        if self.model is not None:  # FSDP2 exchanges parameters within a step
            names |= self.model.parameter_names()
        objects = self._optimizer_objects if held is None else held
        return [
            one if isinstance(one, OptimizerState) else capture_optimizer(one, names, groups, how)
            for one, groups in zip(objects, self._groups, strict=True)
        ]


def _captured(value: Any) -> ObjectState:
    return value if isinstance(value, ObjectState) else capture_object(value)


def capture_state(
    model: nn.Module,
    optimizers: Sequence[Optimizer] = (),
    scaler: Any = None,
    schedulers: Sequence[Any] = (),
    micro_batches: Sequence[Any] = (),
    step_index: int = 0,
) -> StepState:
    """Capture the state of a step at once; nothing of it is advanced or changed.

    Args:
        model: The model, possibly wrapped.
        optimizers: The optimizers.
        scaler: The loss scaler, or None.
        schedulers: The learning-rate schedulers.
        micro_batches: The batches of the step.
        step_index: Number of the step.
    """
    return StepSnapshot(model, optimizers, scaler, schedulers, micro_batches, step_index).freeze()


class Placer:
    """Gives private copies of recorded tensors; what shared a storage shares it in the copies."""

    def __init__(self, groups: Sequence[Mapping[str, Tensor]] = ()) -> None:
        counts: dict[int, int] = {}
        for group in groups:
            for tensor in group.values():
                key = storage_key(tensor)
                counts[key] = counts.get(key, 0) + 1
        self._shared = {key for key, number in counts.items() if number > 1}
        self._storages: dict[tuple[int, torch.device], Tensor] = {}

    def __call__(self, t: Tensor, device: torch.device | str) -> Tensor:
        """Copy a tensor to a device, with its strides and its sharing."""
        device = torch.device(device)
        t = t.detach()
        key = storage_key(t)
        if key not in self._shared or t.layout is not torch.strided:
            return exact_copy(t, device)
        base = self._storages.get((key, device))
        if base is None:
            raw = torch.empty(0, dtype=torch.uint8, device=t.device)
            raw.set_(t.untyped_storage())
            base = self._storages[key, device] = raw.to(device, copy=True)
        view = torch.empty(0, dtype=t.dtype, device=device)
        return view.set_(base.untyped_storage(), t.storage_offset(), t.shape, t.stride())


def restore_state(
    state: StepState,
    model: nn.Module,
    optimizers: Sequence[Optimizer] = (),
    scaler: Any = None,
    schedulers: Sequence[Any] = (),
    step: Any = None,
) -> None:
    """Put a recorded state into freshly built objects, bit for bit, random state last.

    Everything is compared first; where something does not fit, nothing is loaded. Restore the
    random state once more (``restore_rng(state.rng)``) when anything random runs in between.

    Args:
        state: The recorded state; it is not changed and can be restored again.
        model: The model as the training step builds it.
        optimizers: The optimizers it builds; leave out to restore the model alone.
        scaler: The scaler it builds, or None.
        schedulers: The schedulers it builds.
        step: The training step object, whose own simple attributes are put back.

    Raises:
        CannotRunError: The state lacks the model, or names or shapes differ.
    """
    if state.model is None:
        refuse_differences(["the record has no parameters from before the step"])
        return
    materialize(state.model, model)
    differences = model_differences(state.model, model)
    if optimizers and state.optimizers:
        differences += optimizer_differences(state.optimizers, model, optimizers)
    if (scaler is None) != (state.scaler is None):
        there = "none" if state.scaler is None else state.scaler.type
        here = "none" if scaler is None else type_name(scaler)
        differences.append(f"loss scaler: {there!r} in the record, {here!r} was built")
    refuse_differences(differences)
    place = Placer([state.model.tensors])
    restore_model(state.model, model, place)
    if optimizers and state.optimizers:
        restore_optimizers(state.optimizers, model, optimizers, place)
    if scaler is not None and state.scaler is not None:
        restore_object(state.scaler, scaler)
    for saved, scheduler in zip(state.schedulers, schedulers, strict=False):
        restore_object(saved, scheduler)
    if step is not None:
        _restore_attributes(step, state.step_attributes, place)
    restore_rng(state.rng, generators_of(step))


def _restore_attributes(
    step: Any, attributes: Mapping[str, Any], place: Callable[..., Tensor]
) -> None:
    saved = ObjectState(type_name(step), dict(attributes))
    restore_object(saved, step, lambda t: place(t, t.device))


__all__ = [
    "Kept",
    "Placer",
    "StepSnapshot",
    "StepState",
    "assume",
    "capture_state",
    "keep",
    "restore_state",
]
