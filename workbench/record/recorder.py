"""The recorder: drives or watches training steps, and seals the evidence of the one that trips.

Nothing here may change training: its own failures are logged and noted, exceptions of the user's
code go on unchanged, no random number is drawn, and no tensor of the user's is written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from workbench.errors import UsageError
from workbench.evidence.leftovers import remove_leftovers
from workbench.evidence.schema import FirstBad
from workbench.record import requests
from workbench.record.acting import act, failed
from workbench.record.alerts import AlertMonitor
from workbench.record.arguments import as_batches, as_list, new_run_id, refuse_others
from workbench.record.background import BackgroundWriter
from workbench.record.budget import Budget
from workbench.record.calm import CalmStep
from workbench.record.checkpoint_watch import CheckpointWatch
from workbench.record.ending import finish_step
from workbench.record.failures import Failures
from workbench.record.incident import safe_name
from workbench.record.ledger import Ledger
from workbench.record.loaders import Loaders
from workbench.record.low_level import LowLevelStep
from workbench.record.order_lint import OrderLint
from workbench.record.policy import Policy
from workbench.record.quiet import QuietSteps
from workbench.record.ranks.place import find_place
from workbench.record.ranks.together import join
from workbench.record.record import grad_norm
from workbench.record.recovery import RecoveryRing
from workbench.record.result import StepResult
from workbench.record.running import RecordingRunner
from workbench.record.scanning import UpdateScan, held_parameters
from workbench.record.session import Session
from workbench.record.trip import Agree, Finding, alone
from workbench.step.domains import violations
from workbench.step.early import may_update_early
from workbench.step.locate import step_reference
from workbench.step.runner import Outcome, StepRunner
from workbench.step.stages import Unit
from workbench.step.state import Prepared
from workbench.step.values import scalar, text_of

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

    from workbench.step.protocol import ScalerLike, TrainingStep

logger = logging.getLogger("workbench")
T = TypeVar("T")


class Recorder:
    """Records training steps and seals a bundle of the one that meets NaN or Inf.

    The state before a step is held by copy-on-write: a parameter that is written while it is held
    gets other memory. Code that keeps a raw ``data_ptr()`` over a step (an extension, a captured
    CUDA graph) has to read it anew in each.

    Args:
        step: The training step; None only for the low-level form, whose bundles then need one to
            be replayed.
        model: The model, possibly wrapped (DDP, FSDP2, compiled).
        optimizer: The optimizer, or several.
        scaler: The loss scaler, or None.
        directory: Where bundles and the ledger go.
        run_id: Name of the run; made up when left out.
        policy: What to do on a trip and how much to keep.
        provenance: What the user knows of the run: ``dataset_version``, ``shard_id``,
            ``model_commit``, ``tokenizer_hash``, ``config_hash``, ``checkpoint_parent`` and more.
        schedulers: The learning-rate schedulers.
        first_step: Number of the first step (a resumed run goes on counting).
        checkpoints: Where training saves its checkpoints; their states are then kept beside them.
        mesh: The device mesh, for the data, tensor and pipeline rank; None looks at the model.
        group: The process group that trains this model together; None for all ranks.

    Attributes:
        step_index: Number of the next step.
        failures: What failed inside the recorder, one sentence each: the last thousand.

    Raises:
        UsageError: No optimizer, or a step that lacks a method.
    """

    def __init__(
        self,
        step: TrainingStep | None,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        scaler: ScalerLike | None = None,
        directory: str | Path = "incidents",
        run_id: str | None = None,
        policy: Policy | None = None,
        provenance: Mapping[str, Any] | None = None,
        schedulers: Sequence[Any] = (),
        first_step: int = 0,
        checkpoints: str | Path | None = None,
        mesh: Any = None,
        group: Any = None,
    ) -> None:
        settings = {"directory": directory, "run_id": run_id, "policy": policy,
                    "provenance": provenance, "first_step": first_step}  # fmt: skip
        refuse_others(step, model, scaler, schedulers, settings)
        self.step_object, self.model, self.scaler = step, model, scaler
        self.optimizers = as_list(optimizer)
        self.schedulers = list(schedulers)
        self.directory, self.policy = Path(directory), policy or Policy()
        self.provenance = dict(provenance or {})
        self.step_index = int(first_step)
        self.place = find_place(model, group, mesh)
        self.rank, self.world = self.place.rank, self.place.world
        self.ranks = join(self, self.place, group)
        self.agree: Agree = alone if self.ranks is None else self.ranks.agree
        named = run_id or new_run_id()
        self.run_id = safe_name(named if self.ranks is None else self.ranks.share(named))
        self.running: Session | None = None
        suffix = f".rank{self.rank:05d}" if self.world > 1 else ""
        kept = (self.policy.ledger_window, suffix, self.policy.ledger_bytes)
        self.ledger = Ledger(self.directory, self.run_id, *kept)
        self.ring = RecoveryRing(self.policy.recovery_every, self.policy.recovery_bytes)
        self.scan = UpdateScan(model, self.policy.deep_scan_every)
        self.monitor = AlertMonitor(self.policy.alerts)
        self.calm = CalmStep(self.policy)
        self.checkpoints = None if checkpoints is None else CheckpointWatch(checkpoints)
        self.failures = Failures()
        self.previous_scale: float | None = None
        self.first_bad: FirstBad | None = None
        self.bundles: list[Path] = []
        self.budget = Budget(self.policy.max_total_bytes)
        self.background = BackgroundWriter()
        self.at_risk = False
        self.order = OrderLint(self.optimizers, scaler, self.schedulers)
        self._epochs: list[Any] = []
        self.generators: dict[str, torch.Generator] = {}
        self.loaders = Loaders()
        self.prepared = Prepared()
        self.guard("clean-up", lambda: remove_leftovers(self.directory))
        self.may_update_early = may_update_early(step, model)
        self.reference = self._find_reference()
        self.held = self.guard("parameters", lambda: held_parameters(model)) or {}
        self.quiet = QuietSteps(self)

    def jumped(self, runner: StepRunner) -> bool:
        """Whether this step, not updated yet, will make an alert by its loss or gradient norm."""
        if not self.monitor.looks_for_jumps:
            return False
        values = (scalar(runner.loss_value), grad_norm(runner))
        return bool(self.guard("alert", lambda: self.monitor.will_jump(*values)))

    # -- the two forms ----------------------------------------------------------------------------

    def train_step(
        self,
        batch: Any = None,
        micro_batches: Sequence[Any] | None = None,
        capture: str | None = None,
        sample_ids: Any = None,
    ) -> StepResult:
        """Run one whole training step: clear gradients, forward, backward, gates, update, log.

        Args:
            batch: The batch.
            micro_batches: Several batches whose gradients are accumulated, instead of one.
            capture: Reason to make a bundle of this step in any case.
            sample_ids: Identifiers of the samples, for the ledger.

        Raises:
            NonFiniteError: A sink tripped and the policy says ``raise``.
            UsageError: Neither or both of batch and micro_batches, or no training step.
        """
        if self.step_object is None:
            raise UsageError(
                "Recorder(step=None) cannot run a training step itself, since it does not know "
                "what to run. Pass a TrainingStep, or keep your loop and use "
                "'with recorder.step(batch) as s:'."
            )
        batches = as_batches(batch, micro_batches)
        if micro_batches is None and capture is None:
            result = self.quiet.step(batch, sample_ids)
            if result is not None:
                return result
        session = self.begin(batches, sample_ids, capture)
        runner = RecordingRunner(self, session)
        runner.begin(batches, self.step_index)
        self.check_input(session, runner, batches)
        return self.go_on(session, runner)

    def go_on(
        self, session: Session, runner: RecordingRunner, outcome: Outcome | None = None
    ) -> StepResult:
        """Run a step that was begun to its end.

        Args:
            session: The recorded step.
            runner: Its runner.
            outcome: What the unit did that ran last, where nobody has acted on it yet.

        Raises:
            NonFiniteError: A sink tripped and the policy says ``raise``.
            Exception: The user's own exception, the same object, with a note.
        """
        if outcome is not None:
            self.after_unit(session, runner, outcome)
        while (outcome := runner.run_on()) is not None:
            self.after_unit(session, runner, outcome)
        return self.finish(session, runner)

    def step(
        self,
        batch: Any = None,
        sample_ids: Any = None,
        capture: str | None = None,
        micro_batches: Sequence[Any] | None = None,
    ) -> LowLevelStep:
        """Watch one training step of the user's own loop.

        Args:
            batch: The batch; may be left out when ``s.micro_batch(i, batch)`` names them.
            sample_ids: Identifiers of the samples, for the ledger.
            capture: Reason to make a bundle of this step in any case.
            micro_batches: Several batches whose gradients are accumulated, instead of one.
        """
        batches = list(micro_batches) if micro_batches is not None else []
        if batch is not None:
            batches = [batch]
        return LowLevelStep(self, batches, sample_ids, capture)

    def begin(
        self,
        batches: Sequence[Any],
        sample_ids: Any = None,
        capture: str | None = None,
        low_level: bool = False,
    ) -> Session:
        """Begin to record a step.

        Raises:
            RankError: Another rank has raised, or was lost.
        """
        self.quiet.group.write()
        if self.ranks is not None:
            self.ranks.begin(self.step_index)
        self.running = Session(self, batches, sample_ids, capture, low_level)
        return self.running

    def checkpoint_saved(self, path: str | Path) -> None:
        """Say that a checkpoint was saved: it is suspect, and is scanned in the background.

        Args:
            path: The checkpoint, a file or a folder in the directory given as ``checkpoints``.

        Raises:
            UsageError: The recorder was not told where checkpoints lie.
        """
        watch = self.checkpoints
        if watch is None:
            raise UsageError(
                f"The checkpoint {str(path)!r} cannot be noted, since this recorder does not know "
                "where checkpoints lie. Make it with Recorder(..., checkpoints=<their directory>)."
            )
        self.guard("checkpoint", lambda: watch.saved(path, self.step_index - 1))

    def close(self) -> None:
        """Close the ledger, and wait until evidence is written and checkpoints are scanned."""
        self.background.wait()
        self.quiet.group.write()
        self.ledger.close()
        if self.checkpoints is not None:
            self.guard("checkpoint states", self.checkpoints.close)

    # -- gates and decisions ----------------------------------------------------------------------

    def check_input(
        self, session: Session, runner: StepRunner, batches: Sequence[Any], since: int = 0
    ) -> None:
        """Check declared domains: in the ledger, and as a sink under ``input="trip"``.

        Args:
            session: The recorded step.
            runner: The runner.
            batches: The micro-batches so far.
            since: The first of them that was not checked before.
        """
        if self.policy.input == "off":
            return
        found = self.guard("domains", lambda: violations(self.step_object, batches[since:])) or ()
        found = tuple(replace(one, micro_step=one.micro_step + since) for one in found)
        session.soft_gates += [{"where": "domain", **one.as_dict()} for one in found]
        if self.policy.input == "trip":
            unit = Unit("input", runner.plan[0].phase if runner.plan else "main")
            micro = found[0].micro_step if found else 0
            unit = Unit("input", unit.phase, micro)
            if found:
                session.outcomes.append(Outcome(unit, "bad"))
            finding = self.agree(session, runner, Finding(unit, violations=tuple(found)), False)
            if finding.tripped:
                act(self, session, runner, finding)

    def after_unit(
        self,
        session: Session,
        runner: RecordingRunner,
        outcome: Outcome,
        at_gate: bool | None = None,
    ) -> None:
        """Take in a unit that ran: agree with the other ranks, and act on what tripped.

        Args:
            session: The recorded step.
            runner: The runner.
            outcome: What the unit did.
            at_gate: Whether its gate looked at the gradients; None asks the runner.

        Raises:
            NonFiniteError: A sink tripped and the policy says ``raise``.
            Exception: The user's own exception, the same object, with a note.
        """
        gate = runner.at_gradient_gate if at_gate is None else at_gate
        if outcome.status == "clean" and not gate and outcome.unit.stage != "forward":
            session.outcomes.append(outcome)
            if self.agree is alone:  # nobody else to ask, and nothing found here
                return
        else:
            self.guard("record", lambda: session.after_unit(outcome, runner, gate))
        if outcome.exception is not None:
            raise failed(self, session, runner, outcome.unit, outcome.exception)
        finding = Finding(outcome.unit, outcome.bad, skip=outcome.status == "skip")
        try:
            finding = self.agree(session, runner, finding, gate)
        except Exception as error:  # noqa: BLE001 - another rank's, or the policy's; raised again
            raise failed(self, session, runner, outcome.unit, error) from error.__cause__
        if finding.tripped:
            act(self, session, runner, finding)

    def finish(self, session: Session, runner: StepRunner) -> StepResult:
        """Write the ledger and, where there is a reason, the bundle; count the step."""
        return finish_step(self, session, runner)

    # -- small things -----------------------------------------------------------------------------

    def guard(self, what: str, work: Callable[[], T]) -> T | None:
        """Do the recorder's own work so that its failure cannot reach training."""
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - the tool may not break the training it watches
            sentence = f"the recorder's {what} failed: {type(error).__name__}: {text_of(error)}"
            seen = sentence in self.failures
            self.failures.add(sentence)
            log = logger.debug if seen else logger.warning
            log("%s (step %d)", sentence, self.step_index, exc_info=not seen)
            return None

    def failed_in(self, session: Session) -> list[str]:
        """What failed inside the recorder during a step, each sentence once."""
        return self.failures.since(session.failures_before)

    def scans_update(self, session: Session, runner: StepRunner) -> bool:
        """Whether this step's update is looked at in full."""
        return session.keep_through_update or self.scan.in_full(
            session.step_index, runner.values, runner.loss_value, self.optimizers
        )

    def requested(self) -> str | None:
        """The reason of a ``workbench capture`` request that this step answers, or None."""
        return self.guard("capture request", lambda: requests.take(self.directory, self.run_id))

    def scan_next(self) -> None:
        """Ask for a deep scan of the next step: every element of its batch and outputs."""
        self.at_risk = True

    def takes_deep_scan(self, step: int) -> bool:
        """Whether a step that begins looks at large tensors too; an answer to ``scan_next``."""
        every = self.policy.deep_scan_every
        wanted, self.at_risk = self.at_risk, False
        return wanted or (every > 0 and step % every == 0)

    def schedulers_advanced(self) -> list[bool]:
        """Whether each scheduler moved since the previous step."""
        now = [getattr(scheduler, "last_epoch", None) for scheduler in self.schedulers]
        before, self._epochs = self._epochs, now
        return [a != b for a, b in zip(now, before, strict=False)]

    def _find_reference(self) -> dict[str, Any]:
        found = self.guard("step reference", lambda: step_reference(self.step_object))
        reference: dict[str, Any] = found or {
            "reference": "", "kind": "none", "digest": "", "text": "", "file": "",
        }  # fmt: skip
        name = safe_name(Path(reference["file"]).name) if reference["file"] else ""
        return reference | {"source": f"source/{name}" if name else ""}
