"""An op's arguments and results, taken apart: named tensors, list elements, clones, positions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import Tensor

from workbench.numerics.dense import nested_values
from workbench.replay.trace_plan import OpPlan

Named = tuple[str, Tensor]
MAX_SAMPLES = 64
_MASK_SCAN_LIMIT = 64_000_000
"""Elements above which positions of non-finite values are not listed."""


def arguments(plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    """Pair every argument with its name in the schema."""
    named = list(zip(plan.arguments, args, strict=False))
    if len(args) > len(plan.arguments):
        named += [(f"arg{i}", args[i]) for i in range(len(plan.arguments), len(args))]
    if kwargs:
        named += kwargs.items()
    return named


def list_elements(plan: OpPlan, given: list[tuple[str, Any]]) -> list[list[tuple[str, Any]]]:
    """Split a list op's arguments into one set per list element."""
    if not plan.elementwise_lists:
        return [given]
    lengths = [len(v) for _, v in given if isinstance(v, list | tuple) and v and _is_tensor(v[0])]
    if not lengths:
        return [given]
    count = lengths[0]
    parts = []
    for number in range(count):
        part = []
        for name, value in given:
            if isinstance(value, list | tuple) and len(value) == count:
                part.append((name, value[number]))
            elif isinstance(value, list | tuple) and not value:
                continue
            else:
                part.append((name, value))
        parts.append(part)
    return parts


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def tensors_in(name: str, value: Any) -> Iterable[Named]:
    """List the tensors in one argument or result, with a label each."""
    if isinstance(value, torch.Tensor):
        return [(name, nested_values(value) if value.is_nested else value)]
    if isinstance(value, list | tuple):
        return [
            pair
            for number, item in enumerate(value)
            for pair in tensors_in(f"{name}[{number}]", item)
        ]
    return []


def cloned(value: Any) -> Any:
    """Copy the tensors of an argument; everything else is returned as it is."""
    if isinstance(value, torch.Tensor):
        return (
            torch.empty_like(value).copy_(value) if value.is_quantized else value.detach().clone()
        )
    if isinstance(value, list | tuple):
        return type(value)(cloned(item) for item in value)
    return value


class _DtypeNames(dict[torch.dtype, str]):
    """Names of dtypes without ``torch.``, each made once."""

    def __missing__(self, dtype: torch.dtype) -> str:
        name = self[dtype] = str(dtype).removeprefix("torch.")
        return name


DTYPE_NAMES: Final = _DtypeNames()


def dtype_text(tensor: Tensor) -> str:
    """A tensor's dtype without ``torch.``."""
    return DTYPE_NAMES[tensor.dtype]


def as_float(value: float) -> float:
    """A Python number as a float; one too large for it as an infinity."""
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def bad_positions(tensor: Tensor) -> tuple[tuple[int, ...] | None, tuple[int, ...]]:
    """First non-finite index, and which indices of the first dimension hold any."""
    if tensor.layout != torch.strided or tensor.numel() > _MASK_SCAN_LIMIT:
        return None, ()
    bad = ~torch.isfinite(tensor.detach())
    if tensor.dim() == 0:
        return (), ()
    flat = int(bad.reshape(-1).to(torch.uint8).argmax())
    index = []
    for length in reversed(tensor.shape):
        index.append(flat % length)
        flat //= length
    rows = bad.reshape(tensor.shape[0], -1).any(dim=1).nonzero().reshape(-1)
    return tuple(reversed(index)), tuple(int(i) for i in rows[:MAX_SAMPLES])
