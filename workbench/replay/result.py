"""What a replay returns: the state of each stage, the result of a run, the verdict."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from workbench.numerics import jsonio

Status = Literal["clean", "bad", "alert", "skip", "not_run", "unavailable"]
Verdict = Literal[
    "bitwise", "same_mask", "same_class", "same_alert", "not_reproduced", "unverifiable"
]
SCHEMA = "workbench.replay/1"


class StageState(msgspec.Struct, frozen=True, kw_only=True):
    """What one stage did.

    Attributes:
        stage: One of the ten stages.
        status: ``skip`` is a scaler's own skip: non-finite gradients under a finite loss.
        tensor: First non-finite sink of the stage, or None.
        counts: NaN, +Inf, -Inf and finite elements of that tensor, or None.
        sentence: One sentence for people.
        reason: Why the stage is unavailable, or None.
        masks: Digest of the non-finite set of every bad sink, by its stable name.
    """

    stage: str
    status: Status = "not_run"
    tensor: str | None = None
    counts: dict[str, int] | None = None
    sentence: str = "Not run yet."
    reason: str | None = None
    masks: dict[str, str] = {}

    def to_data(self) -> dict[str, Any]:
        """Return the stage as it stands in ``workbench.replay/1``."""
        data: dict[str, Any] = {
            "stage": self.stage,
            "status": "clean" if self.status == "skip" else self.status,
            "tensor": self.tensor,
            "counts": self.counts,
            "sentence": self.sentence,
        }
        if self.status == "skip":
            data["scaler_skip"] = True
        if self.reason is not None:
            data["reason"] = self.reason
        return data


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """One replay of the step, in plain data: it crosses processes as it is.

    Attributes:
        verdict: This one run against the record, or None when it is diagnostic.
        conditions: The conditions it ran under, by name.
        diagnostic: Whether they differ from the recorded ones.
        changed: The conditions that differ, with the value used.
        read_back: The settings as they were read while running.
        without_effect: Changed conditions that cannot act here, as ``{"key", "why"}``.
        stages: The ten stages.
        loss: Total loss, None before the loss stage.
        loss_bits: The loss's bytes in hexadecimal, None before the loss stage.
        first_bad: ``{"stage", "micro_step", "phase", "tensor", "counts"}`` or None.
        gradients: Digest of every gradient as the gate saw it, by parameter name.
        masks: Digest of the non-finite set of every bad sink, by its stable name.
        rng: Digest of the random number generators after the last stage that ran.
        seconds: Wall time of the run, without building the model.
        until: The last stage that was asked for.
        notes: Sentences about the run that belong beside its result.
    """

    verdict: Verdict | None = None
    conditions: dict[str, Any]
    diagnostic: bool
    changed: dict[str, Any]
    read_back: dict[str, Any]
    without_effect: list[dict[str, str]]
    stages: list[StageState]
    loss: float | None
    loss_bits: str | None
    first_bad: dict[str, Any] | None
    gradients: dict[str, str]
    masks: dict[str, str]
    rng: str | None
    seconds: float
    until: str
    notes: list[str] = []

    def to_data(self) -> dict[str, Any]:
        """Return the run as ``workbench.replay/1``."""
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "diagnostic": self.diagnostic,
            "changed": self.changed,
            "conditions": self.conditions,
            "read_back": self.read_back,
            "without_effect": self.without_effect,
            "stages": [stage.to_data() for stage in self.stages],
            "loss": self.loss,
            "first_bad": self.first_bad,
            "digests": {
                "loss_bits": self.loss_bits,
                "gradients": self.gradients,
                "masks": self.masks,
                "rng": self.rng,
            },
            "seconds": self.seconds,
            "until": self.until,
            "notes": self.notes,
        }

    def to_json(self) -> str:
        """Encode as strict JSON, ``workbench.replay/1``."""
        return jsonio.dumps(self.to_data())


class Reproduction(msgspec.Struct, frozen=True, kw_only=True):
    """How a replay under the original conditions compares with the record.

    Attributes:
        verdict: The best grade the evidence allows.
        deterministic_here: Whether two un-instrumented runs agreed bit for bit; None when fewer
            than two could be run.
        survives_instrumentation: Whether the failure is still there with probes on; None before
            the step was traced.
        differences: What differs between the record and here, one plain sentence each.
        rows: Conditions and environment that differ, as ``{"field", "recorded", "here"}``.
        distance: Largest difference of jointly finite values, relative to the largest value of
            their tensor, when it was measured.
        sentence: The verdict for people.
        tripped: Whether anything had tripped in the recorded step.
        put_in: Whether the reduced gradients were put in from the record.
    """

    verdict: Verdict
    deterministic_here: bool | None = None
    survives_instrumentation: bool | None = None
    differences: list[str] = []
    rows: list[dict[str, Any]] = []
    distance: float | None = None
    sentence: str = ""
    tripped: bool = True
    put_in: bool = False

    def to_data(self) -> dict[str, Any]:
        """Return the part that ``workbench.findings/1`` holds under ``reproduction``."""
        data: dict[str, Any] = {
            "verdict": self.verdict,
            "deterministic_here": self.deterministic_here,
            "survives_instrumentation": self.survives_instrumentation,
            "differences": list(self.differences),
            "sentence": self.sentence,
            "tripped": self.tripped,
        }
        return data | {"reduction": "recorded"} if self.put_in else data
