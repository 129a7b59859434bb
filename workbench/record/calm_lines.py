"""The ledger's lines of quiet steps: what stays the same from step to step is encoded once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from workbench.numerics import jsonio
from workbench.record import soft
from workbench.record.ledger import FIELDS
from workbench.record.record import of_the_run, optimizer_entry

if TYPE_CHECKING:
    from workbench.record.quiet_step import QuietStep
    from workbench.record.recorder import Recorder

_ALWAYS: Final[dict[str, Any]] = {
    "micro_step": 0,
    "grad_norm_is_scaled": False,
    "consecutive_skips": 0,
    "first_bad_stage": None,
    "alerts": [],
    "reduce": None,
    "decision": None,
    "order": [],
    "fingerprint": None,
}
_MOST: Final = 256
_INTEGERS: Final = frozenset({int})


class CalmLines:
    """Encodes the records of a recorder's quiet steps.

    Args:
        recorder: The recorder.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._shape = jsonio.LineShape(FIELDS)
        self._provenance: dict[str, Any] | None = None
        self._same: dict[str, Any] = {}
        self._summaries: dict[int, tuple[dict[str, Any], Any]] = {}
        self._optimizers: dict[Any, Any] = {}

    def line(self, one: QuietStep) -> bytes:
        """The line of a step, as ``dump_line`` encodes its record."""
        looked = one.looked
        if looked is None:
            looked = one.looked = soft.Looked(one.batches, self._recorder.policy.input != "off")
        own = {
            "step": one.index,
            "time": one.time,
            "sample_ids": one.sample_ids,
            "batch_fingerprint": looked.fingerprint,
            "precision": one.precision,
            "mode": "train" if one.training else "eval",
            "loss": one.number,
            "loss_components": one.parts or None,
            "loss_scale": one.scale,
            "loss_scale_previous": one.previous,
            "growth_tracker": _growth_tracker(one),
            "learning_rates": one.rates,
            "grad_norm": one.norm,
            "schedulers_advanced": one.advanced,
            "rng_digest": one.rng.digest(),
            "soft_gates": looked.found + (one.soft_gates or []),
        }
        if own["soft_gates"]:
            return self._in_full(one, own | {"batch_summary": looked.summary})
        if not _is_plain(one.sample_ids):
            own["sample_ids"] = jsonio.part(one.sample_ids)
        if one.parts:  # their names are the user's
            own["loss_components"] = jsonio.part(one.parts)
        known = looked.is_known
        own["batch_summary"] = (self._summary if known else jsonio.part)(looked.summary)
        own["optimizers"] = self._did(one)
        return self._shape.line({**self._of_the_run(one.provenance), **own})

    def _in_full(self, one: QuietStep, own: dict[str, Any]) -> bytes:
        run = of_the_run(self._recorder, one.provenance)
        did = {"optimizers": [optimizer_entry(did) for did in one.records]}
        return jsonio.dump_line(
            {**run, **_ALWAYS, **own, **did, "schedulers_advanced": [*one.advanced]}
        )

    def _of_the_run(self, provenance: dict[str, Any]) -> dict[str, Any]:
        if self._provenance is not provenance:
            same = {**of_the_run(self._recorder, provenance), **_ALWAYS}
            self._same = {name: jsonio.part(value) for name, value in same.items()}
            self._provenance = provenance
        return self._same

    def _summary(self, summary: dict[str, Any]) -> Any:
        known = self._summaries.get(id(summary))
        if known is None or known[0] is not summary:
            if len(self._summaries) >= _MOST:
                self._summaries.clear()
            known = self._summaries[id(summary)] = (summary, jsonio.part(summary))
        return known[1]

    def _did(self, one: QuietStep) -> Any:
        key = tuple([(did.updated, did.found_inf) for did in one.records])
        known = self._optimizers.get(key)
        if known is None:
            if len(self._optimizers) >= _MOST:
                self._optimizers.clear()
            known = jsonio.part([optimizer_entry(did) for did in one.records])
            self._optimizers[key] = known
        return known


def _is_plain(sample_ids: Any) -> bool:
    """Whether identifiers can be written as they are: none, or whole numbers."""
    return sample_ids is None or (
        type(sample_ids) is list and _INTEGERS.issuperset(map(type, sample_ids))
    )


def _growth_tracker(one: QuietStep) -> int | None:
    """Steps since the scale changed last, before a step."""
    value = None if one.scale is None else one.scaler._growth_tracker
    return None if value is None else int(value)
