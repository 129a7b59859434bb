"""Process-wide numeric settings: set for one replay, read back while it runs, then put back.

This is the only place that touches global numeric state. What belongs to one model (its dtype, its
optimizer's implementation, the loss scale) is in `adjust`.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from workbench.replay.cuda_policy import Policy, cuda_policy
from workbench.replay.devices import redirection
from workbench.replay.redirect import redirected

if TYPE_CHECKING:
    from workbench.evidence import Conditions

SDPA = ("math", "flash", "efficient", "cudnn")
"""Kernels of scaled dot product attention, as ``--set sdpa=`` names them."""

# the module's class gives it a property that type checkers do not see
_FILL: Any = torch.utils.deterministic


@contextmanager
def applied(
    conditions: Conditions, recorded: Conditions | None = None, *, traced: bool = False
) -> Iterator[Callable[[], dict[str, Any]]]:
    """Apply the process-wide part of a set of conditions and restore everything afterwards.

    Args:
        conditions: What to apply; ``device`` decides which settings exist.
        recorded: The original conditions; the user's own autocast regions are redirected where
            the two differ. None takes ``conditions`` for the original ones.
        traced: Run compiled modules eagerly (their hooks fire only so), and carry out CUDA's
            autocast rules in the low dtype itself, so that the op that overflows is named.

    Yields:
        A function that reads the settings back, as they are at the moment of the call.

    """
    device = torch.device(conditions.device)
    with ExitStack() as stack:
        stack.enter_context(_random_state_kept())
        stack.enter_context(_threads(conditions.threads))
        stack.enter_context(_matmul(conditions, recorded, device))
        stack.enter_context(_cudnn(conditions))
        stack.enter_context(_deterministic(conditions))
        stack.enter_context(_attention(conditions.sdpa, device))
        stack.enter_context(redirected(redirection(conditions, recorded or conditions)))
        stack.enter_context(_autograd_and_autocast(conditions))
        if conditions.autocast == "cuda-policy" and device.type == "cpu":
            stack.enter_context(cuda_policy(Policy(native=traced)))
        # a step whose model is not compiled may still call a compiled function: leave it then
        switched_off = recorded is not None and recorded.compile != "off" == conditions.compile
        if traced or switched_off:
            stack.enter_context(_eager())
        yield lambda: read_back(device)


def read_back(device: torch.device) -> dict[str, Any]:
    """Read the settings that are in force now.

    Args:
        device: The device the replay runs on.

    Returns:
        One value per condition that is a process-wide setting, by the condition's name.
    """
    cudnn = torch.backends.cudnn
    return {
        "threads": torch.get_num_threads(),
        "matmul_precision": _precision(),
        "matmul_tf32": _matmul_tf32(),
        "cudnn": bool(cudnn.enabled),
        "cudnn_tf32": bool(cudnn.allow_tf32),
        "cudnn_benchmark": bool(cudnn.benchmark),
        "cudnn_deterministic": bool(cudnn.deterministic),
        "deterministic": _deterministic_mode(),
        "fill_uninitialized_memory": bool(_FILL.fill_uninitialized_memory),
        "sdpa": _attention_kernels(),
        "anomaly": torch.is_anomaly_enabled(),
        "autocast_cache": torch.is_autocast_cache_enabled(),
        "device": str(device),
    }


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Keep the caller's random numbers: a replay in a notebook must not move them."""
    import numpy as np

    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)


