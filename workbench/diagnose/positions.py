"""Which samples, channels, heads, classes or vocabulary entries hold the bad values of an origin.

An axis is named only where something shows what it is: the op's own definition (a convolution's
second axis is its channels) or the batch it comes from. An axis that nothing names is left without
a name; equal sizes alone are no evidence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from workbench.evidence.wording import joined, number

if TYPE_CHECKING:
    from workbench.diagnose.case import Case
    from workbench.replay.trace import Trace
    from workbench.replay.trace_events import Event, Read, Write

MOST_INDICES = 16
_SEARCHED = 4000
_ATTENTION = "_scaled_dot_product"
_CHANNELS = frozenset(
    "convolution native_batch_norm _native_batch_norm_legit cudnn_batch_norm native_group_norm "
    "convolution_backward max_pool2d_with_indices avg_pool2d upsample_nearest2d".split()
)
_CLASSES = frozenset(("nll_loss_forward", "nll_loss2d_forward"))
_BATCH = "poisoned_batch"


def positions(case: Case) -> dict[str, Any]:
    """Describe where in the origin's tensor the bad values are.

    Args:
        case: The origin, with the event's real outputs where the second pass kept them.

    Returns:
        ``count``, ``first``, ``samples`` (empty where the first axis is not shown to be the
        samples), ``axes`` (rows of ``axis, name, indices, of``) and a ``sentence``, empty where no
        axis is named.
    """
    event = case.event
    write = _bad_write(event)
    if event is None or write is None:
        return {"count": 0, "first": None, "samples": [], "axes": [], "sentence": ""}
    axes = [
        {"axis": axis, "name": name, "indices": found, "of": of}
        for axis, name, found, of in _named(case, event, write)
    ]
    samples = next((row["indices"] for row in axes if row["name"] == "sample"), [])
    return {
        "count": sum(write.counts),
        "first": list(write.first) if write.first is not None else None,
        "samples": samples,
        "axes": axes,
        "sentence": "; ".join(_words(row) for row in axes),
    }


def _bad_write(event: Event | None) -> Write | None:
    if event is None or not event.writes:
        return None
    return next((w for w in event.writes if w.bad), event.writes[0])


def _words(row: dict[str, Any]) -> str:
    name, found = str(row["name"]), row["indices"]
    plural = {"class": "classes", "vocabulary entry": "vocabulary entries"}.get(name, f"{name}s")
    if len(found) == row["of"] and row["of"] > 1:
        return f"all {number(row['of'])} {plural}"
    word = name if len(found) == 1 else plural
    said = [number(i) for i in found]
    if len(found) >= MOST_INDICES:
        return (
            f"at least {number(len(found))} of {number(row['of'])} {plural} "
            f"({', '.join(said[:5])}, …)"
        )
    return f"{word} {joined(said, 5)} of {number(row['of'])}"


def _named(case: Case, event: Event, write: Write) -> Iterator[tuple[int, str, list[int], int]]:
    """Axes with a name: axis, name, indices with bad values, length."""
    mask = _mask(case, write)
    shape = write.shape
    for axis, name, per in _axes(case, event, shape):
        if mask is not None:
            others = [i for i in range(mask.dim()) if i != axis]
            along = mask.any(dim=others) if others else mask
            found = [int(i) for i in along.nonzero().reshape(-1)]
        elif axis == 0:
            found = list(write.samples)
        else:
            continue
        length = shape[axis] // per
        rows = list(dict.fromkeys(index // per for index in found))
        if rows:
            yield axis, name, rows[:MOST_INDICES], length


def _mask(case: Case, write: Write) -> torch.Tensor | None:
    """Which elements are non-finite, where the output was kept."""
    kept = case.kept.get(case.origin.event)
    for output in kept.outputs if kept is not None else ():
        if tuple(output.shape) == write.shape and output.layout == torch.strided:
            bad = ~torch.isfinite(output)
            if bool(bad.any()):
                return bad
    return None


def _axes(case: Case, event: Event, shape: tuple[int, ...]) -> Iterator[tuple[int, str, int]]:
    """Axis, name, and how many indices make one of its things (rows of a flattened sequence)."""
    trace = case.trace
    if event.base == "embedding_dense_backward" and len(shape) == 2:
        yield 0, "vocabulary entry", 1
        return
    per = _rows_per_sample(trace, event, shape)
    if per is not None:
        yield 0, "sample", per
    if event.base.startswith(_ATTENTION) and len(shape) == 4:
        yield 1, "head", 1
    elif event.base in _CHANNELS and len(shape) >= 3:
        yield 1, "channel", 1
    elif event.node is None and len(shape) == 2 and _read_by(trace, event, _CLASSES):
        yield 1, "class", 1


def _read_by(trace: Trace, event: Event, ops: frozenset[str]) -> bool:
    """Whether one of these ops reads what the event wrote."""
    following = trace.graph[event.index + 1 : event.index + 64]
    return any(
        e.base in ops and any(event.index in r.producers for r in e.reads) for e in following
    )


def _rows_per_sample(trace: Trace, event: Event, shape: tuple[int, ...]) -> int | None:
    """How many rows of the first axis belong to one sample; None where it is no axis of samples.

    The tensor must come from the batch, and its first axis must be as long as the batch, or as
    the batch times its second axis (a flattened sequence, which views keep in order). A gradient
    is laid out as the forward tensor it belongs to.
    """
    forward = event if event.node is None else _differentiated(trace, event, shape)
    if not shape or forward is None or forward.where not in ("module", "loss"):
        return None
    batches = _batch_shapes(trace, forward)
    sizes = {found[0] for found in batches if found}
    if len(sizes) != 1:
        return None
    (size,) = sizes
    if size <= 1:
        return None
    if shape[0] == size:
        return 1
    lengths = {found[1] for found in batches if len(found) > 1}
    return next((n for n in lengths if n > 1 and shape[0] == size * n), None)


def _differentiated(trace: Trace, event: Event, shape: tuple[int, ...]) -> Event | None:
    """The forward event whose output or input a gradient of this shape belongs to.

    None where that is not plain: the gradient of a parameter may have the same shape by chance.
    """
    if event.forward_event is None:
        return None
    forward = trace.graph[event.forward_event]
    alike = [read for read in forward.reads if read.shape == shape]
    if any(not _from_batch(trace, read) for read in alike):
        return None
    if alike or any(write.shape == shape for write in forward.writes):
        return forward
    return None


def _from_batch(trace: Trace, read: Read) -> bool:
    """Whether something of the batch went into what an event read."""
    if read.leaf is not None and read.leaf[0] == _BATCH:
        return True
    return any(_batch_shapes(trace, trace.graph[producer]) for producer in read.producers)


def _batch_shapes(trace: Trace, event: Event) -> set[tuple[int, ...]]:
    """Shapes of the batch's tensors among what an event was computed from."""
    found: set[tuple[int, ...]] = set()
    seen, waiting = {event.index}, [event]
    while waiting and len(seen) < _SEARCHED:
        current = waiting.pop()
        for read in current.reads:
            if read.leaf is not None and read.leaf[0] == _BATCH:
                found.add(read.shape)
            for producer in read.producers:
                if producer not in seen:
                    seen.add(producer)
                    waiting.append(trace.graph[producer])
    return found
