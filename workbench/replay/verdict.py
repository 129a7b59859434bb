"""The verdict: a replay under the recorded conditions, graded against the record.

Two un-instrumented runs come first. If they differ, the step is not deterministic here and
``same_mask`` is the best grade. Masks are compared before errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from workbench.errors import CannotRunError
from workbench.evidence import verdict_sentence
from workbench.evidence.verdicts import OTHER_RANK, elsewhere_sentence
from workbench.evidence.wording import counted
from workbench.numerics.comparison import compare
from workbench.replay.alone import alone, own_part
from workbench.replay.differences import differences, hooks_in_words, in_words, missing
from workbench.replay.plan import recorded_stop
from workbench.replay.result import Reproduction, RunResult, Verdict

if TYPE_CHECKING:
    from torch import Tensor

    from workbench.replay.replay import Replay
    from workbench.replay.session import Session
    from workbench.replay.source import Source
    from workbench.replay.trace import Trace

ALERT_TOLERANCE = 1e-3
"""Relative distance of the loss within which a finite alert counts as the same one."""


@dataclass
class Grade:
    """One run against the record.

    Attributes:
        verdict: The grade.
        distance: Largest relative difference of jointly finite values, where it was measured.
        unequal: What of the bitwise comparison did not hold, one sentence each.
        said: What stands for other ranks, one sentence each.
        put_in: Whether the reduced gradients were put in from the record.
        hooks: What is said of hooks that the replayed model lacked, where it came out otherwise.
    """

    verdict: Verdict
    distance: float | None = None
    unequal: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    put_in: bool = False
    hooks: list[str] = field(default_factory=list)


def judge(replay: Replay) -> Reproduction:
    """Run the recorded conditions twice and grade them; the replay's own session is kept.

    Args:
        replay: The replay whose record is judged.
    """
    source = replay.source
    absent = source.unavailable()
    goal = source.first_bad_stage or "loss"
    if goal in absent or "input" in absent:
        return _unverifiable([absent.get(goal) or absent["input"]])
    kept, conditions = replay.session, replay.conditions
    try:
        first, graded = _bare_run(replay, compare_own=True)
        second, _ = _bare_run(replay)
    except CannotRunError as error:
        return _unverifiable([str(error)])
    finally:
        replay.conditions = conditions
        replay._session = kept
    return _reproduction(replay, first, second, graded)


def _bare_run(replay: Replay, *, compare_own: bool = False) -> tuple[RunResult, Grade]:
    """Run once as the recorder ran: to where it stopped, or to the end where it went on.

    Args:
        replay: The replay.
        compare_own: Go on to the reduction, which the ranks of the record came to in any case, so
            that this rank's own gradients can be compared.
    """
    evidence, source = replay.source.evidence, replay.source
    went_on = "stopped_at" in evidence and evidence["stopped_at"] is None
    until = "logging" if went_on and source.first_bad is not None else None
    if source.bad_elsewhere is not None and evidence.get("stopped_at"):
        until = str(evidence["stopped_at"])
    result = replay.run(until=until, conditions=replay.nearest, keep_gradients=True)
    session = replay.session
    assert session is not None  # noqa: S101 - run() has just opened it
    graded = alone(grade(source, result, session), source, result, session)
    if compare_own:
        _compare_own(graded, session)
    graded.put_in = session.reduction.put_in
    graded.said += [*session.said, *session.reduction.sentences()]
    graded.hooks = hooks_in_words(source, session.runner.model)
    return result, graded


def _compare_own(graded: Grade, session: Session) -> None:
    """Hold a grade to this rank's own gradients, as they went into the reduction."""
    session.look_before_reduction()
    own = session.reduction.own
    why = None if own is None else own.why()
    if why is not None:
        graded.unequal.append(why)
        graded.verdict = "same_mask" if graded.verdict == "bitwise" else graded.verdict


