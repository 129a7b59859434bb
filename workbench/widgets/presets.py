"""Named sets of conditions, and the groups that all conditions are shown in."""

from __future__ import annotations

from typing import Final

from workbench.widgets.state import Facts

PRESETS: Final[dict[str, dict[str, str]]] = {
    "original": {},
    "float32": {"autocast": "off", "dtype": "float32"},
    "bfloat16": {"autocast": "bfloat16"},
    "float64": {"autocast": "off", "dtype": "float64"},
    "deterministic": {
        "deterministic": "on",
        "cudnn_benchmark": "off",
        "cudnn_deterministic": "on",
    },
    "no cuDNN": {"cudnn": "off"},
    "math attention": {"sdpa": "math"},
}

GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "Precision": (
        "dtype",
        "autocast_cache",
        "float32_modules",
        "matmul_precision",
        "cudnn_tf32",
    ),
    "Kernels": (
        "sdpa",
        "cudnn_benchmark",
        "cudnn_deterministic",
        "fill_uninitialized_memory",
        "compile",
        "compile_dynamic",
        "threads",
    ),
    "Gradients and update": ("scale", "max_grad_norm", "clip_before_unscale", "optimizer"),
    "What runs": ("mode", "rng", "keep_samples", "anomaly"),
}


def why_no_preset(facts: Facts, settings: dict[str, str]) -> str:
    """Why a preset changes nothing here; empty where it does, and for the original conditions."""
    why = ""
    for key, value in settings.items():
        switch = facts.switch(key)
        if switch is None or value == switch.recorded:
            continue
        if not switch.why_not:
            return ""
        why = why or switch.why_not
    return why or ("It is what was recorded." if settings else "")
