"""What tripped in a step, and what the recorder then decides: one place for all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from workbench.errors import UsageError
from workbench.evidence.schema import FirstBad
from workbench.record.policy import Action, Policy
from workbench.step.domains import Violation
from workbench.step.gates import BadTensor
from workbench.step.stages import Stage, Unit
from workbench.step.values import text_of

Kind = Literal["nonfinite", "alert", "captured"]
_MESSAGE = 500
_TOLD = ("tensor", "sink", "kind", "shape", "dtype", "counts", "first", "value", "message")


@dataclass(frozen=True)
class Finding:
    """What one gate of one rank found; what a collective reduces to the same value on all ranks.

    Attributes:
        unit: The unit whose gate it was.
        bad: The non-finite sinks here.
        violations: Batch fields outside their domain.
        exception: The user's exception.
        skip: Whether the loss scaler will skip the update because of it.
        elsewhere: The rank that found something when this one did not; None on one rank.
        told: What that rank says of it: fields of ``FirstBad``.
    """

    unit: Unit
    bad: tuple[BadTensor, ...] = ()
    violations: tuple[Violation, ...] = ()
    exception: BaseException | None = None
    skip: bool = False
    elsewhere: int | None = None
    told: Mapping[str, Any] | None = None

    @property
    def tripped(self) -> bool:
        """Whether a sink tripped on any rank."""
        here = bool(self.bad or self.violations or self.exception is not None)
        return (here and not self.skip) or self.elsewhere is not None


Agree = Callable[[Any, Any, Finding, bool], Finding]
"""Makes one finding of those of all ranks; the identity on one rank.

It is given the session, the runner, the finding, and whether the gate looked at the gradients.
"""


def alone(session: Any, runner: Any, finding: Finding, at_gate: bool) -> Finding:
    """Agree with oneself: the only rank there is."""
    del session, runner, at_gate
    return finding


@dataclass(frozen=True)
class Trip:
    """A tripped sink, as it goes into bundle, ledger and exception.

    Attributes:
        kind: Kind of the incident.
        unit: The unit at whose gate it was caught.
        first_bad: What was caught.
        finding: The finding behind it, None for an alert or a captured step.
    """

    kind: Kind
    unit: Unit
    first_bad: FirstBad | None
    finding: Finding | None = None

    @property
    def stage(self) -> Stage:
        """The stage it was caught at."""
        return self.unit.stage


def make_trip(finding: Finding, run_id: str, step: int, rank: int) -> Trip:
    """Describe a finding that tripped.

    Args:
        finding: The finding.
        run_id: The run.
        step: Number of the step.
        rank: This rank.
    """
    unit = finding.unit
    place: dict[str, Any] = {
        "run_id": run_id,
        "step": step,
        "micro_step": unit.micro_step,
        "rank": rank if finding.elsewhere is None else finding.elsewhere,
        "stage": unit.stage,
    }
    return Trip("nonfinite", unit, FirstBad(**place, **_what(finding)), finding)


def _what(finding: Finding) -> dict[str, Any]:
    if finding.exception is not None:
        name = type(finding.exception).__name__
        text = f"{name}: {text_of(finding.exception)}"[:_MESSAGE]
        return {
            "tensor": f"exception:{name}",
            "sink": "exception",
            "kind": "exception",
            "message": text,
        }
    if finding.violations:
        first = finding.violations[0]
        return {
            "tensor": f"input:{first.field}",
            "sink": "input",
            "kind": _value_kind(first.value),
            "first": list(first.index),
            "value": first.value,
            "message": first.message,
        }
    if not finding.bad:
        unknown = {"tensor": "unknown", "sink": "", "kind": "nan"}
        told = {key: value for key, value in (finding.told or {}).items() if key in _TOLD}
        return unknown | told | {"message": told.get("message") or "caught on another rank"}
    bad = finding.bad[0]
    return {
        "tensor": bad.name,
        "sink": bad.kind,
        "kind": bad.counts.kind or "nan",
        "shape": list(bad.shape),
        "dtype": bad.dtype or None,
        "counts": bad.counts.as_dict(),
        "first": None if bad.first is None else list(bad.first),
        "value": bad.value,
    }


def _value_kind(value: float) -> str:
    if value != value:
        return "nan"
    return {float("inf"): "+inf", float("-inf"): "-inf"}.get(value, "domain")


def decide(trip: Trip, policy: Policy) -> Action:
    """Choose what happens after a trip; the same on every rank, since the finding was agreed on.

    Raises:
        UsageError: A policy function returned something else.
    """
    wanted = policy.on_nonfinite
    if not callable(wanted):
        return wanted
    answer = wanted(trip)
    if answer not in ("raise", "skip", "continue"):
        raise UsageError(
            f"The function given as on_nonfinite returned {answer!r}, so it is not known whether "
            "to stop. Return 'raise', 'skip' or 'continue'."
        )
    return answer