def _reproduction(
    replay: Replay, first: RunResult, second: RunResult, graded: Grade
) -> Reproduction:
    source = replay.source
    deterministic = _bits(first) == _bits(second)
    verdict = graded.verdict
    if verdict == "bitwise" and not deterministic:
        verdict, graded.distance = "same_mask", 0.0  # this run was equal; the next one was not
    rows = differences(source, replay.nearest)
    listed = in_words(rows) + missing(source, replay.nearest)
    if not deterministic:
        listed.insert(0, "two runs here differ from each other: the step is not deterministic here")
    if verdict != "bitwise":
        listed += graded.unequal
        if source.state.low_level:
            listed.append("the user's own loop was recorded, and the step may not do what it did")
        graded.said += graded.hooks
    listed += graded.said
    sentence = verdict_sentence(
        verdict,
        max_relative=graded.distance,
        environment=rows,
        missing="; ".join(graded.unequal) or None,
        sink=_sink(source),
        put_in=graded.put_in,
    )
    if verdict not in ("not_reproduced", "unverifiable"):
        sentence = f"{sentence} {elsewhere_sentence(rows)}".rstrip()
    return Reproduction(
        verdict=verdict,
        deterministic_here=deterministic,
        differences=listed,
        rows=rows,
        distance=graded.distance,
        sentence=_with_ranks(sentence, graded.said),
        tripped=source.first_bad is not None,
        put_in=graded.put_in,
    )


def _with_ranks(sentence: str, said: Sequence[str]) -> str:
    return " ".join([sentence, *(f"{one}." for one in said)])


def _sink(source: Source) -> str | None:
    bad = source.first_bad
    if bad is None:
        return None
    if bad.sink == OTHER_RANK:
        return None
    return "exception" if bad.kind == "exception" else bad.sink


def _unverifiable(why: list[str]) -> Reproduction:
    return Reproduction(
        verdict="unverifiable",
        differences=why,
        sentence=verdict_sentence("unverifiable", missing="; ".join(why)),
    )


def _bits(result: RunResult) -> tuple[Any, ...]:
    return result.loss_bits, result.gradients, result.masks, result.rng


def grade(source: Source, result: RunResult, session: Session) -> Grade:
    """Grade one run of the recorded conditions.

    Args:
        source: The record.
        result: The run.
        session: Its live session; its kept gradients are used to measure distances.
    """
    digests = source.digests
    if source.bad_elsewhere is not None:
        return own_part(source, result, _unequal(source, result, session))
    if source.first_bad is None or source.kind != "nonfinite" or _is_alert(source):
        return _grade_finite(source, digests, result, session)
    here = _masks_at(result, source.first_bad.stage)
    if not here:
        return Grade("not_reproduced", unequal=[_where(result)])
    unequal = _unequal(source, result, session)
    if digests and not unequal and source.first_bad.tensor in here:
        return Grade("bitwise")
    recorded = digests.get("masks")
    if isinstance(recorded, Mapping) and recorded and dict(recorded) == here:
        return Grade("same_mask", _distance(source, session), unequal)
    if not recorded and _same_kind(source, result):
        note = "the record has no digests of the non-finite sets"
        return Grade("same_class", unequal=[note])
    if source.first_bad.tensor in here and _same_kind(source, result):
        return Grade("same_class", unequal=unequal)
    return Grade("not_reproduced", unequal=[_where(result)])


def _grade_finite(
    source: Source, digests: Mapping[str, Any], result: RunResult, session: Session
) -> Grade:
    """Grade an alert or a captured step, where nothing need be non-finite."""
    if not digests:
        return Grade("unverifiable", unequal=["the record holds no digests to compare with"])
    unequal = _unequal(source, result, session)
    if not unequal:
        return Grade("bitwise")
    recorded = digests.get("masks") or {}
    distance = _distance(source, session)
    if source.kind == "alert" or _is_alert(source):
        same = result.first_bad is None and distance is not None and distance <= ALERT_TOLERANCE
        return Grade("same_alert" if same else "not_reproduced", distance, unequal)
    if dict(recorded) == result.masks:
        return Grade("same_mask", distance, unequal)
    return Grade("not_reproduced", distance, unequal)


def _is_alert(source: Source) -> bool:
    return source.first_bad is not None and source.first_bad.sink == "alert"


