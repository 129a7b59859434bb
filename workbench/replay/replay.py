"""`Replay`: one recorded step, run again from its sealed state, stage by stage or at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from workbench.errors import UsageError
from workbench.replay.devices import nearest, require_device
from workbench.replay.plan import (
    check_stage,
    position_after,
    recorded_stop,
    with_gate,
)
from workbench.replay.result import Reproduction, RunResult, StageState
from workbench.replay.retain import MAX_BYTES, Retained
from workbench.replay.session import Session
from workbench.replay.source import Source
from workbench.replay.stages import stage_states, values_shown
from workbench.replay.summary import run_result
from workbench.replay.verdict import judge, with_trace
from workbench.step.stages import STAGES, Stage

if TYPE_CHECKING:
    from torch import Tensor

    from workbench.evidence import Bundle, Conditions
    from workbench.replay.trace import Trace
    from workbench.replay.trace_kept import KeptPass
    from workbench.step.runner import Outcome

Progress = Callable[[dict[str, Any]], None]
"""Called with an event: ``{"event": "stage_begun" | "stage_done", "stage", …}``."""


class Replay:
    """A recorded step that can be run again.

    Opening it builds nothing; the step's code runs with the first stage.

    Args:
        bundle: An open bundle, or the path of one.
        step: The user's training step: an object, a class, or a reference such as
            ``"train:Step"``; None takes the one the bundle names, if it is trusted.
        trust: ``"import"`` or ``"source"``: what of the bundle may be imported or executed.
        conditions: What to run under; None means the recorded conditions, or the nearest ones
            this machine has.
        progress: Called as stages begin and end.

    Raises:
        CannotRunError: No code, no state, or the device asked for is not here.
        BundleError: The bundle is damaged.
    """

    def __init__(
        self,
        bundle: Bundle | str | Path,
        step: Any = None,
        trust: str | None = None,
        conditions: Conditions | None = None,
        progress: Progress | None = None,
    ) -> None:
        from workbench.evidence import Bundle, open_bundle

        opened = bundle if isinstance(bundle, Bundle) else open_bundle(bundle)
        self._start(Source.from_bundle(opened, step, trust), conditions, progress)

    @classmethod
    def from_source(
        cls,
        source: Source,
        conditions: Conditions | None = None,
        progress: Progress | None = None,
    ) -> Replay:
        """Replay a source that is already read (tests, sweeps, kept steps of a trajectory)."""
        replay = cls.__new__(cls)
        replay._start(source, conditions, progress)
        return replay

    def _start(
        self, source: Source, conditions: Conditions | None, progress: Progress | None
    ) -> None:
        self.source = source
        self.original: Conditions = source.recorded
        self.nearest: Conditions = nearest(source.recorded)
        if conditions is not None:
            require_device(conditions.device)
        self._base: Conditions = conditions or self.nearest
        self.conditions: Conditions = self._base
        self.progress = progress
        self._session: Session | None = None
        self._reproduction: Reproduction | None = None

    # -- stage by stage -----------------------------------------------------------------------

    def input(self) -> StageState:
        """Run up to the next ``input`` stage."""
        return self._to("input")

    def forward(self) -> StageState:
        """Run up to the next ``forward`` stage; with micro-batches, each call runs one of them."""
        return self._to("forward")

    def loss(self) -> StageState:
        """Run up to the next ``loss`` stage and its gate."""
        return self._to("loss")

    def backward(self) -> StageState:
        """Run up to the next ``backward`` stage, with the gate that reads its gradients."""
        return self._to("backward")

    def reduce(self) -> StageState:
        """Run up to the ``reduce`` stage."""
        return self._to("reduce")

    def unscale(self) -> StageState:
        """Run up to the ``unscale`` stage."""
        return self._to("unscale")

    def clip(self) -> StageState:
        """Run up to the ``clip`` stage."""
        return self._to("clip")

    def update(self) -> StageState:
        """Run up to the ``update`` stage."""
        return self._to("update")

    def after_update(self) -> StageState:
        """Run up to the ``after_update`` stage and its gate."""
        return self._to("after_update")

    def logging(self) -> StageState:
        """Run the step to its end."""
        return self._to("logging")

    def advance(self) -> StageState:
        """Run the next stage and its gate, whichever it is.

        Raises:
            UsageError: The step is at its end, or an exception ended it.
            CannotRunError: The bundle lacks what the stage needs.
        """
        session = self._open()
        unit = session.runner.next_unit
        if unit is None or session.raised:
            raise UsageError(
                f"The step ended in '{session.outcomes[-1].unit.stage}', so there is nothing left "
                "to run. Call reset() to start from the sealed state again."
            )
        return self._to(unit.stage)

    def back(self) -> StageState | None:
        """Go back by one stage: the step is run again from its sealed state up to the one before.

        Returns:
            The state of the stage it now stands at, or None before the first.
        """
        stops = self._stops()
        self.reset()
        if len(stops) <= 1:
            return None
        session = self._open()
        while session.runner.position < stops[-2]:
            self._advance(session)
        return self._state_of(session.outcomes[-1].unit.stage)

    def _stops(self) -> list[int]:
        """Positions that stepping through the units run so far would have stopped at."""
        if self._session is None:
            return []
        runner, stops, position = self._session.runner, [], 0
        while position < runner.position:
            position = with_gate(runner, position)
            stops.append(position)
        return stops

    def reset(self) -> None:
        """Forget what was run: the next call starts from the sealed state again."""
        self._session = None

    @property
    def stages(self) -> list[StageState]:
        """The ten stages, as far as they were run."""
        unavailable = self.source.unavailable()
        session = self._session
        if session is None:
            return stage_states([], unavailable, self.source.first_bad)
        shown = values_shown(session.runner.values, session.observed.loss)
        return stage_states(
            session.outcomes,
            unavailable,
            self.source.first_bad,
            session.input_state,
            shown,
            session.runner.plan,
        )

    @property
    def reproduction(self) -> Reproduction | None:
        """The verdict, if it was asked for."""
        return self._reproduction

    @property
    def session(self) -> Session | None:
        """The live session, with the model as it is now; None before the first stage."""
        return self._session

    def _to(self, stage: Stage) -> StageState:
        self.source.require(stage)
        session = self._open()
        stop = position_after(session.runner, stage)
        while session.runner.position < stop and not session.raised:
            self._advance(session)
        return self._state_of(stage)

    def _state_of(self, stage: str) -> StageState:
        return self.stages[STAGES.index(cast("Stage", stage))]

    def _open(self, keep_gradients: bool = False) -> Session:
        if self._session is None:
            self._session = Session(self.source, self.conditions, keep_gradients=keep_gradients)
        return self._session

    def _advance(self, session: Session) -> Outcome:
        unit = session.runner.plan[session.runner.position]
        self._report({"event": "stage_begun", "stage": unit.stage, "micro_step": unit.micro_step})
        outcome = session.advance()
        took = {"micro_step": outcome.unit.micro_step, "seconds": session.observed.seconds}
        # a unit's outcome may go by another stage's name (see ``_gated_as_backward``): both ended
        for stage in dict.fromkeys((outcome.unit.stage, unit.stage)) if self.progress else ():
            self._report({"event": "stage_done", **took, **self._state_of(stage).to_data()})
        return outcome

    def _report(self, event: dict[str, Any]) -> None:
        if self.progress is not None:
            self.progress(event)

    # -- at once ------------------------------------------------------------------------------

    def run(
        self,
        until: str | None = None,
        conditions: Conditions | None = None,
        *,
        keep_gradients: bool = False,
    ) -> RunResult:
        """Run the step from its sealed state.

        Args:
            until: Last stage to run. None runs to where the recorder stopped; when nothing is bad
                there, on to the end of the step, so that a failure that moved is seen.
            conditions: What to run under; None takes those the replay was opened with. The session
                stays open and can be stepped further under the same ones.
            keep_gradients: Keep copies of the gradients at their gate.

        Raises:
            UsageError: No such stage.
            CannotRunError: The bundle lacks what the first stages need, or no such device.
        """
        last = check_stage(until)
        if conditions is not None:
            require_device(conditions.device)
        self.conditions = conditions or self._base
        self.source.require("input")
        self.reset()
        session = self._open(keep_gradients)
        self._run_session(session, last)
        return self.result()

    def _run_session(self, session: Session, until: Stage | None) -> None:
        unavailable = self.source.unavailable()
        runner = session.runner
        stop = (
            recorded_stop(runner, self.source)
            if until is None
            else position_after(runner, until, last=True)
        )
        while (unit := runner.next_unit) is not None:
            if unit.stage in unavailable or session.raised:
                return
            if runner.position >= stop and (until is not None or session.tripped):
                return
            self._advance(session)

    def retain(
        self,
        names: Sequence[str],
        until: str | None = None,
        conditions: Conditions | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> dict[str, Tensor]:
        """Run the step once more without probes and keep chosen tensors for looking at.

        Args:
            names: Module paths (the output of their last call; ``""`` is the whole model),
                ``loss``, ``gradient:<parameter>`` at its gate, ``parameter:<name>`` at the end.
                Inside a compiled model only its own output is to be had.
            until: Last stage to run, as for `run`.
            conditions: What to run under; None takes those the replay was opened with.
            max_bytes: Most bytes that are kept.

        Returns:
            Copies by name; several tensors of one output as ``path[0]``, ``path[1]``, …. What the
            run did not come to is left out. The live session is left alone.

        Raises:
            UsageError: No such stage, or a name that the model does not have.
            CannotRunError: More than ``max_bytes``, or what `run` raises.
        """
        last = check_stage(until)
        retained = Retained(names, max_bytes)
        own = Replay.from_source(self.source, conditions or self._base)
        own.source.require("input")
        session = own._open(keep_gradients=True)
        retained.check(session.runner.model)
        with retained.watching(session.runner.model):
            own._run_session(session, last)
        return retained.finish(session)

    def result(self) -> RunResult:
        """Sum up the live session as plain data.

        Raises:
            UsageError: Nothing was run yet.
        """
        session = self._session
        if session is None or not session.outcomes:
            raise UsageError(
                "No stage of this replay has been run ('[]'), so there is no result. Call run(), "
                "or a stage such as forward()."
            )
        return run_result(session, self.stages, original=self.conditions == self.nearest)

    # -- against the record -------------------------------------------------------------------

    def verdict(self, trace: Trace | None = None) -> Reproduction:
        """Run the recorded conditions twice without probes and compare with the record.

        Args:
            trace: A trace of the same step: whether the failure survived it is filled in.
        """
        if self._reproduction is None:
            self._reproduction = judge(self)
        if trace is not None:
            self._reproduction = with_trace(self._reproduction, trace, self.source)
        return self._reproduction

    def trace(
        self,
        keep: Collection[int] = (),
        until: str | None = None,
        conditions: Conditions | None = None,
        exponents: bool = True,
    ) -> Trace:
        """Run the step once more with every op recorded.

        The step starts from the sealed state and stops where a gate trips, unless ``until`` asks
        for more. A compiled model runs eagerly here.

        Args:
            keep: Numbers of events whose real arguments are kept, in one more run.
            until: Last stage to run; None runs to the first gate that trips.
            conditions: What to run under; None takes those the replay was opened with.
            exponents: Whether ranges say how magnitudes spread over binary exponents; they cost.
        """
        from workbench.replay.instrumented import run_traced

        wanted = conditions or self._base
        trace = run_traced(self.source, wanted, until, exponents=exponents)
        if keep:
            again = self.kept(keep, until, conditions)
            trace.kept = again.events if again.same_events(trace) else {}
        if self._reproduction is not None and wanted == self.nearest:
            self._reproduction = with_trace(self._reproduction, trace, self.source)
        return trace

    def kept(
        self,
        events: Collection[int],
        until: str | None = None,
        conditions: Conditions | None = None,
    ) -> KeptPass:
        """Run the step once more as a trace does, and keep the real arguments of some events.

        Args:
            events: Numbers of events of a trace under the same conditions.
            until: As for the trace.
            conditions: As for the trace.
        """
        from workbench.replay.instrumented import run_kept

        return run_kept(self.source, conditions or self._base, until, events)
