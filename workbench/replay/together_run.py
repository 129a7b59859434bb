"""One run of this rank's step beside the other ranks: to a place of its plan, and what it gave."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import distributed as dist

from workbench.errors import CannotRunError
from workbench.evidence.wording import clean, number
from workbench.replay.plan import position_after, recorded_stop, with_gate
from workbench.replay.session import Session
from workbench.replay.stages import stage_states, values_shown
from workbench.replay.summary import run_result
from workbench.replay.verdict import grade
from workbench.step import gates
from workbench.step.values import text_of

if TYPE_CHECKING:
    from workbench.evidence import Conditions
    from workbench.replay.result import RunResult
    from workbench.replay.source import Source
    from workbench.step.stages import Stage


class Run:
    """This rank's step, built and wrapped as the run did.

    Args:
        source: The record; its ``wrap`` is set.
        conditions: What to run under.
        original: The recorded conditions, or the nearest ones here.

    Attributes:
        session: The session.
        changed: Changed conditions, as plain data.

    Raises:
        CannotRunError: The step's code fails while it builds.
        UsageError: A condition names a sample or a module that does not exist.
    """

    def __init__(self, source: Source, conditions: Conditions, original: Conditions) -> None:
        self.source = source
        self.changed = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in original.changes(conditions).items()
        }
        self.session = Session(source, conditions, keep_gradients=True)

    @property
    def limit(self) -> int:
        """The place in the plan that the bundle has no state for; its end where it has all."""
        missing, plan = self.source.unavailable(), self.session.runner.plan
        return next((i for i, unit in enumerate(plan) if unit.stage in missing), len(plan))

    @property
    def until(self) -> str | None:
        """The stage that ran last."""
        outcomes = self.session.outcomes
        return outcomes[-1].unit.stage if outcomes else None

    def stop(self, last: Stage | None) -> int:
        """Where this rank's record has it stop: never before its gradients were reduced."""
        runner, source = self.session.runner, self.source
        if last is not None:
            return position_after(runner, last, last=True)
        evidence = source.evidence
        if "stopped_at" in evidence and evidence["stopped_at"] is None:
            return len(runner.plan)
        return max(recorded_stop(runner, source), self._gate())

    def _gate(self) -> int:
        """The place after the gradient gate of the phase that tripped."""
        runner, phase = self.session.runner, self.source.evidence.get("phase")
        stage = "unscale" if gates.scaler_enabled(runner.scaler) else "reduce"
        found = [i for i, unit in enumerate(runner.plan) if unit.stage == stage]
        own = [i for i in found if runner.plan[i].phase == phase] or found
        return with_gate(runner, own[0])

    def to(self, position: int) -> None:
        """Run to a place of the plan, whatever is bad on the way.

        Raises:
            CannotRunError: The step raised here.
        """
        runner = self.session.runner
        while runner.next_unit is not None and runner.position < position:
            outcome = self.session.advance()
            if outcome.exception is not None:
                error = outcome.exception
                raise CannotRunError(
                    f"Rank {number(dist.get_rank())} raised {type(error).__name__} "
                    f"({clean(text_of(error), 300)}) at '{outcome.unit.stage}', so it could not go "
                    "on, and the others, which wait for it, are ended. Replay its bundle without "
                    "torchrun to look at it."
                ) from error
            if outcome.unit.stage == "unscale":
                self._share_skip()

    def _share_skip(self) -> None:
        """Have all scalers skip where one does, as in the recorded run."""
        runner = self.session.runner
        states: Any = getattr(runner.scaler, "_per_optimizer_states", None)
        for optimizer in runner.optimizers if states is not None else ():
            for value in states[id(optimizer)].get("found_inf_per_device", {}).values():
                local = value.to_local() if hasattr(value, "to_local") else value
                dist.all_reduce(local, op=dist.ReduceOp.MAX)

    # -- what it gave -----------------------------------------------------------------------------

    def result(self) -> RunResult:
        """The run so far."""
        session, source = self.session, self.source
        states = stage_states(
            session.outcomes,
            source.unavailable(),
            source.first_bad,
            session.input_state,
            values_shown(session.runner.values, session.observed.loss),
            session.runner.plan,
        )
        return run_result(session, states, original=False)

    def row(self, rank: int, *, graded: bool) -> dict[str, Any]:
        """What this rank says of its run.

        Args:
            rank: This rank.
            graded: Whether it ran as far as the record, so that it can be compared.
        """
        source, result, bad = self.source, self.result(), self.source.first_bad
        judged = grade(source, result, self.session) if graded and not self.changed else None
        return {
            "rank": rank,
            "verdict": None if judged is None else judged.verdict,
            "bundle": Path(source.path).name,
            "recorded": None if bad is None else {"stage": bad.stage, "tensor": bad.tensor},
            "recorded_rank": None if bad is None else bad.rank,
            "gradients_compared": judged is not None and bool(source.digests.get("gradients")),
            "distance": None if judged is None else judged.distance,
            "unequal": [] if judged is None else judged.unequal[:6],
            "stages": [
                {"stage": one.stage, "status": one.status, "tensor": one.tensor}
                for one in result.stages
            ],
            "updated": [one.updated for one in self.session.runner.values.optimizer_records],
            "without_effect": result.without_effect,
        } | self.brief(result)

    def brief(self, result: RunResult | None = None) -> dict[str, Any]:
        """Loss and what went bad first."""
        found = result or self.result()
        return {"loss": found.loss, "first_bad": found.first_bad}

    def said(self) -> list[str]:
        """What was computed again, for people."""
        ran = {outcome.unit.stage for outcome in self.session.outcomes}
        found = []
        if "backward" in ran:
            found.append("The reduction of gradients was computed again by these ranks.")
        if "update" in ran:
            found.append("The update was computed again, too; nothing of it was recorded.")
        return found
