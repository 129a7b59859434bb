"""One replay from the sealed pre-step state: built fresh, advanced unit by unit."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from workbench.errors import CannotRunError, WorkbenchError
from workbench.numerics.dense import local_part
from workbench.replay import adjust
from workbench.replay.compiled import (
    compile_model,
    fresh_compiler,
    graphs_captured,
    is_compiled,
)
from workbench.replay.memory import refuse_out_of_memory, refuse_while_building
from workbench.replay.precision import run_in_float32
from workbench.replay.reduction import Reduction
from workbench.replay.runner import ReplayRunner
from workbench.replay.samples import keep_samples, layout_of
from workbench.replay.settings import applied, runs_eagerly
from workbench.replay.sharded import cast_as_fsdp
from workbench.replay.source import Source
from workbench.replay.stages import look_at_batch
from workbench.replay.without_effect import Facts, without_effect
from workbench.replay.wrapping import wrapped
from workbench.step import gates
from workbench.step.digests import gradient_digests, loss_bits
from workbench.step.names import named_parameters
from workbench.step.rng import RngState, capture_rng, generators_of, restore_rng

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from workbench.evidence import Conditions
    from workbench.step.runner import Outcome


@dataclass
class Observed:
    """What a session has seen so far, beside the outcomes of its units.

    Attributes:
        read_back: Settings read while the last unit ran.
        gradients: Digest of every gradient at its gate.
        gate_gradients: The gradients themselves at their gate, when they were asked for.
        loss: Total loss (detached), once there is one.
        rng: State of the random number generators after the last unit.
        seconds: Time spent in units.
    """

    read_back: dict[str, Any] = field(default_factory=dict)
    gradients: dict[str, str] = field(default_factory=dict)
    gate_gradients: dict[str, Tensor] | None = None
    loss: Tensor | None = None
    rng: RngState | None = None
    seconds: float = 0.0


class Session:
    """A built and restored step, ready to be advanced under its conditions.

    Args:
        source: The bundle's step, state and batches.
        conditions: What to run under.
        keep_gradients: Keep copies of the gradients at their gate, to measure distances.

    Raises:
        CannotRunError: The step's code fails while it builds, or the recorded state does not fit.
        UsageError: A condition names a sample or a module that does not exist.
    """

    def __init__(
        self, source: Source, conditions: Conditions, *, keep_gradients: bool = False
    ) -> None:
        self.source = source
        self.conditions = conditions
        self.recorded = source.recorded
        self.changed = self.recorded.changes(conditions)
        self.outcomes: list[Outcome] = []
        self.observed = Observed()
        self.no_effect: list[dict[str, str]] = []
        self._keep_gradients = keep_gradients
        with applied(conditions, self.recorded):
            try:
                self._build()
            except (RuntimeError, MemoryError) as error:
                refuse_while_building(error, source.step)
                raise
            self.observed.rng = capture_rng(generators_of(self.source.step))
        self.rng_at_start = self.rng_digest

    # -- building -----------------------------------------------------------------------------

    def _build(self) -> None:
        device = torch.device(self.conditions.device)
        step = self.source.step
        with _building(step):
            model = step.build_model()
            _place(model, device)
            built = step.build_optimizer(model)
            optimizers = list(built) if isinstance(built, Sequence) else [built]
            scaler = step.build_scaler()
            schedulers = list(step.build_schedulers(optimizers) or ())
        self.source.restore(model, optimizers, scaler, schedulers)
        self._attributes: dict[str, Any] = {}
        batches = self._adjust(model, optimizers, scaler, device)
        model = self._spread(model, optimizers)
        model = compile_model(model, self.conditions, self.recorded)
        self._compiles = is_compiled(model)
        if self._compiles:
            fresh_compiler()
        self._graphs = graphs_captured()
        self.batches = batches
        self.runner = ReplayRunner(step, model, optimizers, scaler, self.conditions, self.recorded)
        self.runner.held = self.source.held
        if self.source.wrap is None and not self.changed:
            self.runner.reduction = self.reduction
        self.runner.reduces = (
            self.source.wrap is not None and self.source.first_bad_stage == "reduce"
        )
        with self._step_attributes():
            self.runner.begin(batches, self.source.step_index)
        # before forward can write into the batch
        domains = getattr(step, "domains", None)
        self.input_state = look_at_batch(batches, self.source.first_bad, domains)

    def _adjust(
        self, model: nn.Module, optimizers: list[Optimizer], scaler: Any, device: torch.device
    ) -> list[Any]:
        changed = self.changed
        failed: dict[str, str | None] = {}
        dtype = adjust.whole_dtype(self.conditions.dtype)
        if dtype is not None:
            adjust.cast_everything(model, optimizers, dtype)
        batches = [adjust.cast_batch(b, dtype, device) for b in self.source.batches]
        if self.conditions.keep_samples is not None:
            batches = self._some_samples(batches, failed)
        failed["mode"] = adjust.set_mode(model, self.conditions.mode)
        failed["optimizer"] = adjust.choose_optimizer(optimizers, self.conditions.optimizer)
        if "scale" in changed and self.conditions.scale is not None:
            failed["scale"] = adjust.set_scale(scaler, self.conditions.scale)
        if "max_grad_norm" in changed:
            self._attributes["max_grad_norm"] = self.conditions.max_grad_norm
        self.float32 = run_in_float32(model, self.conditions.float32_modules)
        if self.conditions.rng != "recorded":
            adjust.reseed(int(self.conditions.rng))
        own_clip = adjust.overrides(self.source.step, "clip")
        facts = Facts(
            device=device,
            stage=self.source.first_bad_stage,
            has_scaler=gates.scaler_enabled(scaler),
            own_clip=own_clip,
            clips=own_clip or self._attribute("max_grad_norm") is not None,
        )
        self.no_effect = without_effect(self.conditions, changed, facts, failed)
        self.observed.read_back = adjust.describe(model)
        return batches

    def _spread(self, model: nn.Module, optimizers: list[Optimizer]) -> nn.Module:
        """Do what the run's wrappers did: wrap alike among ranks, cast alike in one process."""
        source = self.source
        self.reduction, self.said = Reduction(source), list(source.said)
        casts = adjust.whole_dtype(self.conditions.dtype) is None
        if source.wrap is not None:
            return wrapped(source.wrap, model, optimizers, casts=casts)
        if source.parallel and casts:
            self.said += cast_as_fsdp(model, source.parallel)
        return model

    def _some_samples(self, batches: list[Any], failed: dict[str, str | None]) -> list[Any]:
        wanted = self.conditions.keep_samples or ()
        every = max(layout_of(batch).size for batch in batches)
        if set(wanted) == set(range(every)):
            failed["keep_samples"] = "No effect: these are all samples of the batch."
        return [keep_samples(batch, wanted) for batch in batches]

    def _attribute(self, name: str) -> Any:
        """An attribute of the step as this session runs it."""
        return self._attributes.get(name, getattr(self.source.step, name, None))

    @contextmanager
    def _step_attributes(self) -> Iterator[None]:
        with adjust.step_attributes(self.source.step, self._attributes):
            yield

    # -- running ------------------------------------------------------------------------------

    @contextmanager
    def running(self, *, traced: bool = False) -> Iterator[Callable[[], dict[str, Any]]]:
        """Hold conditions, the step's attributes and the session's own random numbers.

        Yields:
            A function that reads the settings back.
        """
        with (
            applied(self.conditions, self.recorded, traced=traced) as read,
            self._step_attributes(),
        ):
            if self.observed.rng is not None:
                restore_rng(self.observed.rng, generators_of(self.source.step))
            try:
                yield read
            finally:
                self.observed.rng = capture_rng(generators_of(self.source.step))

    def advance(self) -> Outcome:
        """Run the next unit under the session's conditions."""
        with self.running() as read:
            started = time.perf_counter()
            outcome = self.runner.advance()
            _finish(self.conditions.device)
            self.observed.seconds += time.perf_counter() - started
            self.observed.read_back |= read() | self._model_read_back()
            self.observed.read_back["compile"] = self._backend_now()
        refuse_out_of_memory(outcome, self.runner.model, self.source)
        self.outcomes.append(outcome)
        self._observe()
        return outcome

    def look_before_reduction(self) -> None:
        """Go on until this rank's gradients can be compared with those it gave to the reduction.

        Only where they were recorded; an exception on the way ends it.
        """
        if self.runner.reduction is None or not self.source.digests.get("contribution"):
            return
        while self.reduction.own is None and not self.raised:
            unit = self.runner.next_unit
            if unit is None or unit.stage == "reduce":
                self.reduction.look(self.runner.model)
                return
            self.advance()

    def _backend_now(self) -> str:
        """The backend that runs now: none where torch.compile captured nothing of the model."""
        if not self._compiles or runs_eagerly():
            return "off"
        called = any(outcome.unit.stage == "forward" for outcome in self.outcomes)
        nothing = called and graphs_captured() == self._graphs
        return "off" if nothing else self.conditions.compile

    def _model_read_back(self) -> dict[str, Any]:
        runner = self.runner
        seen = adjust.describe(runner.model)
        seen["optimizer"] = adjust.optimizer_implementation(runner.optimizers)
        seen["scale"] = runner.values.scale_before
        seen["max_grad_norm"] = getattr(self.source.step, "max_grad_norm", None)
        if runner.autocast_seen is not None:
            seen["autocast"] = runner.autocast_seen
        return seen

    def _observe(self) -> None:
        """Keep what a verdict compares, at the moments the recorder keeps it too."""
        unit = self.runner.plan[self.runner.position - 1]
        if unit.stage == "loss":
            self.observed.loss = self.runner.loss_value
        gate = "unscale" if gates.scaler_enabled(self.runner.scaler) else "reduce"
        if unit.stage != gate:
            return
        model = self.runner.model
        self.observed.gradients = gradient_digests(model)
        if self._keep_gradients:
            self.observed.gate_gradients = {
                name: local_part(p.grad.detach()).clone()
                for name, p in named_parameters(model)
                if p.grad is not None
            }

    @property
    def tripped(self) -> bool:
        """Whether something was bad so far, in the gates or in the batch."""
        return bool(self.outcomes) and (
            self.input_state.status == "bad" or any(o.status == "bad" for o in self.outcomes)
        )

    @property
    def raised(self) -> bool:
        """Whether the last unit raised, so that the step cannot go on."""
        return bool(self.outcomes) and self.outcomes[-1].exception is not None

    @property
    def loss_bits(self) -> str | None:
        """The loss's bytes, or None before the loss stage."""
        return None if self.observed.loss is None else loss_bits(self.observed.loss)

    @property
    def rng_digest(self) -> str | None:
        """Digest of the random numbers after the last unit."""
        return None if self.observed.rng is None else self.observed.rng.digest()


def _place(model: nn.Module, device: torch.device) -> None:
    if any(t.is_meta for t in (*model.parameters(), *model.buffers())):
        model._apply(lambda t: t if t.is_meta else t.to(device))  # what has no values stays
    else:
        model.to(device)


@contextmanager
def _building(step: object) -> Iterator[None]:
    """Turn a failure of the user's building code into one clear paragraph."""
    try:
        yield
    except WorkbenchError:
        raise
    except Exception as error:
        refuse_while_building(error, step)
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise CannotRunError(
            f"The training step '{type(step).__name__}' could not be built: "
            f"{type(error).__name__}: {error} ({where.filename}:{where.lineno}), so nothing was "
            "replayed. build_model, build_optimizer, build_scaler and build_schedulers must work "
            f"on this machine without the training script around them.{_missing_name(error)}"
        ) from error


def _missing_name(error: Exception) -> str:
    if not isinstance(error, NameError):
        return ""
    return (
        " Of a step's file only imports, functions, classes and literal assignments are run, so "
        "that an unguarded script does not start training again: make what else it needs (a "
        "device, a vocabulary) inside the step."
    )


def _finish(device: str) -> None:
    # kernels run behind the host on CUDA; a stage's time is only its own once they are done
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
