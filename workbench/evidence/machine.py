"""The environment a step ran in, and how two of them differ.

Thread counts and the CPU's vector capability are here because both change the bits of gradients.
No environment variable is recorded, and the host's name only as a digest.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import socket
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import torch

_PACKAGES: Final = ("nonfinite-workbench", "torch", "numpy", "safetensors", "msgspec", "triton")
# Not a difference in how numbers come out.
_NOT_COMPARED: Final = frozenset({"host"})
_CPU_INFO: Final = Path("/proc/cpuinfo")
# The module's class gives it properties that type checkers do not see.
_DETERMINISTIC: Final[Any] = torch.utils.deterministic
_NVIDIA: Final = Path("/proc/driver/nvidia/version")


def environment(*, query_devices: bool = False) -> dict[str, Any]:
    """What this process computes with.

    Args:
        query_devices: Ask for accelerators even if CUDA was not used yet, which initialises it.

    Returns:
        Plain values: ``python``, ``platform``, ``packages``, ``cpu``, ``threads``, ``devices``,
        ``cuda``, ``flags``, ``host``.
    """
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "kernel": platform.release(),
        "packages": _versions(),
        "cpu": {
            "model": _cpu_model(),
            "count": os.cpu_count(),
            "capability": torch.backends.cpu.get_cpu_capability(),
        },
        "threads": {
            "intra_op": torch.get_num_threads(),
            "inter_op": torch.get_num_interop_threads(),
        },
        "devices": _devices(query_devices),
        "cuda": {
            "runtime": torch.version.cuda,
            "hip": torch.version.hip,
            "driver": _driver(),
            "cudnn": torch.backends.cudnn.version()
            if torch.backends.cudnn.is_available()
            else None,
        },
        "flags": flags(),
        "host": hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12],
    }


def flags() -> dict[str, Any]:
    """The process-wide switches that change numbers."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    return {
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fill_uninitialized_memory": _DETERMINISTIC.fill_uninitialized_memory,
        "anomaly": torch.is_anomaly_enabled(),
        "flush_denormal": _flushes_denormals(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "matmul_tf32": cuda.matmul.allow_tf32,
        "fp16_reduced_precision_reduction": cuda.matmul.allow_fp16_reduced_precision_reduction,
        "bf16_reduced_precision_reduction": cuda.matmul.allow_bf16_reduced_precision_reduction,
        "cudnn": cudnn.enabled,
        "cudnn_tf32": cudnn.allow_tf32,
        "cudnn_benchmark": cudnn.benchmark,
        "cudnn_deterministic": cudnn.deterministic,
        "mkldnn": torch.backends.mkldnn.enabled,
        "sdpa_flash": cuda.flash_sdp_enabled(),
        "sdpa_efficient": cuda.mem_efficient_sdp_enabled(),
        "sdpa_math": cuda.math_sdp_enabled(),
        "sdpa_cudnn": cuda.cudnn_sdp_enabled(),
    }


def environment_differences(
    recorded: Mapping[str, Any], here: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Fields that differ, as ``{"field", "recorded", "here"}``, in alphabetical order.

    A field that only one side has is compared with None.
    """
    left, right = _flat(recorded), _flat(here)
    return [
        {"field": field, "recorded": left.get(field), "here": right.get(field)}
        for field in sorted(left.keys() | right.keys())
        if left.get(field) != right.get(field) and field.split(".")[0] not in _NOT_COMPARED
    ]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{name}.")
        elif isinstance(value, list) and value and all(isinstance(v, Mapping) for v in value):
            for i, item in enumerate(value):
                flat |= _flat(item, f"{name}.{i}.")
        elif value != []:
            flat[name] = value
    return flat


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found | {"torch": torch.__version__}


def _cpu_model() -> str:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", _CPU_INFO.read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match[1].strip() if match else platform.processor() or platform.machine()


def _driver() -> str | None:
    try:
        match = re.search(r"\b([0-9]{3}\.[0-9]+(\.[0-9]+)?)\b", _NVIDIA.read_text())
    except OSError:
        return None
    return match[1] if match else None


def _devices(query: bool) -> list[dict[str, Any]]:
    # Asking about a device makes a CUDA context, which a CPU run must not pay for.
    if not (torch.cuda.is_initialized() or (query and torch.cuda.is_available())):
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append(
            {
                "name": properties.name,
                "capability": f"{properties.major}.{properties.minor}",
                "memory_bytes": properties.total_memory,
                "processors": properties.multi_processor_count,
            }
        )
    return found


def _flushes_denormals() -> bool:
    return float(torch.tensor([1e-39]).mul(1.0)) == 0.0
