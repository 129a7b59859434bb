"""The fixed sentences of the panel, and how numbers are said."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from workbench.evidence.verdicts import reproduction_sentence
from workbench.evidence.wording import count_words
from workbench.widgets.state import ORIGINAL, Counts, Run, StageView, State

TRACE_SECONDS = 4.0
DIAGNOSIS_STEPS = 12
REPORT_SECONDS = 15.0


def stage_words(stage: str) -> str:
    """A stage's name as it is read."""
    return stage.replace("_", " ")


def counts_words(counts: Counts | None) -> str:
    """How many elements are bad: ``1 NaN of 1``; empty when counts are not known."""
    return "" if counts is None else count_words(asdict(counts))


def bad_kind(counts: Counts | None) -> str:
    """One word for what a tensor holds: NaN, +Inf, −Inf or non-finite."""
    if counts is None or not counts.nonfinite:
        return "non-finite"
    kinds = {"NaN": counts.nan, "+Inf": counts.pos_inf, "−Inf": counts.neg_inf}
    return next(kind for kind, many in kinds.items() if many)


def seconds(value: float | None) -> str:
    """A duration as people say it."""
    if value is None:
        return ""
    if value < 1:
        return "under 1 s"
    minute = 60
    if value < minute:
        return f"about {value:.0f} s"
    return f"about {value / minute:.0f} min"


def diagnosis_takes(state: State) -> float:
    """Seconds that a diagnosis takes here: a traced replay, and one replay a counterfactual."""
    return TRACE_SECONDS + DIAGNOSIS_STEPS * (state.facts.seconds or 0.0) + (state.takes or 0.0)


def report_takes(state: State) -> float:
    """Seconds that a report takes here; without code it is mostly starting its own Python."""
    if state.report.took is not None:
        return state.report.took
    if not state.trust.given:
        return REPORT_SECONDS
    return REPORT_SECONDS + diagnosis_takes(state)


def run_result(run: Run) -> str:
    """What came out of a run, in three words."""
    bad = run.bad
    if bad is not None:
        if bad.tensor.startswith("exception:"):
            return f"{bad.tensor.removeprefix('exception:')} in {stage_words(bad.name)}"
        return f"{bad_kind(bad.counts)} at {stage_words(bad.name)}"
    if run.finished:
        alert = any(stage.status == "alert" for stage in run.stages)
        skip = any(stage.status == "skip" for stage in run.stages)
        return "alert, all finite" if alert else ("scaler skip" if skip else "finite")
    if run.reached:
        return f"finite up to {stage_words(run.stages[run.reached - 1].name)}"
    return "not run yet"


def verdict_words(run: Run | None) -> str:
    """The sentence after ``Sure?`` for a run under the recorded conditions."""
    if run is None or run.name != ORIGINAL or not run.verdict:
        return reproduction_sentence(None)
    return reproduction_sentence(
        {
            "verdict": run.verdict,
            "sentence": run.sentence,
            "survives_instrumentation": run.probes,
            "tripped": run.bad is not None,
        }
    )


def stage_line(stage: StageView) -> str:
    """One sentence about a stage: its tensor and counts, or why it has not run."""
    label = stage_words(stage.name)
    if stage.status == "unavailable":
        return f"Not available. {stage.reason}"
    if stage.status == "running":
        return "Running …"
    if stage.sentence:
        return stage.sentence.removeprefix(f"{label}: ")
    if stage.status == "not_run":
        return "Not run yet."
    if stage.status == "bad":
        what = "" if stage.tensor in ("", stage.name) else f"{stage.tensor}: "
        return f"{what}{counts_words(stage.counts) or stage.reason or 'non-finite'}."
    if stage.status == "skip":
        return f"The loss scaler skips this update. {stage.reason}".strip()
    if stage.status == "alert":
        return f"Nothing non-finite. Alert: {stage.reason}"
    return f"Nothing non-finite. {stage.reason}".strip()


def finding_of(run: Run, changes: str) -> str:
    """The sentence for a finite diagnostic run; it never says cause."""
    return (
        f"Finite with {changes}. The failure depends on {changes_subject(run)}; "
        "this does not show that it is the cause."
    )


def changes_subject(run: Run) -> str:
    """What was changed, as the subject of a sentence."""
    keys = [key.replace("_", " ") for key, _ in run.changed]
    return keys[0] if len(keys) == 1 else "these conditions together"


def changed_words(changed: tuple[tuple[str, str], ...]) -> str:
    """``autocast off, deterministic on``."""
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in changed)


def establishes(stage: str) -> str:
    """What looking at a stage can establish."""
    from workbench.step.stages import ESTABLISHES

    return dict(ESTABLISHES).get(stage, "")  # type: ignore[call-overload,no-any-return]


def value_text(value: Any) -> str:
    """A condition's value as it is shown and typed."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(str(one) for one in value)
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
