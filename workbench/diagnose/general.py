"""Changes that fit any cause: samples left out, autocast, another kernel, the step in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from workbench.diagnose.case import LOW_PRECISION
from workbench.diagnose.interventions import Intervention
from workbench.replay.trace import batch_leaves

if TYPE_CHECKING:
    from workbench.diagnose.case import Case
    from workbench.replay import Replay

_ATTENTION = "scaled_dot_product"


def general_interventions(replay: Replay, case: Case) -> Iterator[Intervention]:
    """List changes that narrow a failure down whatever its cause, most specific first.

    Args:
        replay: The replay, for its conditions and its batch.
        case: The origin.
    """
    yield from without_samples(replay, case)
    original = replay.nearest
    event = case.event
    low = case.dtype in LOW_PRECISION
    if event is not None and _ATTENTION in event.op and original.sdpa != "math":
        yield Intervention("the math kernel of attention", conditions={"sdpa": "math"})
    if original.compile != "off":
        yield Intervention("the model not compiled", conditions={"compile": "off"})
    if low and original.autocast not in ("off", "bfloat16"):
        yield Intervention("the step in bfloat16", conditions={"autocast": "bfloat16"})
    if low and original.autocast != "off":
        yield Intervention("the step without autocast", conditions={"autocast": "off"})
    if case.range in ("overflow", "underflow") and not low:
        yield Intervention("the step in float64", conditions={"dtype": "float64"})


def without_samples(replay: Replay, case: Case) -> Iterator[Intervention]:
    """The samples that hold the bad values left out; the placebo leaves out another one."""
    event = case.event
    write = next((w for w in event.writes if w.bad), None) if event is not None else None
    size = batch_size(replay)
    if write is None or not write.shape or write.shape[0] != size:
        return
    bad = set(write.samples)
    good = [i for i in range(size) if i not in bad]
    if not bad or len(good) < 2:
        return
    names = ", ".join(str(i) for i in sorted(bad)[:5]) + (", …" if len(bad) > 5 else "")
    others = tuple(i for i in range(size) if i != good[0])
    yield Intervention(
        f"sample {names} left out",
        conditions={"keep_samples": tuple(good)},
        placebo=Intervention(f"sample {good[0]} left out", conditions={"keep_samples": others}),
    )


def batch_size(replay: Replay) -> int:
    """The common length of the batch's tensors; 0 where there is none."""
    sizes = {
        int(value.shape[0])
        for batch in replay.source.batches
        for _, value in batch_leaves(batch)
        if isinstance(value, torch.Tensor) and value.dim() > 0
    }
    return sizes.pop() if len(sizes) == 1 else 0
