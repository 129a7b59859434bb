"""The original conditions of a step: every setting that a replay can change, as it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from workbench.evidence.conditions import Conditions

if TYPE_CHECKING:
    from torch.optim import Optimizer


_BACKENDS = ("eager", "aot_eager", "aot_eager_decomp_partition", "inductor")


def original_conditions(
    step: Any,
    model: nn.Module,
    scale: float | None,
    max_grad_norm: float | None = None,
    autocast: str | None = None,
) -> Conditions:
    """Read the settings a step ran under.

    Args:
        step: The user's training step, or None.
        model: The model, possibly wrapped.
        scale: The loss scale the step used.
        max_grad_norm: The clip threshold of a low-level loop.
        autocast: The autocast dtype seen in a low-level loop; None takes the step's own.
    """
    wanted = getattr(step, "autocast", None)
    if autocast is None:
        autocast = "off"
        if wanted is not None and wanted.enabled:
            autocast = str(wanted.torch_dtype).removeprefix("torch.")
    norm = max_grad_norm if step is None or max_grad_norm is not None else step_norm(step)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    return Conditions().replace(
        device=str(device),
        autocast=autocast,
        autocast_cache=True if wanted is None else bool(wanted.cache_enabled),
        matmul_precision=torch.get_float32_matmul_precision(),
        matmul_tf32=bool(torch.backends.cuda.matmul.allow_tf32),
        cudnn=bool(torch.backends.cudnn.enabled),
        cudnn_tf32=bool(torch.backends.cudnn.allow_tf32),
        cudnn_benchmark=bool(torch.backends.cudnn.benchmark),
        cudnn_deterministic=bool(torch.backends.cudnn.deterministic),
        deterministic=_deterministic(),
        fill_uninitialized_memory=bool(
            getattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
        ),
        sdpa=_sdpa(),
        compile=_compiled(model),
        anomaly=torch.is_anomaly_enabled(),
        scale=scale,
        max_grad_norm=norm,
        threads=torch.get_num_threads(),
    )


def step_norm(step: Any) -> float | None:
    """The step's own clip threshold."""
    value = getattr(step, "max_grad_norm", None)
    return None if value is None else float(value)


def precision(step: Any, autocast: str | None) -> str:
    """The precision in the ledger's words: the autocast dtype, or ``float32`` without one."""
    wanted = getattr(step, "autocast", None)
    if autocast is not None:
        return autocast
    if wanted is None or not wanted.enabled:
        return "off"
    return str(wanted.torch_dtype).removeprefix("torch.")


def _deterministic() -> str:
    if not torch.are_deterministic_algorithms_enabled():
        return "off"
    return "warn" if torch.is_deterministic_algorithms_warn_only_enabled() else "on"


def _sdpa() -> str:
    cuda = torch.backends.cuda
    enabled = {
        "flash": cuda.flash_sdp_enabled(),
        "efficient": cuda.mem_efficient_sdp_enabled(),
        "math": cuda.math_sdp_enabled(),
        "cudnn": cuda.cudnn_sdp_enabled(),
    }
    only = [name for name, on in enabled.items() if on]
    return only[0] if len(only) == 1 else "auto"


def _compiled(model: nn.Module) -> str:
    """The backend of the first compiled module, as a wrapper or in place; ``other`` if unknown."""
    for module in model.modules():
        if hasattr(module, "_orig_mod"):
            return _backend(getattr(module, "dynamo_ctx", None))
        call = getattr(module, "_compiled_call_impl", None)
        if call is not None:
            # compiled in place, the context is only in the closure of the function put in front
            cells = [cell.cell_contents for cell in getattr(call, "__closure__", None) or ()]
            return _backend(next((cell for cell in cells if hasattr(cell, "callback")), None))
    return "off"


def _backend(context: Any) -> str:
    backend: Any = getattr(context, "callback", None)
    for _ in range(6):  # wrappers around the backend, outermost first
        name = getattr(backend, "compiler_name", None)
        if name in _BACKENDS:
            return str(name)
        backend = getattr(backend, "_torchdynamo_orig_backend", None)
    return "other"


def learning_rates(optimizers: Sequence[Optimizer]) -> list[list[float | None]]:
    """The learning rate of every parameter group of every optimizer."""
    return [[_number(group.get("lr")) for group in opt.param_groups] for opt in optimizers]


def _number(value: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        return None
