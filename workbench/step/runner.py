"""The one runner: executes a training step unit by unit, with a gate after each.

Recorder and replay both drive it, so the order of what happens in a step exists once:
input → forward → loss → backward (per micro-batch), then reduce → unscale → gate → clip → update →
after-update gate → logging.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from workbench.errors import UsageError
from workbench.step import gates
from workbench.step.gates import BadTensor
from workbench.step.proof import OptimizerRecord, UpdateProof
from workbench.step.protocol import TrainingStep
from workbench.step.stages import Stage, Unit, plan
from workbench.step.values import split_loss

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

Status = Literal["clean", "bad", "skip", "not_run"]


@dataclass(frozen=True)
class Outcome:
    """What one unit did and what its gate saw.

    Attributes:
        unit: The unit that ran.
        status: ``clean``; ``bad`` when a sink tripped; ``skip`` when non-finite gradients under a
            finite loss will make an enabled scaler skip; ``not_run`` when it was withheld.
        bad: The sinks that are non-finite, in the gate's order.
        exception: The exception the unit raised, if any (also a sink).
    """

    unit: Unit
    status: Status = "clean"
    bad: tuple[BadTensor, ...] = ()
    exception: Exception | None = None

    @property
    def tensor(self) -> str | None:
        """Name of the first bad sink, or None."""
        if self.bad:
            return self.bad[0].name
        if self.exception is not None:
            return f"exception:{type(self.exception).__name__}"
        return None


@dataclass
class StepValues:
    """What the running step has computed so far."""

    outputs: list[Any] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    components: list[dict[str, Tensor]] = field(default_factory=list)
    grad_norm: Tensor | float | None = None
    gate_norm: float | None = None
    unscaled: bool | None = None
    optimizer_records: list[OptimizerRecord] = field(default_factory=list)
    scale_before: float | None = None
    scale_after: float | None = None
    withheld: bool = False


class StepRunner:
    """Runs one training step of a ``TrainingStep``.

    Args:
        step: The user's training step.
        model: The model, possibly wrapped (DDP, compiled).
        optimizers: The optimizers, one per phase or one for all.
        scaler: The loss scaler, or None.
        before_unit: Called with each unit before it runs (the recorder notes RNG states there, a
            traced replay sets the stage).
    """

    def __init__(
        self,
        step: TrainingStep,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        scaler: Any = None,
        before_unit: Callable[[Unit], None] | None = None,
    ) -> None:
        self.step = step
        self.model = model
        self.optimizers = list(optimizers)
        self.scaler = scaler
        self.values = StepValues()
        self.plan: tuple[Unit, ...] = ()
        self.position = 0
        self.before_unit = before_unit
        self._batches: Sequence[Any] = ()
        self._masks_before: dict[str, gates.BadSet] = {}
        self.held: Mapping[str, str] = {}
        self._will_skip = False
        self._gate_context: Callable[[], AbstractContextManager[Any]] = nullcontext

    def begin(
        self, micro_batches: Sequence[Any], step_index: int = 0, clear_gradients: bool = True
    ) -> None:
        """Prepare a step: plan its units, clear gradients, note which buffers are already bad.

        Args:
            micro_batches: The batches to accumulate, at least one.
            step_index: Number of the step, handed to the user's step as ``step_index``.
            clear_gradients: Whether to clear gradients as a high-level step does.
        """
        if not micro_batches:
            raise UsageError(
                "A training step was given no micro-batches ('[]'), so there is nothing to run. "
                "Pass one batch, or a list with at least one micro-batch."
            )
        self._batches = micro_batches
        self.values = StepValues(scale_before=gates.scale_value(self.scaler))
        self.plan = plan(tuple(self.step_phases), len(micro_batches))
        self.position = 0
        self._will_skip = False
        self.step.step_index = step_index
        if clear_gradients:
            self.clear_gradients()
        self._masks_before = self._buffer_masks()

    @property
    def step_phases(self) -> Sequence[str]:
        """The step's phases; a duck-typed step without any has one."""
        return tuple(getattr(self.step, "phases", ("main",)))

    @property
    def next_unit(self) -> Unit | None:
        """The unit that ``advance`` would run, or None at the end."""
        return self.plan[self.position] if self.position < len(self.plan) else None

    @property
    def at_gradient_gate(self) -> bool:
        """Whether the unit that ran last was the one whose gate looks at the gradients."""
        if self.position == 0 or self.position > len(self.plan):
            return False
        gate = "unscale" if gates.scaler_enabled(self.scaler) else "reduce"
        return self.plan[self.position - 1].stage == gate

    @property
    def will_skip(self) -> bool:
        """Whether the scaler will skip the coming update."""
        return self._will_skip

    def note_skip(self, outcome: Outcome) -> None:
        """Note what a gate found outside ``advance`` (a loop that the user keeps)."""
        self._will_skip = outcome.status == "skip"

    @property
    def loss_value(self) -> Tensor | None:
        """The total loss so far (detached), or None before the first loss."""
        if not self.values.losses:
            return None
        total = self.values.losses[0].detach()
        for loss in self.values.losses[1:]:
            total = total + loss.detach()
        return total

    def advance(
        self, gate_context: Callable[[], AbstractContextManager[Any]] = nullcontext
    ) -> Outcome:
        """Run the next unit and its gate.

        Args:
            gate_context: Context the gate runs in; a traced replay keeps the gate's own tensor
                arithmetic out of the trace with it.

        An ``Exception`` from the user's code is not raised here: it is a sink and is returned in
        the outcome, so that the caller decides when to raise it again, unchanged.
        """
        unit = self.plan[self.position]
        self.position += 1
        self._gate_context = gate_context
        if self.before_unit is not None:
            self.before_unit(unit)
        try:
            self._run(unit)
        except Exception as error:  # noqa: BLE001 - handed to the caller, who re-raises it unchanged
            return Outcome(unit, "bad", (), error)
        with gate_context():
            return self._gate(unit)

    def withhold_update(self) -> None:
        """Finish the step without an optimizer step: back the scale off, clear gradients."""
        self.values.withheld = True
        seen = [gates.found_inf(self.scaler, opt) for opt in self.optimizers]
        # GradScaler.update() refuses to run before any gradient was looked at
        if gates.scaler_enabled(self.scaler) and any(value is not None for value in seen):
            self.scaler.update()
        self.values.scale_after = gates.scale_value(self.scaler)
        self.values.optimizer_records = [
            OptimizerRecord(False, "no", "gate", value) for value in seen
        ]
        self.clear_gradients()
        self.position = len(self.plan)

    def _buffer_masks(self) -> dict[str, gates.BadSet]:
        return gates.buffer_masks(self.model)

    def clear_gradients(self) -> None:
        """Set all gradients to None."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def autocast(self) -> AbstractContextManager[Any]:
        """The autocast region of the step, or an empty context."""
        return autocast_of(self.step, self.model)

    # -- the stages ---------------------------------------------------------------------------

    def _run(self, unit: Unit) -> None:
        getattr(self, f"_{unit.stage}")(unit)

    def _phase(self, unit: Unit) -> dict[str, str]:
        return {"phase": unit.phase} if len(self.step_phases) > 1 else {}

    def _optimizers_of(self, unit: Unit) -> list[Optimizer]:
        """The optimizers a phase updates: its own when there is one per phase, else all."""
        phases = list(self.step_phases)
        if len(phases) == len(self.optimizers) and len(phases) > 1:
            return [self.optimizers[phases.index(unit.phase)]]
        return self.optimizers

    def _input(self, unit: Unit) -> None:
        first = unit.micro_step == 0
        if first and unit.phase != self.step_phases[0]:
            self.clear_gradients()
            self._will_skip = False

    def _forward(self, unit: Unit) -> None:
        with self.autocast():
            outputs = self.step.forward(
                self.model, self._batches[unit.micro_step], **self._phase(unit)
            )
        self.values.outputs.append(outputs)

    def _loss(self, unit: Unit) -> None:
        with self.autocast():
            result = self.step.loss(
                self.values.outputs[-1], self._batches[unit.micro_step], **self._phase(unit)
            )
        total, components = split_loss(result)
        divisor = self._divisor()
        self.values.components.append(components)
        self.values.losses.append(total if divisor == 1.0 else total / divisor)

    def _divisor(self) -> float:
        if len(self._batches) == 1:
            return 1.0
        return float(self.step.loss_divisor(len(self._batches)))

    def _backward(self, unit: Unit) -> None:
        del unit
        self.step.backward(self.values.losses[-1], self._scaler())

    def _scaler(self) -> Any:
        return self.scaler

    def _reduce(self, unit: Unit) -> None:
        del unit
        self.step.after_backward(self.model)

    def _unscale(self, unit: Unit) -> None:
        optimizers = self._optimizers_of(unit)
        self.step.unscale(optimizers, self._scaler())
        self.note_unscaled(optimizers)

    def note_unscaled(self, optimizers: Sequence[Optimizer]) -> None:
        """Note whether the scaler has divided the gradients of these optimizers."""
        if hasattr(self.scaler, "_per_optimizer_states"):  # torch's looks as it unscales
            seen = [gates.found_inf(self.scaler, optimizer) for optimizer in optimizers]
            self.values.unscaled = all(value is not None for value in seen)

    def _clip(self, unit: Unit) -> None:
        for optimizer in self._optimizers_of(unit)[:1]:
            self.values.grad_norm = self.step.clip(self.model, optimizer)

    def _update(self, unit: Unit) -> None:
        optimizers = self._optimizers_of(unit)
        # the default update is the same in every phase and is not told which one
        phase = self._phase(unit) if _overrides(self.step, "update") else {}
        with self._gate_context():
            proofs = [UpdateProof(optimizer, self.scaler) for optimizer in optimizers]
        for optimizer in optimizers:
            self.step.update(self.model, optimizer, self._scaler(), **phase)
        with self._gate_context():
            self.values.optimizer_records += [proof.judge() for proof in proofs]

    def _after_update(self, unit: Unit) -> None:
        del unit
        self.values.scale_after = gates.scale_value(self.scaler)

    def _logging(self, unit: Unit) -> None:
        del unit
        with self._gate_context():
            loss = self.loss_value
        if loss is not None:
            self.step.log(loss, self.values.outputs[-1], self.model)

    # -- the gates ----------------------------------------------------------------------------

    def _gate(self, unit: Unit) -> Outcome:
        if unit.stage == "loss":
            bad = gates.check_loss(self.values.losses[-1], self.values.components[-1])
            return _outcome(unit, bad)
        if unit.stage in ("reduce", "unscale"):
            return self._gate_gradients(unit)
        if unit.stage == "clip":
            # under a scaler's skip the norm is non-finite as a matter of course
            bad = () if self._will_skip else gates.check_norm(self.values.grad_norm)
            return _outcome(unit, bad)
        if unit.stage == "after_update":
            bad = gates.after_update_sinks(
                self.model, self.optimizers, self.scaler, self._masks_before, self.held
            )
            return _outcome(unit, bad)
        return Outcome(unit)

    def _gate_gradients(self, unit: Unit) -> Outcome:
        """Gate unscaled gradients once: after ``unscale`` with a scaler, after ``reduce`` without.

        Without a scaler the gate reports the stage whose work it checks: ``backward``, or
        ``reduce`` when the step combines gradients itself.
        """
        scaled = gates.scaler_enabled(self.scaler)
        if scaled != (unit.stage == "unscale"):
            return Outcome(unit)
        clips = getattr(self.step, "max_grad_norm", None) is not None or _overrides(
            self.step, "clip"
        )
        used = None if clips else self._optimizers_of(unit)
        bad, self.values.gate_norm = gates.gradient_gate(self.model, used)
        if bad and scaled and gates.scaler_skips(self.scaler, self._optimizers_of(unit)):
            self._will_skip = True
            return Outcome(unit, "skip", bad)
        return _outcome(self._gradient_unit(unit, scaled), bad)

    def _gradient_unit(self, unit: Unit, scaled: bool) -> Unit:
        stage: Stage = unit.stage
        if not scaled and not _overrides(self.step, "after_backward"):
            stage = "backward"
        return replace(unit, stage=stage)


def _outcome(unit: Unit, bad: tuple[BadTensor, ...]) -> Outcome:
    return Outcome(unit, "bad", bad) if bad else Outcome(unit)


def autocast_of(step: Any, model: nn.Module) -> AbstractContextManager[Any]:
    """The autocast region of a step, or an empty context."""
    wanted = getattr(step, "autocast", None)
    if wanted is None:
        return nullcontext()
    device = wanted.device_type or _device_type(model)
    return torch.autocast(
        device,
        dtype=wanted.torch_dtype,
        enabled=wanted.enabled,
        cache_enabled=wanted.cache_enabled,
    )


def _device_type(model: nn.Module) -> str:
    for tensor in model.parameters():
        return tensor.device.type
    return "cpu"


def _overrides(step: TrainingStep, name: str) -> bool:
    """Whether the user's step brings its own version of an optional method."""
    own = getattr(type(step), name, None)
    return own is not None and own is not getattr(TrainingStep, name)
