"""The five answers a production run is asked for after an incident, from record and findings.

Where, what is contaminated, did the ranks decide alike, can it be reproduced, how is it kept from
coming back. One function for ``diagnose``, its JSON and the report. An answer says no more than its
evidence, which it names together with the command that computes it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from workbench.diagnose.command_line import step_words
from workbench.diagnose.ranks import ranks_answer
from workbench.evidence.facts import mapping, summary_facts
from workbench.evidence.summary import reach, sure
from workbench.evidence.verdicts import OTHER_RANK, result_sentence
from workbench.evidence.wording import (
    before_the_step,
    clean,
    command_line,
    joined,
    number,
    origin_place,
)

if TYPE_CHECKING:
    from workbench.diagnose.findings import Findings
    from workbench.evidence import Bundle

NEEDS_REPLAY: Final = "Needs a replay, which was not run."
QUESTIONS: Final = {
    "where": "In which step, rank, layer and tensor?",
    "contaminated": "What is contaminated?",
    "ranks": "Did all ranks decide alike?",
    "reproduced": "Can it be reproduced?",
    "prevent": "How is it kept from coming back?",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """One of the five answers.

    Attributes:
        key: ``where``, ``contaminated``, ``ranks``, ``reproduced`` or ``prevent``.
        question: The question.
        sentence: The answer, one line of one or more sentences.
        evidence: What it rests on: files of the bundle, events of the trace, parts of the findings.
        command: What computes it again, ready to be copied.
    """

    key: str
    question: str
    sentence: str
    evidence: str
    command: str

    def as_dict(self) -> dict[str, str]:
        """All fields by name."""
        return asdict(self)


def five_answers(
    bundle: Bundle,
    findings: Findings | Mapping[str, Any] | None,
    *,
    path: str | None = None,
    code: Sequence[str] | None = None,
) -> list[Answer]:
    """Answer the five questions, in their order.

    Args:
        bundle: The bundle.
        findings: Findings about it, as an object or as ``workbench.findings/1`` data; None answers
            from the record alone.
        path: The bundle as the commands name it: where it lies, seen from where they are printed.
            None takes its bare name, which is the same wherever it lies.
        code: The words that name the step's code in the commands; None takes what was recorded.

    Returns:
        Five answers. What was not replayed, not recorded or not read is said to be so.
    """
    data = _data(findings)
    replayed = bool(mapping(data.get("reproduction")).get("verdict"))
    name = bundle.path.name if path is None else path
    words = step_words(bundle) if code is None else code
    diagnose = command_line("diagnose", name, *words)
    facts = summary_facts(bundle, data if replayed else None)
    said_of_ranks, seen_of_ranks = ranks_answer(bundle, data)
    said = {
        "where": (_where(bundle, data), _where_evidence(bundle, data), f"{diagnose} --full"),
        "contaminated": (reach(facts), _reach_evidence(bundle, replayed), f"{diagnose} --json"),
        "ranks": (said_of_ranks, seen_of_ranks, command_line("inspect", name, "--json")),
        "reproduced": (
            _reproduced(bundle, sure(facts), replayed=replayed),
            _digests(bundle),
            command_line("verify", name, "--reproduces", *words),
        ),
        "prevent": (_prevent(data, replayed=replayed), _prevent_evidence(data), diagnose),
    }
    return [Answer(key, QUESTIONS[key], *said[key]) for key in QUESTIONS]


def born(origin: Mapping[str, Any]) -> str:
    """``aten.log.default in loss, train.py:31``: where an origin is."""
    what = clean(origin.get("op") or str(origin.get("kind")).replace("_", " "), 80)
    source = f", {clean(origin['source'], 100)}" if origin.get("source") else ""
    return f"{what} in {origin_place(origin)}{source}"


def _origins(origins: Sequence[Mapping[str, Any]]) -> list[str]:
    """Sentences on the first two: what was born, and what was there before."""
    said = [(before_the_step(o), f"{born(o)}{_positions(o)}") for o in origins[:2]]
    made = [place for held, place in said if held is None]
    sentences = [f"Born at {'; '.join(made)}."] if made else []
    sentences += [f"It was {held}." for held, _ in said if held is not None]
    more = len(origins) - 2
    if more > 0:
        sentences.append(f"{number(more)} more.")
    return sentences


# -- where ----------------------------------------------------------------------------------------


def _where(bundle: Bundle, data: Mapping[str, Any]) -> str:
    manifest, bad = bundle.manifest, bundle.first_bad
    rank = f"rank {number(manifest.rank)} of {number(manifest.world)}"
    rank = rank if manifest.world > 1 else "one process"
    if bad is None:
        caught = f"Nothing tripped at step {number(manifest.step)} ({rank})."
    else:
        stage = bad.stage.replace("_", " ")
        if manifest.world > 1:
            rank = f"rank {number(bad.rank)} of {number(manifest.world)}"
        verb = "Alert" if manifest.kind == "alert" else "Caught"
        if bad.sink == OTHER_RANK:
            verb, rank = "Noticed", f"rank {number(manifest.rank)} of {number(manifest.world)}"
        tensor = "" if bad.tensor == bad.stage else f" ({clean(bad.tensor, 80)})"
        caught = (
            f"{verb} at {stage}{tensor}: step {number(bad.step)}, "
            f"micro-step {number(bad.micro_step)}, {rank}."
        )
    origins = _rows(data, "origins")
    if origins:
        return f"{caught} {' '.join(_origins(origins))}"
    left = mapping(data.get("envelope")).get("sentence")
    if left:
        return f"{caught} {clean(left, 300)}"
    if manifest.kind == "alert":
        return f"{caught} Nothing is non-finite, so nothing was born."
    if not mapping(data.get("reproduction")).get("verdict"):
        return f"{caught} Where it was born: needs a replay, which was not run."
    return caught


def _positions(origin: Mapping[str, Any]) -> str:
    """`` (sample 3)``: the positions whose meaning the evidence shows, in brackets."""
    named = mapping(mapping(origin.get("tensor")).get("positions")).get("sentence")
    return f" ({clean(named, 160)})" if named else ""


def _where_evidence(bundle: Bundle, data: Mapping[str, Any]) -> str:
    events = [o["event"] for o in _rows(data, "origins") if o.get("event") is not None]
    seen = ["first_bad in manifest.json"] if bundle.first_bad is not None else ["manifest.json"]
    if events:
        shown = joined([number(int(event)) for event in events])
        seen.append(f"{'event' if len(events) == 1 else 'events'} {shown} of the traced replay")
    if data.get("envelope"):
        seen.append("envelope in the findings")
    return " and ".join(seen)


# -- contaminated ---------------------------------------------------------------------------------


def _reach_evidence(bundle: Bundle, replayed: bool) -> str:
    if replayed:
        return "contamination in the findings: the state where the traced replay ended"
    return "bad in evidence.json" if bundle.has("evidence.json") else "manifest.json"


# -- reproduced -----------------------------------------------------------------------------------


def _reproduced(bundle: Bundle, sentence: str, *, replayed: bool) -> str:
    lacking = [
        f"{goal.replace('_', ' ')}: {clean(state, 120)}"
        for goal, state in bundle.completeness.items()
        if state != "complete" and goal != "trajectory"
    ]
    if lacking and "incomplete" not in sentence:
        return f"{sentence} Not all can be replayed ({joined(lacking)})."
    if not replayed and not lacking and bundle.completeness:
        return f"{sentence} The bundle holds what a replay needs: batch, state and random state."
    return sentence


def _digests(bundle: Bundle) -> str:
    if not bundle.has("evidence.json"):
        return "completeness in manifest.json"
    return "digests in evidence.json, completeness in manifest.json"


# -- prevent --------------------------------------------------------------------------------------


def _prevent(data: Mapping[str, Any], *, replayed: bool) -> str:
    origins = _rows(data, "origins")
    fixes = [clean(o["fix"], 400).rstrip(".") for o in origins if o.get("fix")]
    advice = f"{fixes[0]}." if fixes else ""
    gone = _gone(data)
    if gone is not None:
        control = gone.get("placebo")
        elsewhere = (
            f" The same kind of change elsewhere: {result_sentence(str(control))}"
            if control
            else ""
        )
        return (
            f"{advice} Tried as a diagnostic, {clean(gone.get('intervention'), 120)}: "
            f"{result_sentence(str(gone.get('result')))}{elsewhere}"
        ).strip()
    if fixes:
        tried = "Nothing that was tried made the failure go away."
        return f"{advice} {tried if _rows(data, 'counterfactuals') else 'Not tried here.'}"
    if not replayed:
        return NEEDS_REPLAY
    if mapping(data.get("envelope")).get("sentence"):
        return "No change was tried: no value is non-finite, and what the alert is about is named."
    if not origins:
        return "No origin was found, so there is nothing known to prevent."
    return "Nothing was tried that made the failure go away."


def _prevent_evidence(data: Mapping[str, Any]) -> str:
    gone = _gone(data)
    if gone is not None:
        return f"counterfactual {clean(gone.get('intervention'), 120)!r} in the findings"
    causes = [str(o["cause"]) for o in _rows(data, "origins") if o.get("cause")]
    return f"cause {causes[0]} in the findings" if causes else "the findings, which name no cause"


def _gone(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    tried = _rows(data, "counterfactuals")
    return next((t for t in tried if t.get("result") in ("gone", "benign_skip")), None)


# -- reading --------------------------------------------------------------------------------------


def _data(findings: Findings | Mapping[str, Any] | None) -> Mapping[str, Any]:
    if findings is None:
        return {}
    return findings if isinstance(findings, Mapping) else findings.data


def _rows(data: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    value = data.get(key)
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []
