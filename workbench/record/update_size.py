"""How large an update was, over the parameters it changed; seen on a sample of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.optim import Optimizer

ELEMENTS = 256
"""Elements sampled of one parameter."""
LARGEST = 8
"""How many of the largest parameters are sampled."""


class Sample:
    """Elements of the largest parameters from before an update.

    Args:
        optimizers: The optimizers that will update them.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        plain = [
            p
            for optimizer in optimizers
            for group in optimizer.param_groups
            for p in group["params"]
            if p.grad is not None and type(p.detach()) is Tensor and p.is_floating_point()
        ]
        self._parameters = sorted(plain, key=lambda p: -p.numel())[:LARGEST]
        self._before = self._take()

    def change(self) -> Tensor | None:
        """2-norm of the sampled change over the 2-norm of what was there; None of nothing."""
        if not self._before:
            return None
        after = self._take()
        changed = torch.stack([(a - b).norm() for a, b in zip(after, self._before, strict=True)])
        size = torch.stack([b.norm() for b in self._before])
        ratio: Tensor = changed.norm() / size.norm().clamp_min(torch.finfo(torch.float32).tiny)
        return ratio

    def _take(self) -> list[Tensor]:
        with torch.no_grad():
            flat = [p.detach().reshape(-1) for p in self._parameters]
            picked = [f[:: max(1, f.numel() // ELEMENTS)][:ELEMENTS] for f in flat]
            return [part.to("cpu", torch.float32, copy=True) for part in picked]
