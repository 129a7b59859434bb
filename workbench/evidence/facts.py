"""What the five lines may speak of: facts of a bundle alone, or of a bundle and its findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workbench.evidence.schema import FirstBad

if TYPE_CHECKING:
    from workbench.evidence.reader import Bundle


@dataclass(kw_only=True)
class SummaryFacts:
    """What the five lines may speak of; whatever is None is not spoken of.

    Attributes:
        first_bad: The first bad record: a ``FirstBad``, a findings' ``first_bad``, or None where
            nothing tripped.
        kind: Kind of the incident.
        findings: A ``workbench.findings/1`` object, once there is one.
        completeness: The bundle's, per recovery goal.
        update_withheld: Whether the optimizer's update of this step was kept from happening.
        cause: One or two sentences on the cause, from the cause's own page.
        fix: What to try, as an imperative without a full stop.
        environment: Differences, as from ``environment_differences``.
        max_relative: Largest relative difference of finite values in a replay.
        checkpoint: Name of the newest committed checkpoint.
        checkpoint_state: Its state, ``"committed"``; ``"none"`` where the run kept track of its
            checkpoints and none was committed.
        silent: A sentence on a wrong finite number, from ``absorbed``.
        scaler_skip: Whether the loss scaler found non-finite gradients in this step.
    """

    first_bad: FirstBad | Mapping[str, Any] | None
    kind: str = "nonfinite"
    findings: Mapping[str, Any] | None = None
    completeness: Mapping[str, str] = field(default_factory=dict)
    update_withheld: bool | None = None
    cause: str | None = None
    fix: str | None = None
    environment: Sequence[Mapping[str, Any]] = ()
    max_relative: float | None = None
    checkpoint: str | None = None
    checkpoint_state: str | None = None
    silent: str | None = None
    scaler_skip: bool = False


def summary_facts(bundle: Bundle, findings: Mapping[str, Any] | None = None) -> SummaryFacts:
    """The facts of a bundle alone, or of a bundle and its findings."""
    manifest = bundle.manifest
    evidence = bundle.evidence() if bundle.has("evidence.json") else {}
    return SummaryFacts(
        first_bad=manifest.first_bad,
        kind=manifest.kind,
        findings=findings,
        completeness=manifest.completeness,
        update_withheld=_withheld(evidence),
        scaler_skip=findings is not None and _scaler_skipped(bundle),
        **checkpoint_facts(evidence),
    )


def _withheld(evidence: Mapping[str, Any]) -> bool | None:
    """Whether no optimizer updated anything in this step, by the record; None where it is open."""
    made = mapping(evidence.get("update")).get("optimizers")
    if not isinstance(made, list):
        return None
    rows = [mapping(one) for one in made]
    return not any(one.get("attempted") and one.get("updated") != "no" for one in rows)


def checkpoint_facts(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """What ``resume`` says of checkpoints, from the evidence of a run that kept track of them."""
    recorded = evidence.get("checkpoints")
    if not isinstance(recorded, Mapping):
        return {}
    latest = mapping(recorded.get("latest"))
    if not latest:
        return {"checkpoint_state": "none"}
    return {"checkpoint": str(latest.get("name")), "checkpoint_state": str(latest.get("state"))}


def _scaler_skipped(bundle: Bundle) -> bool:
    if not bundle.has("evidence.json"):
        return False
    units = bundle.evidence().get("units")
    return isinstance(units, list) and any(mapping(u).get("status") == "skip" for u in units)


def mapping(value: Any) -> Mapping[str, Any]:
    """The value where it is a mapping, else an empty one: what is read may hold anything."""
    return value if isinstance(value, Mapping) else {}
