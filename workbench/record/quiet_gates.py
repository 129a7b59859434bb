"""The gates of a quiet step: those of ``RecordingRunner``, from what is at hand.

Each tells whether what it looks at is known to be clean. Where it is not, nothing is said about it:
a session is made that stands where the step is, and asks again.
"""

from __future__ import annotations

import math
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from workbench.numerics.counts import all_finite
from workbench.record import settings, soft
from workbench.record.quiet_step import QuietStep
from workbench.record.running import clips_by_default
from workbench.step.gates import found_inf, gradient_norm, optimizer_state_values, scale_value
from workbench.step.values import scalar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from workbench.record.recorder import Recorder


class QuietGates:
    """Looks at the quiet steps of a recorder.

    Args:
        recorder: The recorder.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._clips = recorder.step_object is not None and clips_by_default(recorder.step_object)
        self._held: list[Tensor] = []
        self._of: object = None
        self._all_held = False
        self._last_scale: float | None = None

    def outputs(self, begun: QuietStep) -> None:
        """Note what is non-finite among the outputs."""
        outputs = begun.outputs
        try:
            if (
                type(outputs) is Tensor
                and outputs.dtype is torch.float32
                and (outputs.numel() > soft.ALWAYS or _sum_is_finite(outputs))
            ):
                return
            found = soft.scan("outputs", outputs, False)
            begun.soft_gates = [entry | {"micro_step": 0} for entry in found]
        except Exception:  # noqa: BLE001 - the tool may not break training; a soft gate only notes
            begun.soft_gates = None

    def loss(self, begun: QuietStep, loss: Any, components: Mapping[str, Tensor]) -> bool:
        """Whether a micro-step's loss and its parts are finite; they are added to the step's."""
        if type(loss) is not Tensor or loss.dim() or not loss.is_floating_point():
            return False
        number = loss.item()
        if not math.isfinite(number) or begun.soft_gates is None:
            return False
        for name, value in components.items():
            part = scalar(value)
            if part is None or not math.isfinite(part):
                return False
            begun.parts[name] = begun.parts.get(name, 0.0) + part
        begun.number = number
        return True

    def gradients(self, begun: QuietStep) -> bool:
        """Whether every gradient is finite."""
        if begun.scale is not None:
            return self._scaler_proves(begun.scale)
        prepared = self._recorder.prepared.model
        if not prepared.has_same_parameters():
            return False
        found = [grad for p in prepared.parameters if (grad := p.grad) is not None]
        try:
            if self._clips:
                if not found or any(type(grad) is not Tensor for grad in found):
                    return False
                # the same call as clipping makes, so clipping can use it with the same bits
                begun.total_norm = torch.nn.utils.get_total_norm(found)
                begun.gate_norm = float(begun.total_norm)
                return math.isfinite(begun.gate_norm)
            begun.gate_norm = gradient_norm(found)
        except Exception:  # noqa: BLE001 - the session asks again and says it
            begun.total_norm = None
            return False
        return begun.gate_norm is not None

    def _scaler_proves(self, scale: float) -> bool:
        """Whether the scaler looked at every gradient and dividing by its scale cannot overflow."""
        recorder = self._recorder
        if not (1.0 <= scale < math.inf and recorder.prepared.model.has_same_parameters()):
            return False
        for optimizer in recorder.optimizers:
            if found_inf(recorder.scaler, optimizer) != 0.0:
                return False
        return self._all_are_held(recorder.prepared.model.parameters)

    def _all_are_held(self, parameters: Sequence[Tensor]) -> bool:
        """Whether the optimizers hold every parameter that has a gradient."""
        groups = [group["params"] for o in self._recorder.optimizers for group in o.param_groups]
        held = list(chain.from_iterable(groups))
        same = self._of is parameters and len(held) == len(self._held)
        if not (same and all(map(is_, held, self._held))):
            self._of, self._held = parameters, held
            known = set(map(id, held))
            self._all_held = all(id(p) in known for p in parameters)
        if self._all_held:
            return True
        known = set(map(id, held))
        return all(id(p) in known for p in parameters if p.grad is not None)

    def norm(self, begun: QuietStep) -> bool:
        """Whether the norm that clipping used is finite."""
        norm = begun.grad_norm
        if norm is None:
            begun.norm = begun.gate_norm
            return True
        begun.norm = begun.gate_norm if norm is begun.total_norm else scalar(norm)
        return begun.norm is not None and math.isfinite(begun.norm)

    def jumps(self, begun: QuietStep) -> bool:
        """Whether loss or gradient norm will make an alert; asked before the update."""
        monitor = self._recorder.monitor
        if not monitor.looks_for_jumps:
            return False
        loss = begun.number if len(begun.losses) == 1 else begun.total_loss().item()
        return monitor.will_jump(loss, begun.norm)

    def update(self, begun: QuietStep) -> bool:
        """Whether what the update wrote is finite, as far as it is looked at, and nothing hints."""
        recorder = self._recorder
        scan = recorder.scan
        try:
            if begun.scale is not None and not self._scale_is_calm(begun):
                return False
            begun.rates = settings.learning_rates(recorder.optimizers)
            if len(begun.losses) > 1:
                begun.number = begun.total_loss().item()
            if not scan.note_calm(begun.norm, begun.number, begun.rates):
                return False
            prepared = recorder.prepared.model
            buffers = prepared.buffers_now()
            if scan.is_small:
                tensors: list[Tensor] = [*prepared.parameters]
                tensors += optimizer_state_values(recorder.optimizers)
                return scan.all_finite(tensors) and _buffers_are_finite(buffers)
            share = scan.share(recorder.model, recorder.optimizers)
            begun.spoiled = not (_buffers_are_finite(buffers) and all_finite(share))
            return not begun.spoiled
        except Exception:  # noqa: BLE001 - the session asks again and says it
            return False

    def _scale_is_calm(self, begun: QuietStep) -> bool:
        """Whether the loss scale is finite and did not fall: only one that falls makes an alert."""
        before, after = self._recorder.monitor.previous_scale, scale_value(self._recorder.scaler)
        last, self._last_scale = self._last_scale, after
        begun.scale_after = after
        if after is None or not math.isfinite(after):
            return False
        seen = [one for one in (before, last, begun.scale) if one is not None]
        return all(after >= one for one in seen)


def _buffers_are_finite(buffers: list[Tensor]) -> bool:
    """Whether all are finite; read only, since a snapshot of them is held."""
    if any(t.is_complex() for t in buffers):
        return all_finite(buffers)
    floats = [t for t in buffers if t.is_floating_point()]
    return not floats or gradient_norm(floats) is not None or all_finite(floats)


def _sum_is_finite(t: Tensor) -> bool:
    """Whether the elements add up to a finite number, which proves all of them finite."""
    return math.isfinite(t.detach().sum().item())
