"""Replay of the kept steps before an incident, up to it: where the run first departs.

A trajectory starts at the oldest recovery point. Every later step starts from what the replayed one
before it left, with the batch, random numbers, scaler and hyperparameters that were recorded; what
the record holds of parameters is compared, not loaded. Once something departs it is named, and the
next recovery point is loaded so that later ranges are those of the record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from workbench.evidence.table import Table, table_from_rows
from workbench.evidence.wording import counted
from workbench.replay.compared import Compared
from workbench.replay.devices import nearest
from workbench.replay.differences import differences
from workbench.replay.envelope import EARLIER, Outlier, first_outlier
from workbench.replay.kept_steps import (
    Kept,
    differing_optimizer_state,
    differing_parameters,
    kept_steps,
    loss_scale,
    merge,
)
from workbench.replay.session import Session
from workbench.replay.step_ranges import known, parameter_rows, step_row
from workbench.step.digests import bit_sums
from workbench.step.state import StepState, capture_state

if TYPE_CHECKING:
    from workbench.evidence import Bundle
    from workbench.replay.source import Source

SCHEMA = "workbench.trajectory/1"

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Departure:
    """The first place where replay and record part.

    Attributes:
        step: The step.
        what: ``parameters`` (before the step), ``optimizer_state``, ``scaler``, ``rng`` or
            ``loss``.
        names: The tensors concerned, at most the first 50.
        repeats: Whether replaying the step before it twice gave the same bits; None when it was
            not tried.
        sentence: All of it for people.
    """

    step: int
    what: str
    names: tuple[str, ...]
    repeats: bool | None
    sentence: str

    def to_data(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "step": self.step,
            "what": self.what,
            "names": list(self.names),
            "repeats": self.repeats,
            "sentence": self.sentence,
        }


@dataclass
class Trajectory:
    """A replayed way to an incident.

    Attributes:
        start: The recovery point it started from.
        last: The incident's own step.
        departure: The first place where replay and record part, or None.
        outlier: The first value that left its usual envelope, or None.
        steps: One row per step.
        ranges: One row per step and parameter.
        notes: Sentences that belong beside the result.
    """

    start: int
    last: int
    departure: Departure | None = None
    outlier: Outlier | None = None
    steps: Table = field(default_factory=Table)
    ranges: Table = field(default_factory=Table)
    notes: list[str] = field(default_factory=list)

    @property
    def sentences(self) -> list[str]:
        """What was found, for people."""
        count = len(self.steps)
        if self.departure is not None:
            said = [self.departure.sentence]
        else:
            said = [f"From step {self.start:,} on, all as recorded: {counted(count, 'step')}."]
        said.append(self._envelope())
        return [*said, *self.notes]

    def _envelope(self) -> str:
        """What left its usual envelope, or that nothing did, or that there is none."""
        if self.outlier is not None:
            return self.outlier.sentence(self.last)
        follows = self.steps.columns.get("follows", ())
        before = max(sum(map(bool, follows)) - 1, 0)
        if before < EARLIER:
            return f"No envelope: it takes {EARLIER} earlier steps, and the replay has {before}."
        which = "these steps" if all(follows) else "the steps that repeat the record"
        return f"No loss, gradient or parameter left its usual envelope in {which}."

    def to_data(self) -> dict[str, Any]:
        """Return it as ``workbench.trajectory/1``."""
        return {
            "schema": SCHEMA,
            "start": self.start,
            "last": self.last,
            "departure": None if self.departure is None else self.departure.to_data(),
            "outlier": None if self.outlier is None else self.outlier.to_data(self.last),
            "steps": [known(row) for row in self.steps.rows()],
            "sentences": self.sentences,
        }


def replay_trajectory(
    bundle: Bundle,
    source: Source,
    progress: Progress | None = None,
) -> Trajectory:
    """Replay from the oldest recovery point through every kept step to the incident.

    Args:
        bundle: The bundle.
        source: Its source, with the training step found.
        progress: Called with a sentence as each step begins.

    Returns:
        What departed, what left its envelope, and per-step ranges.

    Raises:
        CannotRunError: The bundle keeps no earlier steps, or the step's code does not fit.
        BundleError: The trajectory is damaged.
    """
    kept = kept_steps(bundle, source)
    return _Way(source, kept, progress or (lambda sentence: None)).run()


class _Way:
    """One replay along the kept steps."""

    def __init__(self, source: Source, kept: Sequence[Kept], progress: Progress) -> None:
        self._source = source
        self._kept = kept
        self._progress = progress
        self._conditions = nearest(source.recorded)
        self._result = Trajectory(kept[0].step, kept[-1].step)
        self._steps: list[dict[str, Any]] = []
        self._ranges: list[dict[str, Any]] = []
        self._previous: tuple[Kept, StepState] | None = None
        self._rng_after: str | None = None
        self._follows = True
        self._compared = Compared(kept[0].step)

    def run(self) -> Trajectory:
        state = self._kept[0].state
        for number, kept in enumerate(self._kept):
            self._progress(f"Replaying step {kept.step:,}")
            if number > 0:
                self._note_gap(self._kept[number - 1], kept)
                state = self._meet(kept, state)
            following = self._one(kept, state)
            if following is None:
                break
            self._previous, state = (kept, state), following
        self._result.steps = table_from_rows(self._steps)
        self._result.ranges = table_from_rows(self._ranges)
        self._result.outlier = first_outlier(self._result.steps, self._result.ranges)
        return self._result

    def _note_gap(self, before: Kept, kept: Kept) -> None:
        if kept.step != before.step + 1:
            self._result.notes.append(
                f"No step was kept between {before.step:,} and {kept.step:,}; whatever ran there "
                "was not replayed."
            )

    # -- one step ---------------------------------------------------------------------------------

    def _session(self, kept: Kept, state: StepState) -> Session:
        source = replace(
            self._source, state=state, kind="captured", first_bad=None, evidence={}, bundle=None
        )
        return Session(source, self._conditions, keep_gradients=True)

    def _one(self, kept: Kept, state: StepState) -> StepState | None:
        """Run one step; returns the state it leaves, or None when it cannot go on."""
        session = self._session(kept, state)
        self._check_sums(kept, session)
        last = kept is self._kept[-1]
        self._advance(kept, session, last)
        self._check_loss(kept, session)
        continues, self._rng_after = self._continues(kept), session.rng_digest
        after = None if last else _after(session)
        rows, totals = parameter_rows(kept.step, state, session, after)
        self._ranges += rows
        self._steps.append(
            step_row(kept.step, state, session, totals, kept.loss_bits)
            | {
                "recovery_point": kept.is_recovery_point,
                "rng_continues": continues,
                "follows": self._follows,
            }
        )
        if after is not None and session.raised:
            self._result.notes.append(
                f"The replay of step {kept.step:,} raised, so later steps were not replayed."
            )
            return None
        return after

    def _continues(self, kept: Kept) -> bool | None:
        """Whether a step's random state is what the step before left: nothing drew in between."""
        return None if self._rng_after is None else self._rng_after == kept.state.rng.digest()

    @staticmethod
    def _advance(kept: Kept, session: Session, last: bool) -> None:
        runner = session.runner
        while runner.next_unit is not None and not session.raised:
            outcome = session.advance()
            if outcome.status == "bad" and (last or kept.withheld):
                if not last:
                    runner.withhold_update()
                return

    # -- comparing --------------------------------------------------------------------------------

    def _meet(self, kept: Kept, left: StepState) -> StepState:
        """The state a step starts from: what the step before left, with what was recorded."""
        merged = merge(kept.state, left)
        self._check_light(kept, left)
        if kept.state.model is None or left.model is None:
            return merged
        self._follows = True  # whatever differs, the step starts from the recorded state
        names = differing_parameters(kept.state.model, left.model)
        if names:
            self._depart(kept, "parameters", names)
        else:
            self._compared = Compared(kept.step)
        other = differing_optimizer_state(kept.state, left)
        if other and not names:
            self._depart(kept, "optimizer_state", other)
        return kept.state if names or other else merged

    def _check_light(self, kept: Kept, left: StepState) -> None:
        recorded = kept.record.get("rng_digest")
        if recorded is not None and recorded != kept.state.rng.digest():
            self._depart(kept, "rng", ("random state before the step",))
        here, there = loss_scale(left), loss_scale(kept.state)
        if here != there:
            self._depart(kept, "scaler", (f"loss scale {there} in the record, {here} here",))

    def _check_sums(self, kept: Kept, session: Session) -> None:
        if not kept.sums:
            return
        names = self._compared.differing(kept, bit_sums(session.runner.model))
        if names:
            self._follows = False
            self._depart(kept, "parameters", names)

    def _check_loss(self, kept: Kept, session: Session) -> None:
        if kept.loss_bits is not None and session.loss_bits not in (None, kept.loss_bits):
            self._follows = False
            self._depart(kept, "loss", ("loss",))

    def _depart(self, kept: Kept, what: str, names: Sequence[str]) -> None:
        if self._result.departure is not None:
            return
        repeats = self._repeats() if what in ("parameters", "optimizer_state") else None
        self._result.departure = Departure(
            kept.step, what, tuple(names[:50]), repeats, self._sentence(kept, what, names, repeats)
        )

    def _repeats(self) -> bool | None:
        """Whether the step before, run again from the same state, leaves the same bits."""
        if self._previous is None:
            return None
        kept, state = self._previous
        found = []
        for _ in range(2):
            session = self._session(kept, state)
            self._advance(kept, session, last=False)
            found.append(bit_sums(session.runner.model))
        return found[0] == found[1]

    def _sentence(self, kept: Kept, what: str, names: Sequence[str], repeats: bool | None) -> str:
        where = f"Step {kept.step:,} is the first that departs from the record: "
        if what == "loss":
            return f"{where}its loss has other bits. {self._compared.share(kept)}"
        if what == "rng":
            return where + "its random state is not the one that the ledger noted."
        if what == "scaler":
            return where + f"{names[0]}; something outside the step set it."
        before = self._previous[0].step if self._previous else kept.step - 1
        said = where + self._compared.departed(kept, what, names, before)
        if repeats is False:
            return f"{said}; that step is not deterministic here, so it may be no more than that."
        return (
            f"{said}. Replayed again, step {before:,} leaves the same values each time: "
            f"{self._outside()}."
        )

    def _outside(self) -> str:
        """What is left once the step before is known to repeat: say no more than that."""
        wrote = "something outside the step wrote to it (averaging, pruning, a loaded checkpoint)"
        if self._source.state.low_level:
            wrote += ", or the step does not do what the user's own loop did"
        if differences(self._source, self._conditions):
            wrote += ", or the update rounds differently on this machine"
        return wrote


def _after(session: Session) -> StepState:
    """Capture what a step left; random numbers and batch are those of the next record."""
    runner = session.runner
    return capture_state(runner.model, runner.optimizers, runner.scaler)
