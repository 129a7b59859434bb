"""What ranks tell each other of a step that tripped or is captured: one more collective, then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from workbench.errors import StrictJsonError
from workbench.numerics import jsonio

BYTES: Final = 2048
"""Room of one rank; the longest texts are cut to fit."""


def pack_details(content: Mapping[str, Any], device: torch.device) -> Tensor:
    """Write one rank's details into a tensor of ``BYTES`` bytes."""
    text = b""
    for longest in (300, 80, 0):
        text = jsonio.dumps(_cut(content, longest)).encode()
        if len(text) <= BYTES:
            break
    else:
        text = b"{}"
    return torch.tensor(list(text.ljust(BYTES)), dtype=torch.uint8, device=device)


def unpack_details(rows: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Read the details of all ranks, by rank; {} where a rank's cannot be read."""
    found: list[dict[str, Any]] = []
    for row in rows:
        try:
            content = jsonio.loads(bytes(row.tolist()).decode().rstrip())
        except (StrictJsonError, UnicodeDecodeError):
            content = {}
        found.append(dict(content) if isinstance(content, Mapping) else {})
    return found


def _cut(value: Any, longest: int) -> Any:
    if isinstance(value, str):
        return value[:longest]
    if isinstance(value, Mapping):
        return {key: _cut(one, longest) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_cut(one, longest) for one in value[: max(4, longest // 20)]]
    return value
