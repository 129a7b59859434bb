"""Norms over all gradients of a step, each from one pass and one host read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from workbench.step.names import named_parameters

if TYPE_CHECKING:
    from torch import Tensor, nn

_WIDE = frozenset({torch.float32, torch.float64})
_TENSOR = frozenset({torch.Tensor})
_NARROW = frozenset({torch.float16, torch.bfloat16})
_FEW, _SMALL = 64, 1 << 16
# Private: what torch.distributed puts gradients into one bucket with.
_IN_ONE_PIECE: Callable[[list[Tensor]], Tensor] = torch._C._nn.flatten_dense_tensors


def gradient_norm(gradients: list[Tensor]) -> float | None:
    """The 2-norm over gradients.

    Args:
        gradients: All of them.

    Returns:
        The norm; a finite one proves that every element is finite. None when it is not finite, or
        where some gradient is of a kind whose norm is not taken here.
    """
    dtypes = {g.dtype for g in gradients}
    if dtypes <= _WIDE and set(map(type, gradients)) == _TENSOR:
        try:
            with torch.no_grad():
                if len(dtypes) == 1 and _are_small(gradients):
                    piece = _IN_ONE_PIECE(gradients)
                    square = torch.dot(piece, piece).item()
                    return math.sqrt(square) if math.isfinite(square) else None
                norms = torch.stack(torch._foreach_norm(gradients))
        except (RuntimeError, NotImplementedError):  # several devices or layouts
            pass
        else:
            total = math.hypot(*norms.tolist())
            return total if math.isfinite(total) else None
    return _norm_of_groups(gradients)


def _are_small(tensors: list[Tensor]) -> bool:
    """Whether putting tensors into one piece costs less than looking at each."""
    return 1 < len(tensors) <= _FEW and sum([t.numel() for t in tensors]) <= _SMALL


def _norm_of_groups(gradients: Sequence[Tensor]) -> float | None:
    """The norm of gradients of several dtypes, devices or layouts; None where it is not taken."""
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for grad in gradients:
        if type(grad) is not torch.Tensor or grad.layout is not torch.strided:
            return None
        if not grad.is_floating_point():
            return None
        groups.setdefault((grad.device, grad.dtype), []).append(grad)
    squares = 0.0
    with torch.no_grad():
        for members in groups.values():
            filled = [member for member in members if member.numel()]
            if not filled:
                continue
            # float16 norms overflow long before their elements do
            wide = torch.float32 if filled[0].dtype in _NARROW else None
            norms = torch.stack(torch._foreach_norm(filled, 2, wide))
            squares += float(torch.linalg.vector_norm(norms, dtype=torch.float64)) ** 2
    return math.sqrt(squares) if math.isfinite(squares) else None


def largest_gradient(model: nn.Module) -> Tensor | None:
    """The largest magnitude among all gradients, left on its device: nothing waits for it.

    It is non-finite exactly when some gradient is, and does not overflow as a norm does.

    Returns:
        A scalar tensor, or None without gradients or with kinds (sparse, distributed, several
        devices) that are not looked at here.
    """
    found = [p.grad for _, p in named_parameters(model) if p.grad is not None and p.grad.numel()]
    if not found or any(
        type(g) is not torch.Tensor or g.layout is not torch.strided for g in found
    ):
        return None
    if len({grad.device for grad in found}) > 1:
        return None
    with torch.no_grad():
        largest = torch._foreach_norm(found, math.inf)
        return torch.stack([one.float() for one in largest]).max()