def _masks_at(result: RunResult, stage: str) -> dict[str, str]:
    for state in result.stages:
        if state.stage == stage and state.status in ("bad", "skip"):
            return dict(state.masks)
    return {}


def _unequal(source: Source, result: RunResult, session: Session) -> list[str]:
    """List what keeps a run from being bitwise equal; what was not recorded does not count."""
    digests = source.digests
    found = []
    if digests.get("loss_bits") and digests["loss_bits"] != result.loss_bits:
        found.append("the loss has other bits")
    masks = digests.get("masks")
    if isinstance(masks, Mapping) and masks:
        stage = source.first_bad_stage if source.bad_elsewhere is None else None
        here = _masks_at(result, stage) if stage is not None else result.masks
        if dict(masks) != here:
            found.append("other elements are non-finite")
    gradients = digests.get("gradients")
    if isinstance(gradients, Mapping) and gradients and _comparable(session):
        other = [name for name, digest in gradients.items() if result.gradients.get(name) != digest]
        if other:
            found.append(
                f"{len(other):,} of {counted(len(gradients), 'gradient')} came out with other bits"
            )
    if digests.get("rng") and digests["rng"] != result.rng and _same_stop(source, session):
        found.append("the random numbers after the step differ")
    return found


def _comparable(session: Session) -> bool:
    """Whether the recorded gradients, reduced with other ranks, can be compared with those here."""
    reduction = session.reduction
    return not reduction.there or reduction.put_in or session.source.wrap is not None


def _same_stop(source: Source, session: Session) -> bool:
    """Whether the run ended where the record ended, so that random numbers can be compared."""
    runner = session.runner
    if "stopped_at" in source.evidence and source.evidence["stopped_at"] is None:
        return runner.next_unit is None
    if source.bad_elsewhere is not None:
        return True  # it was run to there
    return runner.position == recorded_stop(runner, source)


def _same_kind(source: Source, result: RunResult) -> bool:
    bad = source.first_bad
    if bad is None or result.first_bad is None:
        return False
    if bad.tensor != result.first_bad["tensor"]:
        return False
    recorded, here = bad.counts, result.first_bad["counts"] or {}
    kinds = ("nan", "pos_inf", "neg_inf")
    return all(bool(recorded.get(kind)) == bool(here.get(kind)) for kind in kinds)


def _where(result: RunResult) -> str:
    if result.first_bad is None:
        return "nothing became non-finite"
    bad = result.first_bad
    tensor, stage = bad["tensor"], bad["stage"]
    if str(tensor).startswith("exception:"):
        return f"here {str(tensor).partition(':')[2]} was raised in {stage} instead"
    return f"here {tensor} became non-finite in {stage} instead"


def _distance(source: Source, session: Session) -> float | None:
    """Largest relative difference of jointly finite values: the loss and the kept gradients."""
    found: list[float] = []
    loss = session.observed.loss
    recorded_loss = source.evidence.get("loss")
    if loss is not None and isinstance(recorded_loss, int | float):
        found += _relative(loss.double().cpu(), loss.new_tensor(recorded_loss).double().cpu())
    gradients = session.observed.gate_gradients
    if gradients and _comparable(session):
        for name, recorded in source.gradients().items():
            if name in gradients:
                found += _relative(gradients[name], recorded)
    return max(found) if found else None


def _relative(here: Tensor, recorded: Tensor) -> list[float]:
    """Relative error over the recorded tensor's magnitude; elementwise ratios blow up near zero."""
    if here.shape != recorded.shape:
        return []
    errors = compare(here, recorded).errors
    if errors is None:
        return []
    finite = recorded[recorded.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    return [errors.max_abs / max(largest, errors.floor)]


def with_trace(reproduction: Reproduction, trace: Trace, source: Source) -> Reproduction:
    """Fill in whether the failure was still there with probes on."""
    bad = trace.first_bad
    if source.first_bad is None or source.first_bad.sink == "alert":
        survives = bad is None
    else:
        survives = bad is not None and bad.unit.stage == source.first_bad.stage
    return msgspec.structs.replace(reproduction, survives_instrumentation=survives)
