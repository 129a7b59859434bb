"""What a replay starts from: the step's code, the sealed state, the record to compare with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from workbench.errors import CannotRunError
from workbench.replay.adjust import place_scaler
from workbench.step.assemble import NEEDS
from workbench.step.state import StepState, restore_state

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from workbench.evidence import Bundle, Conditions
    from workbench.evidence.schema import FirstBad
    from workbench.step import TrainingStep

GOALS: dict[str, tuple[str, ...]] = {
    "forward_loss": ("input", "forward", "loss"),
    "backward": ("backward", "reduce", "unscale", "clip"),
    "update": ("update", "after_update", "logging"),
}
"""The recovery goal that each stage needs."""
COMPLETE = "complete"


@dataclass
class Source:
    """A recorded step, ready to be built as often as wanted.

    Attributes:
        step: The training step.
        state: Everything the step reads, from before it ran.
        recorded: The original conditions.
        kind: ``nonfinite``, ``alert`` or ``captured``.
        first_bad: What was caught, or None.
        completeness: Per recovery goal ``complete``, or what is missing and why.
        evidence: The recorded evidence (``evidence.json``).
        environment: The recorded environment.
        recorded_gradients: Reads the recorded gradients by parameter name (may be large).
        path: Where the bundle is, for messages.
        calls_attention: Whether the step calls scaled dot product attention, once it was looked at.
        ranks: What the bundle says of other ranks (``ranks.json``); empty for one process.
        lacking: Why the state is not whole without the bundles of other ranks, or None.
        said: Where the parts of the state came from, in sentences.
        wrap: Wraps the model as the run did, where all ranks are replayed together; told whether
            FSDP2's mixed precision is applied.
    """

    step: TrainingStep
    state: StepState
    recorded: Conditions
    kind: str = "nonfinite"
    first_bad: FirstBad | None = None
    completeness: Mapping[str, str] = field(default_factory=dict)
    evidence: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    bundle: Bundle | None = None
    path: str = ""
    calls_attention: bool | None = None
    ranks: Mapping[str, Any] = field(default_factory=dict)
    lacking: str | None = None
    said: Sequence[str] = ()
    wrap: Callable[[nn.Module, bool], nn.Module] | None = None

    @classmethod
    def from_bundle(cls, bundle: Bundle, step: Any = None, trust: str | None = None) -> Source:
        """Read a bundle and find its step.

        Args:
            bundle: An open bundle.
            step: The user's step, or a reference to it; None takes the one the bundle names.
            trust: ``"import"`` or ``"source"``: what of the bundle may be run.

        Raises:
            CannotRunError: Code is not trusted or not importable, or the state is missing.
            BundleError: The state is damaged.
        """
        from workbench.evidence.incidents import ranks_file
        from workbench.step import load_step, read_state
        from workbench.step.assemble import complete_state
        from workbench.step.classes import classes_of

        manifest = bundle.manifest
        loaded = load_step(bundle, step=step, trust=trust)
        state = read_state(bundle, resolve=classes_of(loaded, bundle))
        completed = complete_state(state, bundle)
        state = completed.state
        take = getattr(loaded, "take_recorded", None)
        if take is not None:  # an integration's step is told what it was built from
            take(state.step_attributes)
        return cls(
            step=loaded,
            state=state,
            recorded=bundle.conditions,
            kind=manifest.kind,
            first_bad=manifest.first_bad,
            completeness=manifest.completeness,
            evidence=bundle.evidence() if bundle.has("evidence.json") else {},
            environment=bundle.environment() if bundle.has("environment.json") else {},
            bundle=bundle,
            path=str(bundle.path),
            ranks=ranks_file(bundle),
            lacking=completed.why_not,
            said=completed.said,
        )

    @property
    def batches(self) -> list[Any]:
        """Every micro-batch as recorded; copy before use."""
        return self.state.micro_batches

    @property
    def step_index(self) -> int:
        """Number of the step in its run."""
        return self.state.step_index

    @property
    def first_bad_stage(self) -> str | None:
        """The stage that was caught, or None."""
        return None if self.first_bad is None else self.first_bad.stage

    @property
    def digests(self) -> Mapping[str, Any]:
        """The digests a replay is compared by; empty where the record has none."""
        found = self.evidence.get("digests", {})
        return found if isinstance(found, Mapping) else {}

    @property
    def held(self) -> Mapping[str, str]:
        """The masks that parameters held when the run began, as its gates knew them."""
        found = self.evidence.get("held")
        return found if isinstance(found, Mapping) else {}

    @property
    def bad_elsewhere(self) -> int | None:
        """The rank that tripped, where this rank stopped only because that one did; else None."""
        bad = self.first_bad
        if bad is None or self.bundle is None or self.kind != "nonfinite":
            return None
        return None if bad.rank == self.bundle.manifest.rank else bad.rank

    @property
    def parallel(self) -> Mapping[str, Any]:
        """How the model was spread over ranks; empty for one process."""
        found = self.ranks.get("parallel")
        return found if isinstance(found, Mapping) else {}

    def gradients(self) -> dict[str, Tensor]:
        """The recorded gradients by parameter name; empty where they were not kept."""
        if self.bundle is None or not self.bundle.has("gradients.safetensors"):
            return {}
        recorded: dict[str, Tensor] = self.bundle.tensors("gradients.safetensors")
        return recorded

    def unavailable(self) -> dict[str, str]:
        """The stages that cannot be replayed, each with the reason."""
        found: dict[str, str] = {}
        reason = self._missing_at_all()
        for goal, stages in GOALS.items():
            said = self.completeness.get(goal, COMPLETE)
            if said.startswith(NEEDS) and self.lacking is None:
                said = COMPLETE  # what it needs lies beside it
            if reason is None and said != COMPLETE:
                reason = said
            if reason is not None:
                found |= dict.fromkeys(stages, reason)
        return found

    def _missing_at_all(self) -> str | None:
        if self.lacking is not None:
            return self.lacking
        if self.state.model is None:
            return "the bundle has no parameters from before the step"
        if not self.state.micro_batches:
            return "the bundle has no batch"
        return None

    def restore(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        scaler: Any,
        schedulers: Sequence[Any],
    ) -> None:
        """Put the recorded state into freshly built objects.

        Raises:
            CannotRunError: Something that was built does not fit what was recorded.
        """
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        restore_state(self.state, model, optimizers, scaler, schedulers, self.step)
        place_scaler(scaler, device)

    def require(self, stage: str) -> None:
        """Refuse a stage that the bundle cannot replay.

        Raises:
            CannotRunError: With what is missing.
        """
        missing = self.unavailable()
        reason = missing.get(stage)
        if reason is None:
            return
        if "input" in missing:
            rest = "No other stage can, either; what was recorded can be read all the same."
        else:
            last = [one for stages in GOALS.values() for one in stages if one not in missing][-1]
            rest = f"The stages up to '{last}' can: --until {last}."
        raise CannotRunError(
            f"The stage '{stage}' of '{self.path}' cannot be replayed: {reason}. {rest}"
            f"{self._how_to_keep()}"
        )

    def _how_to_keep(self) -> str:
        """How to record so that a failure after the update can be replayed next time."""
        late = self.first_bad_stage in ("update", "after_update", "logging")
        if not late or self.state.model is not None:
            return ""
        return (
            " A failure that shows only after the update needs the state from before it: record "
            "with Recorder(..., policy=Policy(recovery_every=1))."
        )
