"""A label, or token, outside of its declared range."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from workbench.record.drill.fault import Fault, Put, spoiled
from workbench.record.policy import Policy
from workbench.step.domains import batch_fields


class _LabelOutOfRange(Fault):
    name: ClassVar = "label_out_of_range"
    what: ClassVar = "an integer field one above its declared maximum"
    boundaries: ClassVar = ("input",)

    def not_applicable(self, put: Put, batch: Any) -> str | None:
        if self._field(put, batch) is None:
            return "no integer field of the batch has a declared domain (TrainingStep.domains)"
        return None

    def policy(self, policy: Policy) -> Policy:
        return replace(policy, input="trip")

    def batch(self, put: Put, step: int, batch: Any) -> Any:
        found = self._field(put, batch)
        if step != put.at or found is None:
            return batch
        name, maximum = found
        return spoiled(batch, name, maximum + 1)

    def _field(self, put: Put, batch: Any) -> tuple[str, float] | None:
        domains = getattr(put.step, "domains", None) or {}
        for name, t in batch_fields(batch):
            whole = not t.is_floating_point() and not t.is_complex() and t.numel()
            domain = domains.get(name)
            if whole and domain is not None and domain.maximum is not None:
                return name, domain.maximum
        return None


fault = _LabelOutOfRange()
