"""How the gradients of a model are reduced, and which rank's were bad before they were."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.record.ranks.buckets import Look
from workbench.record.ranks.buffers import follow_buffers
from workbench.record.ranks.place import data_parallel
from workbench.record.ranks.reduction import DdpReduction, parameter_groups
from workbench.record.ranks.sharded import ShardedReduction
from workbench.step.gates import held_by
from workbench.step.names import named_parameters
from workbench.step.stages import Unit

if TYPE_CHECKING:
    from workbench.record.ranks.watch import Watch
    from workbench.record.recorder import Recorder
    from workbench.record.session import Session
    from workbench.record.trip import Finding


class Reductions:
    """The reductions of one model.

    Args:
        recorder: The recorder.
        look: What was seen before reductions.
        watch: News of other ranks.

    Attributes:
        how: ``ddp``, ``fsdp2``, or None where the recorder knows of no reduction.
        why_not: Why gradients are not looked at before they are reduced, or None.
        replicated: Whether every rank updates the same values with the same gradients.
        same_norm: Whether every rank has the same gradient norm.
    """

    def __init__(self, recorder: Recorder, look: Look, watch: Watch) -> None:
        self._recorder, self._look, self._watch = recorder, look, watch
        self._installed = False
        self.how: str | None = None
        self.why_not: str | None = "neither DDP nor FSDP2 reduces these gradients"
        self.replicated = self.same_norm = False
        self._own_hook = False

    def install(self) -> None:
        """Put hooks around the reductions, once, when the first step begins."""
        if self._installed:
            return
        self._installed = True
        recorder = self._recorder
        wrapper = data_parallel(recorder.model)
        held = held_by(recorder.optimizers)
        if wrapper is not None:
            self._own_hook = bool(wrapper._comm_hooks)
            self.replicated = self.same_norm = not self._own_hook and held <= {
                id(p) for p in wrapper._module_parameters
            }
            hook = DdpReduction(wrapper, self._look, self._watch)
            self._watch.in_gradients = lambda: hook.waiting
            self.how, self.why_not = "ddp", hook.install(wrapper)
            follow_buffers(recorder, wrapper)
            return
        names = {id(p): p for _, p in named_parameters(recorder.model)}
        self.same_norm = all(hasattr(names.get(one), "device_mesh") for one in held)
        if any(hasattr(one, "set_custom_reduce_scatter") for one in recorder.model.modules()):
            sharded = ShardedReduction(self._look, self._watch)
            self._watch.in_gradients = lambda: sharded.waiting
            self.how, self.why_not = "fsdp2", sharded.install(recorder.model)

    def attribute(self, session: Session, finding: Finding) -> Finding:
        """Say at the gradient gate whether gradients were bad before they were reduced.

        Args:
            session: The recorded step; its ``reduce`` is set where something was bad.
            finding: What the gate found.

        Returns:
            The finding, at stage ``reduce`` where this rank's gradients were finite before.
        """
        if not finding.bad and not self._own_hook:
            return finding  # a sum keeps NaN and Inf: nothing was bad before
        before = self._look.found()
        if not finding.bad and not before:
            return finding
        looked = self.how is not None and self.why_not is None
        session.reduce = {
            "how": self.how,
            "why_not": self.why_not,
            "bad_before": bool(before) if looked else None,
            "contaminated": bool(finding.bad),
            "buckets": [self._describe(one.as_dict()) for one in before],
        }
        if not looked or before or finding.unit.stage != "backward" or not finding.bad:
            return finding
        session.note_reduced()
        return replace(finding, unit=replace(finding.unit, stage="reduce"))

    def order_of(self, finding: Finding) -> Unit:
        """The unit that a trip counts as when ranks are compared.

        A bad gradient belongs to the reduction it first came to; with several micro-batches a later
        one starts from what an earlier one spread.
        """
        unit = finding.unit
        if unit.stage not in ("backward", "reduce", "unscale"):
            return unit
        before = self._look.found()
        if not before:
            return unit
        return replace(unit, stage="backward", micro_step=before[0].round)

    def _describe(self, bucket: dict[str, Any]) -> dict[str, Any]:
        recorder = self._recorder
        names = {id(p): name for name, p in named_parameters(recorder.model)}
        groups = parameter_groups(names, recorder.optimizers)
        found = sorted({groups.get(name, "none") for name in bucket["parameters"]})
        return bucket | {"groups": found}
