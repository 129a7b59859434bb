"""Which tensors a file of packed tensors stands for: names only, without torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

PACK_KEY: Final = "workbench.pack"
"""Where a safetensors file keeps what packing needs beyond values."""


def logical_names(stored: Iterable[str], specs: Mapping[str, Any]) -> list[str]:
    """Names of the tensors a file stands for, given what it stores."""
    inner = {part for spec in specs.values() for part in _parts(spec)}
    plain = [name for name in stored if name not in inner or name in specs]
    return list(dict.fromkeys([*plain, *specs]))


def _parts(spec: Any) -> list[str]:
    if not isinstance(spec, dict):
        return []
    parts = spec.get("parts")
    names = list(parts.values()) if isinstance(parts, dict) else []
    if spec.get("hidden") is True:
        names.append(spec.get("storage"))
    return [name for name in names if isinstance(name, str)]
