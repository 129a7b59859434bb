"""What is known of a quiet step: what was kept before it ran, and what it has computed so far."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from workbench.step.model_snapshot import ModelSnapshot
from workbench.step.state import StepSnapshot

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from workbench.record import soft
    from workbench.record.recorder import Recorder
    from workbench.step.held import Held
    from workbench.step.proof import OptimizerRecord
    from workbench.step.rng import RngState


class QuietStep:
    """One quiet step; its record is made of it once the group is written.

    Attributes:
        index: Number of the step.
        time: When it began.
        low_level: Whether the user's own loop runs it.
        batches: Its micro-batches, kept from before they ran.
        looked: What was seen of them, where that cannot wait.
        held: The model's tensors; after the update only its buffers.
        optimizers: The optimizers' states, where the loop may change them early.
        scaler: The loss scaler as it was.
        schedulers: The schedulers as they were.
        rng: Random state from before it.
        unit_rng: Random state from before each micro-step.
        generators: The generators whose state is in it.
        groups: Hyperparameters per optimizer.
        attributes: Simple attributes of the training step object.
        sample_ids: Identifiers of its samples.
        sums: Bit sums of parameters and buffers, for the recovery ring.
        scale: The loss scale it uses; None without a scaler.
        scale_after: The loss scale it left.
        unscaled: Whether the scaler divided its gradients.
        outputs: What its forward gave.
        losses: Its losses, one a micro-batch.
        components: Their parts.
        number: Its total loss.
        parts: Parts of its loss, summed over micro-batches.
        total_norm: The norm that clipping uses, as a tensor.
        gate_norm: The norm that the gate took.
        grad_norm: The norm that clipping gave.
        norm: Its gradient norm in the ledger.
        max_norm: The threshold of a loop that clips itself.
        autocast: The autocast dtype that the loop's forward ran in; None where it was not seen.
        largest: The largest gradient after each micro-step of several.
        updating: Whether the update has begun.
        updated: Whether it was made.
        spoiled: Whether something non-finite was seen after it.
        records: What its optimizers did.
        rates: Learning rates per optimizer.
        soft_gates: What was non-finite and trips nothing; None where that is not known.
        advanced: Whether each scheduler advanced.
        training: Whether the model was in training mode.
        precision: In the ledger's words.
        previous: The loss scale of the step before.
        provenance: What the user knows of it.
    """

    optimizers: list[Any] | None = None
    scaler: Any = None
    schedulers: list[Any] | tuple[()] = ()
    sums: dict[str, int] | None = None
    scale: float | None = None
    scale_after: float | None = None
    unscaled: bool | None = None
    outputs: Any = None
    number: float = math.nan
    total_norm: Tensor | None = None
    gate_norm: float | None = None
    grad_norm: Tensor | float | None = None
    norm: float | None = None
    max_norm: float | None = None
    autocast: str | None = None
    updating: bool = False
    updated: bool = False
    spoiled: bool = False
    advanced: list[bool] | tuple[()] = ()
    training: bool = True
    precision: str = ""
    previous: float | None = None

    def __init__(self, index: int, time: float, low_level: bool, sample_ids: Any) -> None:
        self.index, self.time, self.low_level = index, time, low_level
        self.sample_ids = sample_ids
        self.batches: list[Any] = []
        self.looked: soft.Looked | None = None
        self.held: Held | None = None
        self.rng: RngState
        self.unit_rng: dict[tuple[str, int], RngState] = {}
        self.generators: dict[str, torch.Generator] = {}
        self.groups: list[list[dict[str, Any]]] = []
        self.attributes: dict[str, Any] = {}
        self.losses: list[Tensor] = []
        self.components: list[dict[str, Tensor]] = []
        self.parts: dict[str, float] = {}
        self.largest: list[Tensor | None] = []
        self.records: list[OptimizerRecord] = []
        self.rates: list[list[float | None]] = []
        self.soft_gates: list[dict[str, Any]] | None = []
        self.provenance: dict[str, Any] = {}

    def total_loss(self) -> Tensor:
        """The sum of its losses, as ``StepRunner.loss_value`` gives it."""
        total = self.losses[0].detach()
        for loss in self.losses[1:]:
            total = total + loss.detach()
        return total

    def let_go(self, recorder: Recorder) -> None:
        """Let go of what the update would have to copy."""
        if self.held is not None:
            self.held = self.held.part(recorder.prepared.model.buffers)
        self.optimizers = None
        self.updating = True

    def finish(self) -> None:
        """Let go of all that no record is made of."""
        self.held = self.outputs = self.total_norm = self.grad_norm = self.optimizers = None
        self.losses, self.components, self.largest = [], [], []

    def snapshot(self, recorder: Recorder) -> StepSnapshot:
        """What a session keeps of a step, from what was kept of this one."""
        prepared = recorder.prepared.model
        model = None
        if not self.updating and self.held is not None:
            model = ModelSnapshot.of(prepared, self.held)
        snapshot = StepSnapshot.of(
            (recorder.model, model),
            (recorder.optimizers, self.optimizers),
            self.groups,
            (self.scaler, self.schedulers),
            self.batches,
            self.index,
            (self.rng, self.unit_rng),
            self.generators,
            self.attributes,
            self.low_level,
        )
        if self.updating and self.held is not None:
            snapshot.buffers = ModelSnapshot.of_buffers(prepared, self.held)
        return snapshot
