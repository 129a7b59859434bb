"""The finiteness scan of a checkpoint: every float of it, in pieces of bounded size."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from workbench.checkpoints.layout import Checkpoint
from workbench.checkpoints.stored import StoredNumber, StoredTensor
from workbench.errors import CheckpointError
from workbench.evidence.safetensors_file import read_into
from workbench.evidence.wording import count_words, counted
from workbench.numerics.counts import Counts, all_finite, count

PIECE: Final = 32 * 2**20
"""Bytes in memory at one time."""
MOST_FINDINGS: Final = 200
_SECOND_MOMENTS: Final = frozenset({"exp_avg_sq", "max_exp_avg_sq", "square_avg", "acc_delta"})
_OF_OPTIMIZERS: Final = frozenset(
    {"exp_avg", "momentum_buffer", "step", "sum", "max_exp_avg", *_SECOND_MOMENTS}
)


@dataclass(frozen=True)
class BadEntry:
    """One entry of a checkpoint that must not be trained on.

    Attributes:
        name: Path within the checkpoint.
        why: ``nonfinite`` or ``negative_second_moment``.
        counts: NaN, +Inf, −Inf and finite elements.
    """

    name: str
    why: str
    counts: dict[str, int]

    @property
    def sentence(self) -> str:
        """One sentence for the terminal."""
        if self.why == "negative_second_moment":
            return f"{self.name} is a second moment with values below zero"
        return f"{self.name} has {count_words(self.counts)}"


@dataclass
class ScanResult:
    """What a scan saw.

    Attributes:
        tensors: Float tensors read.
        elements: Their elements.
        bytes: Bytes read.
        bad: Entries that must not be trained on, the first of them.
        bad_total: How many there are.
        constants: Names of tensors whose only non-finite elements are −Inf outside of optimizer
            state: taken for intended masks, and told.
        error: Why the scan did not come to its end, or None.
    """

    tensors: int = 0
    elements: int = 0
    bytes: int = 0
    bad: list[BadEntry] = field(default_factory=list)
    bad_total: int = 0
    constants: list[str] = field(default_factory=list)
    error: str | None = None

    @property
    def finite(self) -> bool:
        """Whether all of it was read, and all of it was good."""
        return self.error is None and self.bad_total == 0 and self.tensors > 0

    @property
    def sentence(self) -> str:
        """What was seen, in one sentence."""
        if self.error is not None:
            return self.error
        if self.tensors == 0:
            return "No float tensor was found in it, so nothing is known of it."
        if not self.bad_total:
            elements = counted(self.elements, "element")
            told = f"All finite: {elements} of {counted(self.tensors, 'float tensor')}"
            masks = f"; only −Inf, taken for masks: {', '.join(self.constants[:3])}"
            return told + (masks if self.constants else "") + "."
        return f"{counted(self.bad_total, 'bad entry', 'bad entries')}: {self.bad[0].sentence}."

    def as_dict(self) -> dict[str, Any]:
        """All of it, for the states file."""
        return {
            "finite": self.finite,
            "tensors": self.tensors,
            "elements": self.elements,
            "bytes": self.bytes,
            "bad_total": self.bad_total,
            "bad": [{"name": b.name, "why": b.why, "counts": b.counts} for b in self.bad[:20]],
            "constants": self.constants[:20],
            "error": self.error,
        }


def scan(checkpoint: Checkpoint, progress: Callable[[int], None] | None = None) -> ScanResult:
    """Look at every float of a checkpoint.

    Args:
        checkpoint: The checkpoint.
        progress: Told the bytes of every piece that was read.

    Returns:
        What was seen; a damaged or unreadable checkpoint gives a result with ``error``.
    """
    result = ScanResult()
    seen: set[tuple[str, int, int, str]] = set()
    buffer = torch.empty(PIECE, dtype=torch.uint8)
    try:
        for stored in checkpoint.tensors():
            if isinstance(stored, StoredNumber):
                _look_at_number(result, stored)
                continue
            if _is_score(stored):
                continue
            place = (str(stored.file), stored.start, stored.size, str(stored.dtype))
            if place in seen or not (stored.dtype.is_floating_point or stored.dtype.is_complex):
                continue  # tied weights are stored once
            seen.add(place)
            _look_at(result, stored, buffer, progress)
    except (CheckpointError, OSError) as error:
        result.error = str(error)
    return result


def _is_score(stored: StoredTensor) -> bool:
    """Whether it is a single number of a Lightning callback: a best score begins as an infinity."""
    return stored.name.startswith("callbacks.") and stored.size == stored.dtype.itemsize


def _look_at_number(result: ScanResult, stored: StoredNumber) -> None:
    """A learning rate or the like; elsewhere a Python infinity may be meant (a best score)."""
    if "param_groups" in stored.name.split(".") and not math.isfinite(stored.value):
        counts = {"nan": 0, "pos_inf": 0, "neg_inf": 0, "finite": 0}
        kind = "nan" if math.isnan(stored.value) else "pos_inf" if stored.value > 0 else "neg_inf"
        _bad(result, BadEntry(stored.name, "nonfinite", counts | {kind: 1}))


def _look_at(
    result: ScanResult,
    stored: StoredTensor,
    buffer: Tensor,
    progress: Callable[[int], None] | None,
) -> None:
    total = Counts(0, 0, 0, 0)
    negative = False
    last = stored.name.rsplit(".", 1)[-1].rsplit("/", 1)[-1]
    with stored.file.open("rb", buffering=0) as file:
        file.seek(stored.start)
        left = stored.size
        while left:
            size = min(left, PIECE)
            piece = buffer[:size]
            if read_into(file, piece.numpy().data) != size:
                raise CheckpointError(
                    f"The checkpoint file {str(stored.file)!r} ends within the tensor "
                    f"{stored.name[:200]!r}, so it was cut off. Get a fresh copy."
                )
            values = piece.view(stored.dtype)
            if all_finite([values]):
                total = _add(total, Counts(0, 0, 0, values.numel()))
            else:
                total = _add(total, count(values))
            negative = negative or (last in _SECOND_MOMENTS and bool((values < 0).any()))
            left -= size
            if progress is not None:
                progress(size)
    result.tensors += 1
    result.elements += total.total
    result.bytes += stored.size
    if total.nonfinite and not _is_mask(total, stored.name):
        _bad(result, BadEntry(stored.name, "nonfinite", total.as_dict()))
    elif total.nonfinite:
        result.constants.append(stored.name)
    if negative:
        _bad(result, BadEntry(stored.name, "negative_second_moment", total.as_dict()))


def _is_mask(counts: Counts, name: str) -> bool:
    # a leaf of only −Inf among its bad elements is a constant; optimizer state never is
    parts = frozenset(name.replace("/", ".").split("."))
    of_optimizer = bool(parts & _OF_OPTIMIZERS)
    return counts.neg_inf == counts.nonfinite and not of_optimizer


def _bad(result: ScanResult, entry: BadEntry) -> None:
    result.bad_total += 1
    if len(result.bad) < MOST_FINDINGS:
        result.bad.append(entry)


def _add(a: Counts, b: Counts) -> Counts:
    return Counts(a.nan + b.nan, a.pos_inf + b.pos_inf, a.neg_inf + b.neg_inf, a.finite + b.finite)
