"""The five lines: headline, Why, Sure?, Reach, Resume.

One function for the terminal, the exception, the panel and the report. *Caught at* is the gate that
tripped and *Born at* the op where the value went bad; a line has one or the other by name, and
nothing is said that the facts do not hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from workbench.evidence.facts import SummaryFacts, mapping
from workbench.evidence.reach import BEFORE_UPDATE, contaminated
from workbench.evidence.schema import FirstBad
from workbench.evidence.verdicts import (
    NOT_REPLAYED,
    OTHER_RANK,
    elsewhere_sentence,
    said_missing,
    survival_sentence,
    verdict_sentence,
)
from workbench.evidence.wording import (
    MINUS,
    clean,
    count_words,
    counted,
    kind_word,
    lacking,
    number,
    origin_place,
)

BAD, ALERT, QUIET = "✕", "!", "·"

_SUBJECTS: Final = {
    "loss": "loss",
    "gradient": "gradient of",
    "grad_norm": "gradient norm",
    "parameter": "parameter",
    "optimizer_state": "optimizer state",
    "loss_scale": "loss scale",
    "buffer": "buffer",
    "input": "batch field",
}
_SKIP_ALERTS: Final = frozenset(
    {"consecutive_skips", "skip_ratio", "minimum_scale", "scale_falls", "repeated_trips"}
)
_ALONE: Final = frozenset({"loss", "grad_norm", "loss_scale"})


def summary_lines(facts: SummaryFacts) -> list[str]:
    """The five lines.

    Returns:
        Headline, ``Why``, ``Sure?``, ``Reach``, ``Resume``; plain text, one line each, with every
        name from outside cleaned of control characters and cut.
    """
    return [
        headline(facts),
        f"Why     {why(facts)}",
        f"Sure?   {sure(facts)}",
        f"Reach   {reach(facts)}",
        f"Resume  {resume(facts)}",
    ]


def headline(facts: SummaryFacts) -> str:
    """What happened, and where it was born or, before a diagnosis, caught."""
    bad = _first_bad(facts)
    origins = _origins(facts)
    if bad is None:
        if origins:
            return f"{BAD} A gate found nothing, and yet: {_born(origins[0])}"
        return f"{QUIET} {'Nothing tripped in this step; it was captured on request.'}"
    if facts.kind == "alert" or bad.get("kind") == "alert":
        # what a skipped step's gradients were under the loss scale was not finite
        skips = str(bad.get("tensor")) in _SKIP_ALERTS
        return f"{ALERT} {'' if skips else 'Nothing non-finite. '}Alert: {_alert(facts, bad)}"
    what = _what(bad)
    if origins:
        return f"{BAD} {what} {_born(origins[0])}"
    if bad.get("sink") == OTHER_RANK:
        return f"{BAD} {what} Noticed at {_place({**bad, 'rank': None})}."
    return f"{BAD} {what} Caught at {_place(bad)}."


def why(facts: SummaryFacts) -> str:
    """The cause in words, or how far it is known."""
    if facts.findings is None:
        return "Not known: it takes a replay." if _no_input(facts) else NOT_REPLAYED
    origins = _origins(facts)
    if not origins:
        return _nothing_found(facts)
    origin = origins[0]
    if facts.cause:
        text = clean(facts.cause, 300)
    else:
        label = str(origin.get("cause") or "").replace("_", " ")
        dtype = clean(origin.get("dtype") or "", 40)
        text = f"{label.capitalize() or 'Cause not known'}{f', in {dtype}' if dtype else ''}."
    more = len(origins) - 1
    if more:
        text += f" {counted(more, 'other origin')}."
    if facts.silent:
        text += f" {clean(facts.silent, 200)}"
    return text


def sure(facts: SummaryFacts) -> str:
    """How a replay compares with the record."""
    reproduction = mapping((facts.findings or {}).get("reproduction"))
    verdict = reproduction.get("verdict")
    if verdict is None:
        lacks = _no_input(facts)
        return f"Cannot be checked here: {lacks}." if lacks else NOT_REPLAYED
    put_in = reproduction.get("reduction") == "recorded"
    sentence = verdict_sentence(
        str(verdict),
        max_relative=facts.max_relative,
        environment=facts.environment,
        missing=said_missing(reproduction) or _missing(facts),
        sink=_sink(facts),
        put_in=put_in,
    )
    if reproduction.get("deterministic_here") is False:
        sentence += " Two replays here differ from each other: the step is not deterministic here."
    differences = reproduction.get("differences")
    if verdict not in {"not_reproduced", "unverifiable"} and isinstance(differences, list):
        sentence = f"{sentence} {elsewhere_sentence(differences)}".rstrip()
    survives = reproduction.get("survives_instrumentation")
    tripped = _sink(facts) not in {None, "alert"}
    if survives is None or verdict in {"not_reproduced", "unverifiable"} or put_in:
        return sentence  # what does not fail without probes cannot stop failing with them
    return f"{sentence} {survival_sentence(survives is True, tripped=tripped)}"


def reach(facts: SummaryFacts) -> str:
    """What holds bad values now."""
    bad = _first_bad(facts)
    contamination = (facts.findings or {}).get("contamination")
    if isinstance(contamination, Mapping):
        return contaminated(contamination, bad, facts.update_withheld)
    if bad is None or facts.kind == "alert":
        return "No non-finite value was caught."
    if facts.update_withheld is True:
        return (
            "Stopped before the update. Parameters, optimizer state and checkpoints were not "
            "scanned yet."
        )
    if facts.update_withheld is False or bad.get("stage") not in BEFORE_UPDATE:
        return (
            "The update of this step was made: parameters and optimizer state may hold bad values. "
            "Not scanned yet."
        )
    return "Not known: parameters, optimizer state and checkpoints were not scanned yet."


def resume(facts: SummaryFacts) -> str:
    """From where to go on, and what to try before that."""
    if facts.checkpoint:
        state = f" ({clean(facts.checkpoint_state, 40)})" if facts.checkpoint_state else ""
        text = f"{clean(facts.checkpoint, 120)}{state}."
    elif facts.checkpoint_state == "none":
        text = "No checkpoint of this run was committed when the step failed."
    else:
        text = "Not known: no checkpoint was recorded."
    if facts.fix:
        fix = clean(facts.fix, 400).rstrip(".")
        text += f" Before that, try: {fix[:1].lower()}{fix[1:]}."
    return text


def _first_bad(facts: SummaryFacts) -> dict[str, Any] | None:
    bad = facts.first_bad
    if isinstance(bad, FirstBad):
        return bad.as_dict()
    if bad is None and facts.findings is not None:
        bad = facts.findings.get("first_bad")
    return dict(bad) if isinstance(bad, Mapping) else None


def _origins(facts: SummaryFacts) -> list[Mapping[str, Any]]:
    origins = (facts.findings or {}).get("origins")
    return [o for o in origins if isinstance(o, Mapping)] if isinstance(origins, list) else []


def _what(bad: Mapping[str, Any]) -> str:
    sink, tensor = str(bad.get("sink") or ""), clean(bad.get("tensor", ""), 80)
    kind = str(bad.get("kind") or "nan")
    if sink == OTHER_RANK:
        return f"{clean(bad.get('message') or 'Another rank ended the step', 400).rstrip('.')}."
    if kind == "exception" or sink == "exception":
        message = clean(bad.get("message") or tensor or "an exception", 160).rstrip(".")
        return f"The step raised {message}."
    subject, word = _subject(sink, tensor), kind_word(kind)
    counts = mapping(bad.get("counts"))
    total = sum(int(counts.get(key, 0)) for key in ("nan", "pos_inf", "neg_inf", "finite"))
    if total > 1:
        return f"The {subject} became non-finite: {count_words(counts)}."
    return f"The {subject} became {word}."


def _subject(sink: str, tensor: str) -> str:
    word = _SUBJECTS.get(sink)
    if word is None or tensor.startswith((f"{word} ", f"{sink} ")):
        return tensor or "result"
    if sink in _ALONE:
        return word
    return f"{word} {tensor.removeprefix(f'{sink}:')}"


def _place(bad: Mapping[str, Any]) -> str:
    parts = [clean(bad.get("stage", "an unknown stage"), 40)]
    if bad.get("step") is not None:
        parts.append(f"step {number(int(bad['step']))}")
    if bad.get("micro_step"):
        parts.append(f"micro-step {number(int(bad['micro_step']))}")
    if bad.get("rank"):
        parts.append(f"rank {number(int(bad['rank']))}")
    return ", ".join(parts)


def _born(origin: Mapping[str, Any]) -> str:
    op, kind = origin.get("op"), origin.get("kind")
    tensor = clean(mapping(origin.get("tensor")).get("name") or "", 80)
    source = f", {clean(origin['source'], 100)}" if origin.get("source") else ""
    leaf = _LEAVES.get(str(kind))
    if leaf is not None:
        name = f" {tensor.removeprefix('tensor ')}" if tensor else ""
        source = "" if source.removeprefix(", ") in name else source
        return f"It was in {leaf}{name} before the step began{source}."
    if kind == "exception":
        return f"Raised in {origin_place(origin)}{source}."
    if op:
        return f"Born at {clean(op, 80)} in {origin_place(origin)}{source}."
    return f"Born in {origin_place(origin)}{source}."


_LEAVES: Final = {
    "poisoned_batch": "the batch field",
    "poisoned_parameter": "the parameter",
    "poisoned_buffer": "the buffer",
    "poisoned_optimizer_state": "the optimizer state",
    "captured_tensor": "the tensor",
}


def _sink(facts: SummaryFacts) -> str | None:
    """Which kind of sink tripped; None where nothing did."""
    bad = _first_bad(facts)
    if bad is None:
        return None
    if bad.get("sink") == OTHER_RANK:
        return None  # nothing tripped here
    return "exception" if bad.get("kind") == "exception" else str(bad.get("sink") or "")


def _alert(facts: SummaryFacts, bad: Mapping[str, Any]) -> str:
    message = clean(bad.get("message") or "", 200)
    if message:
        return message if message.endswith(".") else f"{message}."
    value = bad.get("value")
    tensor = clean(bad.get("tensor", "value"), 80)
    return f"{tensor} {number(value)}." if isinstance(value, int | float) else f"{tensor}."


def _nothing_found(facts: SummaryFacts) -> str:
    findings = facts.findings or {}
    verdict = mapping(findings.get("reproduction")).get("verdict")
    if verdict is None:
        return f"{NOT_REPLAYED} The record alone does not show where the value was born."
    if verdict in {"unverifiable", "not_reproduced"}:
        return "Not known: there was no replay that failed as recorded."
    if facts.kind == "alert" or verdict == "same_alert":
        left = mapping(findings.get("envelope")).get("sentence")
        return clean(left or "No value is non-finite, so there is no birth to find.", 400)
    absorbed = findings.get("absorbed")
    if facts.silent or absorbed:
        return clean(facts.silent or "Silent: an overflow was absorbed into finite values.", 300)
    trials = findings.get("counterfactuals")
    if isinstance(trials, list) and any(mapping(t).get("result") == "benign_skip" for t in trials):
        return "Only a scaler skip: without the loss scale the same backward is finite."
    held = findings.get("held")
    if isinstance(held, list) and held:
        return clean(mapping(held[0]).get("sentence") or "", 300)
    bad = _first_bad(facts)
    if bad is not None and bad.get("sink") == OTHER_RANK:
        return "Another rank ended the step: nothing in this rank's part of it is non-finite."
    if bad is not None and facts.kind == "nonfinite":
        return "Not known: it fails as recorded, and no origin was found."
    if facts.scaler_skip:
        return (
            "A scaler skip: under the loss scale gradients were non-finite, and the scaler left "
            "the update out. Whether they are finite without the scale was not tested."
        )
    return (
        f"No fault was found: no NaN, +Inf or {MINUS}Inf reaches the loss, a gradient or a "
        "parameter of this step. Nothing else was looked for."
    )


def _no_input(facts: SummaryFacts) -> str:
    """Why not even the input of the step can be replayed; empty where something can."""
    said = facts.completeness.get("forward_loss", "complete")
    return "" if said == "complete" else lacking(said)


def _missing(facts: SummaryFacts) -> str | None:
    said = [state for state in facts.completeness.values() if state != "complete"]
    return clean("; ".join(dict.fromkeys(map(lacking, said))), 200) if said else None
