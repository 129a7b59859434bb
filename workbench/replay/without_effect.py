"""Conditions that were changed and cannot act here: on this device, or on the stage that failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from workbench.replay.settings import attention_available
from workbench.step.stages import STAGES

if TYPE_CHECKING:
    from workbench.evidence import Conditions


@dataclass(frozen=True)
class Facts:
    """What decides whether a condition can act.

    Attributes:
        device: The device the replay runs on.
        stage: The stage that failed in the record, or None.
        has_scaler: Whether the step has an enabled loss scaler.
        own_clip: Whether the step clips in its own way, so that the threshold is not read.
        clips: Whether the step clips at all; None where it is not known.
    """

    device: torch.device
    stage: str | None
    has_scaler: bool
    own_clip: bool
    clips: bool | None = None


EARLIEST = {
    "scale": ("backward", "the loss scale is multiplied in after the loss"),
    "clip_before_unscale": ("unscale", "clipping and unscaling happen after backward"),
    "max_grad_norm": ("clip", "clipping happens after backward"),
    "optimizer": ("update", "the optimizer runs after the gradients are known"),
}
"""The first stage each of these can change, and why."""
_BACKWARD = ("backward", "reduce", "unscale", "clip")


def without_effect(
    conditions: Conditions,
    changed: Mapping[str, Any],
    facts: Facts,
    failed: Mapping[str, str | None],
) -> list[dict[str, str]]:
    """List the changed conditions that cannot act.

    Args:
        conditions: What the replay runs under.
        changed: The conditions that differ from the recorded ones.
        facts: What decides it.
        failed: Conditions that could not be applied, with the reason (None: applied).

    Returns:
        ``{"key", "why"}`` in the order of the conditions.
    """
    found = []
    for key in changed:
        why = failed.get(key) or _on_device(key, conditions, facts) or _on_stage(key, facts)
        if why is not None:
            found.append({"key": key, "why": why})
    return found


def _on_device(key: str, conditions: Conditions, facts: Facts) -> str | None:
    rule = _RULES.get(key)
    why = None if rule is None else rule(conditions, facts)
    return None if why is None else why


def _on_stage(key: str, facts: Facts) -> str | None:
    if key == "anomaly" and facts.stage in STAGES and facts.stage not in _BACKWARD:
        return (
            "No effect on the stage that failed: anomaly mode looks at what backward returns, and "
            f"the failure is in {facts.stage}."
        )
    earliest = EARLIEST.get(key)
    if earliest is None or facts.stage not in STAGES:
        return None
    stage, because = earliest
    if STAGES.index(facts.stage) >= STAGES.index(stage):
        return None
    return f"No effect on the stage that failed: {because}, and the failure is in {facts.stage}."


_Rule = Callable[["Conditions", Facts], str | None]


def _needs_cuda(what: str) -> _Rule:
    def rule(conditions: Conditions, facts: Facts) -> str | None:
        del conditions
        if facts.device.type == "cuda":
            return None
        return f"No effect on this device: {what} needs a CUDA GPU."

    return rule


def _matmul_precision(conditions: Conditions, facts: Facts) -> str | None:
    del conditions
    if facts.device.type == "cuda" or _cpu_has_low_precision_gemm():
        return None
    return "No effect on this device: this CPU has no low-precision matrix product for float32."


def _cpu_has_low_precision_gemm() -> bool:
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    probes = [getattr(torch.cpu, name, None) for name in names]
    return any(bool(probe()) for probe in probes if callable(probe))


def _attention(conditions: Conditions, facts: Facts) -> str | None:
    if attention_available(conditions.sdpa, facts.device):
        return None
    return f"No effect on this device: the {conditions.sdpa} attention kernel needs a CUDA GPU."


def _autocast_cache(conditions: Conditions, facts: Facts) -> str | None:
    del facts
    return "No effect: autocast is off." if conditions.autocast == "off" else None


def _autocast(conditions: Conditions, facts: Facts) -> str | None:
    if conditions.autocast == "cuda-policy" and facts.device.type == "cuda":
        return "No effect on this device: a CUDA GPU follows CUDA's autocast rules by itself."
    if conditions.dtype == "float64" and conditions.autocast != "off":
        return "No effect: autocast leaves float64 tensors as they are."
    return None


def _float32_modules(conditions: Conditions, facts: Facts) -> str | None:
    del facts
    if conditions.autocast == "off" and conditions.dtype in ("float32", "float64"):
        return f"No effect: the whole model already runs in {conditions.dtype}."
    return None


def _fill(conditions: Conditions, facts: Facts) -> str | None:
    del facts
    if conditions.deterministic != "off":
        return None
    return "No effect: uninitialised memory is filled only while deterministic is on or warn."


def _compile_dynamic(conditions: Conditions, facts: Facts) -> str | None:
    del facts
    return "No effect: the model is not compiled." if conditions.compile == "off" else None


def _scale(conditions: Conditions, facts: Facts) -> str | None:
    if not facts.has_scaler:
        return "No effect: the step has no loss scaler."
    if conditions.scale is None:
        return "No effect: the loss scale was not given, so the recorded one stays."
    return None


def _clip(conditions: Conditions, facts: Facts) -> str | None:
    del conditions
    return "No effect: the step clips in its own way." if facts.own_clip else None


def _order(conditions: Conditions, facts: Facts) -> str | None:
    del conditions
    if not facts.has_scaler:
        return "No effect: there is no loss scaler to divide by."
    return "No effect: the step does not clip." if facts.clips is False else None


_RULES: dict[str, _Rule] = {
    "matmul_tf32": _needs_cuda("TF32"),
    "cudnn_tf32": _needs_cuda("TF32"),
    "cudnn": _needs_cuda("cuDNN"),
    "cudnn_benchmark": _needs_cuda("cuDNN"),
    "cudnn_deterministic": _needs_cuda("cuDNN"),
    "matmul_precision": _matmul_precision,
    "sdpa": _attention,
    "autocast": _autocast,
    "autocast_cache": _autocast_cache,
    "float32_modules": _float32_modules,
    "fill_uninitialized_memory": _fill,
    "compile_dynamic": _compile_dynamic,
    "scale": _scale,
    "max_grad_norm": _clip,
    "clip_before_unscale": _order,
}
