"""One decision for all ranks, made once before an update: every rank then does the same.

What a rank finds before its gradients are reduced is held until they are: a rank that stopped at
its loss would leave the others waiting in the reduction. At the gradient gate, one all-reduce of a
row of integers tells all of them the earliest trip and the lowest rank that has it, whether a loss
scaler skips, and whether a rank captures the step or alerts. Only where something is up, each rank
says in one more collective what. With DDP every rank updates the same values with the same
gradients, so nothing is asked after the update unless a rank saw a bad buffer; other models are
asked once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import distributed as dist

from workbench.errors import RankError
from workbench.numerics.counts import all_finite
from workbench.record.acting import freeze
from workbench.record.ranks.buckets import Look
from workbench.record.ranks.channel import Channel
from workbench.record.ranks.codes import Point, Result, Vote, decode, encode
from workbench.record.ranks.failures import explain, out_of_step
from workbench.record.ranks.news import Position
from workbench.record.ranks.reductions import Reductions
from workbench.record.ranks.scalers import tell_scaler
from workbench.record.ranks.watch import LEAVE_S, WRITE_S, facts_of
from workbench.record.trip import Finding, decide, make_trip
from workbench.step import gates
from workbench.step.stages import Unit
from workbench.step.values import text_of

if TYPE_CHECKING:
    from workbench.record.ranks.place import Place
    from workbench.record.recorder import Recorder
    from workbench.record.running import RecordingRunner
    from workbench.record.session import Session


class Together:
    """What a recorder does because there are other ranks.

    Args:
        recorder: The recorder of this rank.
        place: Where this rank stands.
        group: The process group that trains together; None for all ranks.
    """

    def __init__(self, recorder: Recorder, place: Place, group: Any = None) -> None:
        self._recorder, self._place = recorder, place
        self.channel = Channel(place, group)
        self.watch = self.channel.watch
        self.look = Look(recorder.model)
        self.watch.reductions = lambda: self.look.reductions
        self.reductions = Reductions(recorder, self.look, self.watch)

    def share(self, value: str) -> str:
        """Take over rank 0's name of the run."""
        return self.channel.share(value)

    # -- the course of a step ---------------------------------------------------------------------

    def begin(self, step: int) -> None:
        """A step begins.

        Raises:
            RankError: Another rank has raised, or was lost.
        """
        self._recorder.guard("gradient hook", self.reductions.install)
        self.look.begin_step()
        self.watch.position = Position(step, "input")
        problem = self.watch.problem()
        if problem is not None:
            self.leave(step, alike=False)
            raise problem

    def agree(
        self, session: Session, runner: RecordingRunner, finding: Finding, at_gate: bool
    ) -> Finding:
        """Take what one gate found to the decision of all, if it is made here; else hold it.

        Args:
            session: The recorded step.
            runner: The runner.
            finding: What this rank's gate found.
            at_gate: Whether it was the gate that looks at the gradients.

        Raises:
            RankError: Another rank raised, was lost, or is out of step.
            UsageError: Not every rank has a recorder.
        """
        stage = finding.unit.stage
        self.watch.position = Position(session.step_index, stage)
        if at_gate:
            finding = self.reductions.attribute(session, finding)
        point = self._point(session, stage, at_gate)
        if point is not None:
            return self._decide(session, runner, finding, point)
        if stage in ("clip", "after_update"):  # the same on all ranks, or asked about
            return finding
        if finding.tripped and session.held is None:
            self._hold(session, runner, finding)
        return Finding(finding.unit, skip=finding.skip)

    def conclude(self, session: Session, runner: RecordingRunner, point: Point) -> Finding:
        """Decide about a step whose gradients never came to their gate.

        Args:
            session: The recorded step.
            runner: The runner.
            point: ``update`` where one is about to be made, ``left`` where the step is left.

        Raises:
            RankError: Another rank raised, was lost, or reduces gradients meanwhile.
        """
        if point == "left":
            self.watch.say("left")
        unit = session.outcomes[-1].unit if session.outcomes else Unit("input")
        return self._decide(session, runner, Finding(unit), point)

    def raised(self, error: BaseException, unit: Unit) -> None:
        """Tell the others that the user's own exception ends this rank's step."""
        if not isinstance(error, RankError):
            self.watch.say("raised", stage=unit.stage, **facts_of(error, text_of(error)))

    def explain(self, error: BaseException, step: int) -> RankError | None:
        """The other rank behind an exception of this one, or None where there is none."""
        found = explain(self.watch, error, step)
        if found is not None and any(n.kind == "left" and n.step == step for n in self.watch.told):
            self.watch.say("out_of_step", about=found.rank, message=str(found))  # it waits, too
        return found

    def leave(self, step: int, alike: bool) -> None:
        """Hold an exception back until all ranks have ended the step, for a bounded time."""
        seconds = WRITE_S if alike else LEAVE_S
        self._recorder.guard("leaving together", lambda: self.watch.leave(step, seconds))

    # -- the decision -----------------------------------------------------------------------------

    def _point(self, session: Session, stage: str, at_gate: bool) -> Point | None:
        if at_gate:
            return "gate"
        if stage == "clip" and not self.reductions.same_norm:
            return "clip"
        if stage == "after_update" and (session.asks_again or not self.reductions.replicated):
            return "after_update"
        return None

    def _hold(self, session: Session, runner: RecordingRunner, finding: Finding) -> None:
        session.held = finding
        session.notes.append(
            f"caught at {finding.unit.stage}; the step ran on to its gradient gate, where all "
            "ranks decided, so that none waits for this one"
        )
        freeze(self._recorder, session, runner, finding)

    def _decide(
        self, session: Session, runner: RecordingRunner, finding: Finding, point: Point
    ) -> Finding:
        held, session.held = session.held, None
        mine = held or (finding if finding.tripped else None)
        here = self.watch.position
        self.watch.position = here._replace(doing=f"waits for the decision of all ranks ({point})")
        vote = self._vote(session, runner, finding, mine, point)
        rank = self._place.rank
        result = decode(self.channel.largest(encode(vote, rank)), finding.unit.phase)
        session.decided_at.append(point)
        if not result.in_step:
            raise out_of_step(self.channel.gather({"position": here.as_dict(), "point": point}))
        self.watch.position = here
        session.asks_again = session.asks_again or result.again
        skips = finding.skip and mine is None
        if result.skips is not None and not vote.skips:
            tell_scaler(session, runner, result.skips)
        if result.trip is None and result.capture is None and result.alert is None:
            return Finding(finding.unit, skip=skips)
        self._hear(session, result, mine, point, vote.trip)
        if result.trip is None:
            return Finding(finding.unit, skip=skips)
        first = session.decision["first_bad"]
        other = Finding(result.trip, elsewhere=result.rank, told=first)
        if rank not in session.decision["first"]:  # what this rank saw came after it
            recorder = self._recorder
            session.first_trip = make_trip(other, recorder.run_id, session.step_index, rank)
        return other if mine is None else mine

    def _vote(
        self,
        session: Session,
        runner: RecordingRunner,
        finding: Finding,
        mine: Finding | None,
        point: Point,
    ) -> Vote:
        recorder = self._recorder
        return Vote(
            session.step_index,
            point,
            trip=None if mine is None else self.reductions.order_of(mine),
            skips=finding.skip or runner.will_skip,
            proceeds=point in ("gate", "update") and gates.scaler_enabled(runner.scaler),
            capture=session.capture is not None,
            alert=point != "after_update" and recorder.jumped(runner),
            again=point == "gate" and self._has_bad_buffer(runner),
        )

    def _has_bad_buffer(self, runner: RecordingRunner) -> bool:
        buffers = gates.buffers_of(self._recorder.model)
        if not buffers or not self.reductions.replicated or all_finite(buffers):
            return False
        return bool(gates.check_buffers(self._recorder.model, runner._masks_now()))

    def _hear(
        self,
        session: Session,
        result: Result,
        mine: Finding | None,
        point: Point,
        unit: Unit | None,
    ) -> None:
        """Learn from every rank what it found; the first bad rank's policy decides for all."""
        order = None if unit is None else [unit.micro_step, unit.stage]
        said = self.channel.gather(self._details(session, mine) | {"order": order})
        session.contribution = self._recorder.guard("contribution", self.look.contribution)
        first = said[result.rank] if 0 <= result.rank < len(said) else {}
        trip = result.trip
        session.decision = {
            "at": point,
            "stage": None if trip is None else trip.stage,
            "micro_step": None if trip is None else trip.micro_step,
            "rank": None if trip is None else result.rank,
            "action": first.get("action") or ("raise" if trip is not None else None),
            "first": [r for r, one in enumerate(said) if one.get("order") == first.get("order")]
            if trip is not None
            else [],
            "tripped": [r for r, one in enumerate(said) if one.get("stage")],
            "bad_before_reduction": [r for r, one in enumerate(said) if one.get("bad_before")],
            "bad_after_reduction": [r for r, one in enumerate(said) if one.get("contaminated")],
            "skips": result.skips,
            "capture": result.capture,
            "alert": result.alert,
            "first_bad": first.get("first_bad") or {},
            "said": {str(r): one for r, one in enumerate(said[:64]) if one.get("stage")},
        }
        if result.capture is not None and session.capture is None:
            why = said[result.capture].get("capture") or "no reason was given"
            session.capture = f"rank {result.capture} captures this step: {why}"
            if point != "after_update":
                self._keep(session)
        if result.alert is not None and result.alert != self._place.rank:
            session.alerted_by = result.alert
            if point != "after_update":
                self._keep(session)

    def _keep(self, session: Session) -> None:
        """Keep through the update what was not wanted when the step began."""
        if session.keep_through_update or session.snapshot is None:
            return
        session.keep_through_update = True
        session.snapshot.settle_optimizers()
        self._recorder.guard("gradients", session.keep_gradients)

    def _details(self, session: Session, mine: Finding | None) -> dict[str, Any]:
        recorder = self._recorder
        content: dict[str, Any] = {"capture": session.capture}
        if session.reduce is not None:
            content |= {key: session.reduce[key] for key in ("bad_before", "contaminated")}
            content["buckets"] = [
                {"bucket": one["bucket"], "parameters": one["parameters"]}
                for one in session.reduce["buckets"][:4]
            ]
        if mine is None:
            return content
        trip = make_trip(mine, recorder.run_id, session.step_index, self._place.rank)
        action = recorder.guard("policy", lambda: decide(trip, recorder.policy)) or "raise"
        first = {} if trip.first_bad is None else trip.first_bad.as_dict()
        wanted = ("tensor", "sink", "kind", "shape", "dtype", "counts", "first", "value", "message")
        kept = {key: first.get(key) for key in wanted}
        return content | {"stage": mine.unit.stage, "action": action, "first_bad": kept}


def join(recorder: Recorder, place: Place, group: Any) -> Together | None:
    """Join the other ranks; None where there are none, or the policy is to stay alone."""
    if place.world <= 1 or recorder.policy.ranks == "alone" or not dist.is_initialized():
        return None
    return Together(recorder, place, group)
