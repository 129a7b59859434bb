"""Putting all that was found into one ``workbench.findings/1`` document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.diagnose.across import add_ranks
from workbench.diagnose.answers import five_answers
from workbench.diagnose.chain import chain_rows
from workbench.diagnose.contamination import contamination
from workbench.diagnose.findings import SCHEMA, Findings
from workbench.diagnose.headroom import headroom
from workbench.diagnose.held import sentence
from workbench.diagnose.origin_rows import grouped, growth_row, origin_row
from workbench.diagnose.replaced import replaces
from workbench.evidence import summary_facts, summary_lines
from workbench.evidence.wording import counted

if TYPE_CHECKING:
    from workbench.diagnose.analysis import Analysis, Judged
    from workbench.diagnose.envelope import Envelope
    from workbench.evidence import Bundle
    from workbench.replay import Replay, Reproduction


def build(
    bundle: Bundle,
    reproduction: Reproduction | None,
    analysis: Analysis | None,
    limits: list[str],
    envelope: Envelope | None = None,
    replay: Replay | None = None,
) -> Findings:
    """Put everything found into one document.

    Args:
        bundle: The bundle.
        reproduction: The replay's verdict, or None when nothing was replayed.
        analysis: The trace's analysis, or None.
        limits: Limits known so far (why a replay was not possible, say).
        envelope: What a finite incident left, or None for any other bundle.
        replay: The replay, to see what an update that the run made too leaves.
    """
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "bundle": {"id": bundle.id, "digest": bundle.digest, "kind": bundle.kind},
        "first_bad": bundle.first_bad.as_dict() if bundle.first_bad else None,
        "reproduction": _reproduction(reproduction),
        "origins": [],
        "contributors": [],
        "chain": [],
        "counterfactuals": [],
        "contamination": contamination(bundle, analysis, replay),
        "absorbed": [],
        "step_order": [],
        "alerts": _alerts(bundle),
        "limits": list(limits),
    }
    result = Findings(data)
    if analysis is not None:
        _fill(data, bundle, analysis)
        result.events, result.layers = analysis.trace.events, analysis.trace.layers
    if envelope is not None:
        data["envelope"] = envelope.to_data()
        data["step_order"] = [
            {"step": one.step, "what": one.what, "name": one.name, "sentence": one.sentence}
            for one in envelope.left
        ]
        data["limits"] += envelope.limits
    add_ranks(data, bundle)
    facts = summary_facts(bundle, data if reproduction is not None else None)
    first = data["origins"][0] if data["origins"] else None
    if first is not None:
        facts.cause, facts.fix = first["explanation"] or None, first["fix"] or None
    if data["absorbed"]:
        facts.silent = data["absorbed"][0]["sentence"]
    data["summary"] = summary_lines(facts)
    data["answers"] = [answer.as_dict() for answer in five_answers(bundle, data)]
    return result


def _fill(data: dict[str, Any], bundle: Bundle, analysis: Analysis) -> None:
    data["origins"] = grouped([origin_row(judged, bundle) for judged in analysis.origins])
    if analysis.growth is not None:
        data["origins"].insert(0, growth_row(analysis.growth, bundle))
    overflow = next((j for j in analysis.origins if j.case.range == "overflow"), None)
    if overflow is not None or analysis.left is not None:
        data["growth"] = {
            "headroom": [] if overflow is None else headroom(analysis.trace, overflow.origin.event),
            "left": None if analysis.left is None else analysis.left.to_data(bundle.manifest.step),
        }
    if analysis.slice.held:
        graph = analysis.trace.graph
        data["held"] = [
            {"tensor": one.name, "event": one.event, "sentence": sentence(one, graph)}
            for one in analysis.slice.held
        ]
    data["contributors"] = _contributors(analysis)
    data["chain"] = chain_rows(analysis)
    data["counterfactuals"] = list(analysis.counterfactuals)
    data["absorbed"] = [
        _absorbed_row(absorption.absorber, absorption.elements, judged, bundle)
        for absorption, judged in analysis.absorbed
    ]
    if not analysis.stable:
        data["limits"].append(
            "Unstable trace: a second pass executed other ops than the first, so operands were "
            "not looked at and range and cause are not judged."
        )
    named = [*analysis.origins, *([analysis.growth.judged] if analysis.growth else [])]
    for judged in named:
        if judged.cause is not None and judged.cause.limits not in data["limits"]:
            data["limits"].append(judged.cause.limits)


def _contributors(analysis: Analysis) -> list[dict[str, Any]]:
    rows = []
    seen: set[tuple[int, str]] = set()
    pairs = list(analysis.slice.contributors)
    for judged in analysis.origins:
        pairs += [(index, "underflow_to_zero") for index, _ in judged.case.zero_makers()]
        pairs += [(index, "epsilon_rounded_to_zero") for index, _ in judged.case.lost_scalars()]
    for index, role in pairs:
        if (index, role) in seen or not 0 <= index < len(analysis.trace.graph):
            continue
        seen.add((index, role))
        event = analysis.trace.graph[index]
        rows.append(
            {
                "event": index,
                "op": event.op,
                "role": role,
                "stage": event.stage,
                "where": event.where,
                "module": event.module,
                "source": event.source,
            }
        )
    return rows


def _absorbed_row(absorber: int, elements: int, judged: Judged, bundle: Bundle) -> dict[str, Any]:
    event = judged.case.trace.graph[absorber]
    row = origin_row(judged, bundle)
    place = event.module or event.where
    row["absorbed_by"] = {
        "event": absorber,
        "op": event.op,
        "module": event.module,
        "source": event.source,
    }
    row["elements"] = elements
    infinite = counted(elements, "infinite one")
    if replaces(event):
        row["sentence"] = (
            f"Silent: {event.op} in {place} put finite numbers in the place of {infinite}, and the "
            "loss used them."
        )
    else:
        row["sentence"] = (
            f"Silent: an overflow was absorbed; {event.op} in {place} made finite values of "
            f"{infinite}, and they are wrong."
        )
    return row


def _reproduction(reproduction: Reproduction | None) -> dict[str, Any]:
    if reproduction is None:
        return {
            "verdict": None,
            "deterministic_here": None,
            "survives_instrumentation": None,
            "differences": [],
        }
    return reproduction.to_data()


def _alerts(bundle: Bundle) -> list[Any]:
    if bundle.kind != "alert" or not bundle.has("evidence.json"):
        return []
    alerts = bundle.json("evidence.json").get("alerts", [])
    return list(alerts) if isinstance(alerts, list) else []
