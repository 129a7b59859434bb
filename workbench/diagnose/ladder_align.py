"""Whether the rungs of a ladder start from one state: inputs, mode, parameters, buffers, caches."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from workbench.numerics import dtype_name, tensor_digest
from workbench.replay.trace import batch_leaves
from workbench.step.names import join, named_buffers, named_parameters, walk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from workbench.replay.session import Session

_LOW = ("float16", "bfloat16")


@dataclass(frozen=True)
class Aligned:
    """What one run starts from, as digests by name.

    Attributes:
        inputs: Tensors of the batch.
        shapes: Their shapes.
        mode: Train or eval of each module.
        parameters: Parameters.
        buffers: Buffers, those outside of the state dict too.
        caches: Plain tensor attributes of modules.
    """

    inputs: dict[str, str]
    shapes: dict[str, list[int]]
    mode: dict[str, str]
    parameters: dict[str, str]
    buffers: dict[str, str]
    caches: dict[str, str]


KINDS = ("inputs", "mode", "parameters", "buffers", "caches")


def aligned_state(session: Session) -> Aligned:
    """Take digests of everything a freshly built session starts from."""
    model = session.runner.model
    batch = _batch(session.batches)
    return Aligned(
        inputs={name: tensor_digest(t) for name, t in batch},
        shapes={name: list(t.shape) for name, t in batch},
        mode={path: "train" if module.training else "eval" for path, module in walk(model)},
        parameters={name: tensor_digest(p) for name, p in named_parameters(model)},
        buffers={name: tensor_digest(b) for name, b in named_buffers(model)},
        caches={name: tensor_digest(t) for name, t in plain_tensors(model)},
    )


def _batch(batches: Sequence[Any]) -> list[tuple[str, Tensor]]:
    alone = len(batches) == 1
    return [
        (path, torch.as_tensor(value))
        for i, batch in enumerate(batches)
        for path, value in batch_leaves(batch, "batch" if alone else f"batch[{i}]")
    ]


def differences(a: Aligned, b: Aligned) -> list[dict[str, str]]:
    """List what two runs do not start with alike, as ``{"kind", "name"}``."""
    found = []
    for kind in KINDS:
        ours, theirs = getattr(a, kind), getattr(b, kind)
        found += [
            {"kind": kind, "name": name}
            for name in dict.fromkeys((*ours, *theirs))
            if ours.get(name) != theirs.get(name)
        ]
    return found


def changed_shapes(session: Session) -> list[dict[str, Any]]:
    """Batch tensors whose shape is not the recorded one: another trigger than the recorded."""
    recorded = {name: list(t.shape) for name, t in _batch(session.source.batches)}
    here = {name: list(t.shape) for name, t in _batch(session.batches)}
    return [
        {"name": name, "recorded": recorded.get(name), "here": here.get(name)}
        for name in dict.fromkeys((*recorded, *here))
        if recorded.get(name) != here.get(name)
    ]


def plain_tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Tensors that modules hold as plain attributes, neither parameter nor buffer."""
    return [
        (join(path, name), value)
        for path, module in walk(model)
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor)
    ]


def stale_caches(model: nn.Module) -> list[dict[str, str]]:
    """Find caches that did not follow a change of precision.

    ``module.half()`` casts parameters and buffers, not tensors that a module holds as plain
    attributes, and a cache that is registered later keeps the dtype it was made in.

    Returns:
        ``{"name", "kind", "dtype", "parameters"}`` for each cache that is wider or narrower than
        the floating parameters, where those are all of one low dtype or the cache is of one.
    """
    dtypes = Counter(
        dtype_name(p.dtype) for _, p in named_parameters(model) if p.is_floating_point()
    )
    if len(dtypes) != 1:
        return []
    (usual,) = dtypes
    persistent = set(model.state_dict(keep_vars=True))
    temporary = [(n, b) for n, b in named_buffers(model) if n not in persistent]
    found = []
    for kind, named in (
        ("plain attribute", plain_tensors(model)),
        ("non-persistent buffer", temporary),
    ):
        for name, tensor in named:
            own = dtype_name(tensor.dtype)
            if tensor.is_floating_point() and own != usual and (usual in _LOW or own in _LOW):
                found.append({"name": name, "kind": kind, "dtype": own, "parameters": usual})
    return found
