"""The all-finite test of the same tensors again and again, prepared once.

Grouping tensors by device and dtype costs more than looking at the values of small ones. So the
grouping is kept, and done again only when other tensors are handed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_

import torch
from torch import Tensor

from workbench.numerics.counts import all_finite
from workbench.numerics.dense import NATIVE, PLAIN, can_be_nonfinite


class FiniteTest:
    """Tells whether every element of some tensors is finite.

    It writes every value back unchanged, as ``all_finite`` with ``in_place`` does: only for tensors
    of which no copy-on-write snapshot is held.
    """

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []
        self._looked_at: list[Tensor] = []
        self._flag: Tensor | None = None
        self._one: Tensor | None = None

    def __call__(self, tensors: Sequence[Tensor]) -> bool:
        """Whether all are finite; exact.

        Args:
            tensors: Any tensors; the same objects as the last time are looked at fastest.
        """
        if len(tensors) != len(self._tensors) or not all(map(is_, tensors, self._tensors)):
            self._prepare(tensors)
        if self._flag is None or self._one is None:
            return all_finite(tensors, in_place=True)
        try:
            with torch.no_grad():
                torch._amp_foreach_non_finite_check_and_unscale_(
                    self._looked_at, self._flag, self._one
                )
        except (RuntimeError, NotImplementedError):  # their values were exchanged for others
            self._flag = None
            return all_finite(tensors, in_place=True)
        finite = self._flag.item() == 0.0
        if not finite:
            self._flag = torch.zeros_like(self._flag)
        return finite

    def _prepare(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = list(tensors)
        self._looked_at = looked_at = [t for t in tensors if can_be_nonfinite(t.dtype)]
        self._flag = self._one = None
        devices = {t.device for t in looked_at}
        alike = all(
            type(t) in PLAIN and t.dtype in NATIVE and t.layout is torch.strided for t in looked_at
        )
        if alike and len(devices) == 1 and (device := devices.pop()).type != "meta":
            self._flag = torch.zeros((), dtype=torch.float32, device=device)
            self._one = torch.ones((), dtype=torch.float32, device=device)
