"""The gradient reduction of a rank that is replayed alone: what stands for the other ranks.

A rank's own step is computed here; what the reduction made of it needs the others. Where this rank
was finite before the reduction and the bundle has the reduced gradients, they are put in its place,
so that what follows runs as it did. Where this rank was bad itself, nothing is put in: the failure
has to come about here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from workbench.evidence.incidents import siblings
from workbench.numerics.counts import all_finite
from workbench.replay.contribution import Contribution, compare_contribution
from workbench.step import gates
from workbench.step.names import named_parameters

if TYPE_CHECKING:
    from torch import Tensor, nn

    from workbench.replay.source import Source


_SPLIT = (
    "Tensors were split over ranks there and are whole here, so products may add up in another "
    "order; what one rank of them held is in the record"
)


class Reduction:
    """The recorded reduction of a source.

    Args:
        source: The record.

    Attributes:
        kinds: How the model was spread over ranks.
        put_in: Whether recorded gradients were put in place of those computed here.
        was_bad: Whether this rank's gradients were bad before their reduction, by the record.
        own: How this rank's own gradients compare with those it gave to the reduction; None where
            that was not recorded, or not run to.
    """

    def __init__(self, source: Source) -> None:
        found = source.parallel.get("kinds")
        self.kinds = [str(one) for one in found] if isinstance(found, list) else []
        said = source.evidence.get("reduce")
        self.was_bad = said.get("bad_before") if isinstance(said, Mapping) else None
        self._source = source
        self.put_in = False
        self.own: Contribution | None = None
        self._recorded: dict[str, Tensor] | None = None

    @property
    def there(self) -> bool:
        """Whether gradients were reduced with other ranks."""
        return bool({"ddp", "fsdp2"} & set(self.kinds))

    def look(self, model: nn.Module) -> None:
        """Compare the gradients computed here with what this rank gave to the reduction.

        Args:
            model: The model, after its backward and before anything else.
        """
        self.own = compare_contribution(self._source.digests.get("contribution"), model)

    def apply(self, model: nn.Module, scaler: Any) -> None:
        """Put the recorded gradients in place of those computed here, where that may be done.

        Args:
            model: The model, after its backward.
            scaler: The loss scaler, or None: what is recorded was unscaled.
        """
        self.put_in = False
        if not self._may():
            return
        here = {n: p for n, p in named_parameters(model) if p.grad is not None}
        recorded = self._gradients()
        grads = [p.grad for p in here.values() if p.grad is not None]
        if set(recorded) != set(here) or not all_finite(grads):
            return
        scale = gates.scale_value(scaler) if gates.scaler_enabled(scaler) else None
        with torch.no_grad():
            for name, parameter in here.items():
                value = recorded[name].to(parameter.device)
                if value.shape != parameter.shape or parameter.grad is None:
                    return
                parameter.grad.copy_(value if scale is None else value * scale)
        self.put_in = True

    def _may(self) -> bool:
        if "ddp" not in self.kinds or {"fsdp2", "tensor", "dtensor"} & set(self.kinds):
            return False
        said = self._source.evidence.get("gradients")
        clipped = isinstance(said, Mapping) and said.get("clipped")
        return not self.was_bad and not clipped

    def _gradients(self) -> dict[str, Tensor]:
        if self._recorded is None:
            self._recorded = self._source.gradients()
            if not self._recorded and self._source.bundle is not None:
                self._recorded = _of_another(self._source)
        return self._recorded

    def sentences(self) -> list[str]:
        """What stands for the reduction here, for people."""
        if {"tensor", "dtensor"} & set(self.kinds):
            return [_SPLIT]
        if not self.there:
            return []
        if self.put_in:
            text = (
                "This rank was replayed alone up to its gradients; the reduced ones are those "
                "recorded, not computed again (torchrun -m workbench replay does that)"
            )
        else:
            text = (
                "This rank was replayed alone: its gradients are those before their reduction, and "
                "the recorded digests are of those after it, so they were not compared (torchrun "
                "-m workbench replay compares them)"
            )
        return [text] if self.own is None else [text, self._contribution(self.own)]

    @staticmethod
    def _contribution(own: Contribution) -> str:
        plural = "" if own.compared == 1 else "s"
        if own.unequal:
            return (
                f"What this rank gave to the reduction was not the same in {own.unequal:,} of "
                f"{own.compared:,} bucket{plural}"
            )
        equal = own.compared - own.open
        text = f"equal bit sums of {equal:,} of {own.compared:,} bucket{plural}"
        if own.open:
            return f"What this rank gave to the reduction: {text}; the rest holds NaN of other bits"
        return f"What this rank gave to the reduction was the same as recorded: {text}"


def _of_another(source: Source) -> dict[str, Tensor]:
    """The reduced gradients in another rank's bundle: they are the same on all."""
    assert source.bundle is not None  # noqa: S101 - looked at by the caller
    for rank, other in sorted(siblings(source.bundle).items()):
        if rank != source.bundle.manifest.rank and other.has("gradients.safetensors"):
            found: dict[str, Tensor] = other.tensors("gradients.safetensors")
            return found
    return {}