@contextmanager
def _threads(wanted: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        if wanted:
            torch.set_num_threads(int(wanted))
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _matmul(
    conditions: Conditions, recorded: Conditions | None, device: torch.device
) -> Iterator[None]:
    before = _precision()
    tf32 = _matmul_tf32()
    try:
        torch.set_float32_matmul_precision(conditions.matmul_precision)
        # Both are one switch inside torch, and setting it off after "medium" leaves a state that
        # torch refuses to read; on a CPU there is nothing for it to act on.
        changed = {} if recorded is None else recorded.changes(conditions)
        only_precision = "matmul_precision" in changed and "matmul_tf32" not in changed
        differs = conditions.matmul_tf32 != _matmul_tf32()
        if device.type == "cuda" and differs and not only_precision:
            torch.backends.cuda.matmul.allow_tf32 = bool(conditions.matmul_tf32)
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        if tf32 != _matmul_tf32():
            torch.backends.cuda.matmul.allow_tf32 = tf32


def _precision() -> str:
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:  # set per backend: torch has no single name for that
        return "highest"


def _matmul_tf32() -> bool:
    try:
        return bool(torch.backends.cuda.matmul.allow_tf32)
    except RuntimeError:
        return False


@contextmanager
def _cudnn(conditions: Conditions) -> Iterator[None]:
    names: Mapping[str, bool] = {
        "enabled": conditions.cudnn,
        "allow_tf32": conditions.cudnn_tf32,
        "benchmark": conditions.cudnn_benchmark,
        "deterministic": conditions.cudnn_deterministic,
    }
    cudnn = torch.backends.cudnn
    before = {name: getattr(cudnn, name) for name in names}
    try:
        for name, value in names.items():
            if bool(value) != before[name]:
                setattr(cudnn, name, bool(value))
        yield
    finally:
        for name, value in before.items():
            if getattr(cudnn, name) != value:
                setattr(cudnn, name, value)


@contextmanager
def _deterministic(conditions: Conditions) -> Iterator[None]:
    algorithms = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fill = _FILL.fill_uninitialized_memory
    try:
        wanted = conditions.deterministic
        torch.use_deterministic_algorithms(wanted != "off", warn_only=wanted == "warn")
        _FILL.fill_uninitialized_memory = bool(conditions.fill_uninitialized_memory)
        yield
    finally:
        torch.use_deterministic_algorithms(algorithms, warn_only=warn_only)
        _FILL.fill_uninitialized_memory = fill


def _deterministic_mode() -> str:
    if not torch.are_deterministic_algorithms_enabled():
        return "off"
    return "warn" if torch.is_deterministic_algorithms_warn_only_enabled() else "on"


def _attention_setters() -> dict[str, Callable[[bool], Any]]:
    cuda = torch.backends.cuda
    return {
        "math": cuda.enable_math_sdp,
        "flash": cuda.enable_flash_sdp,
        "efficient": cuda.enable_mem_efficient_sdp,
        "cudnn": cuda.enable_cudnn_sdp,
    }


def _attention_flags() -> dict[str, bool]:
    cuda = torch.backends.cuda
    return {
        "math": cuda.math_sdp_enabled(),
        "flash": cuda.flash_sdp_enabled(),
        "efficient": cuda.mem_efficient_sdp_enabled(),
        "cudnn": cuda.cudnn_sdp_enabled(),
    }


def _attention_kernels() -> str:
    on = [name for name, flag in _attention_flags().items() if flag]
    return "auto" if len(on) == len(SDPA) else "+".join(on)


def attention_available(kernel: str, device: torch.device) -> bool:
    """Whether a kernel of scaled dot product attention exists on a device."""
    return device.type == "cuda" or kernel in ("auto", "math", "flash")


@contextmanager
def _attention(wanted: str, device: torch.device) -> Iterator[None]:
    kernels = set(SDPA) if wanted == "auto" else {wanted}
    before = _attention_flags()
    setters = _attention_setters()
    try:
        if any(attention_available(kernel, device) for kernel in kernels):
            for name, switch in setters.items():
                switch(name in kernels)
        yield
    finally:
        for name, switch in setters.items():
            switch(before[name])


@contextmanager
def _autograd_and_autocast(conditions: Conditions) -> Iterator[None]:
    anomaly, check = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    cache = torch.is_autocast_cache_enabled()
    try:
        torch.set_anomaly_enabled(bool(conditions.anomaly), True)
        torch.set_autocast_cache_enabled(bool(conditions.autocast_cache))
        yield
    finally:
        torch.set_anomaly_enabled(anomaly, check)
        torch.set_autocast_cache_enabled(cache)


def runs_eagerly() -> bool:
    """Whether compiled code runs eagerly now."""
    # dynamo is heavy to import: unless something else loaded it, nothing is compiled
    module = sys.modules.get("torch._dynamo.eval_frame")
    return getattr(getattr(module, "_stance", None), "stance", "default") == "force_eager"


@contextmanager
def _eager() -> Iterator[None]:
    if "torch._dynamo.eval_frame" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
