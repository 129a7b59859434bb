"""Where a model is cut for a search: its blocks, their parts, and what a tensor holds there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torch import nn

from workbench.replay.trace_focus import tensors_in
from workbench.replay.trace_quiet import quiet
from workbench.replay.trace_storage import exact_counts
from workbench.step.names import inner_model, join

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from torch import Tensor

Named = tuple[str, nn.Module]
Kinds = frozenset[str]
"""The classes of non-finite values present, of ``nan``, ``+inf`` and ``-inf``."""

NOTHING: Final[Kinds] = frozenset()
INTENDED: Final[Kinds] = frozenset({"-inf"})
"""What a boundary alone cannot tell from a mask that was meant."""

_CONTAINERS: Final = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
_NORMS: Final = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)
_WORDS: Final[dict[str, tuple[str, ...]]] = {
    "attention": ("attention", "attn"),
    "normalisation": ("norm",),
    "MLP": ("mlp", "feedforward", "feed_forward", "ffn"),
    "embedding": ("embed",),
}


def blocks(model: nn.Module) -> list[Named]:
    """Cut a model into blocks that together cover it, in order of definition.

    Containers are opened, and so is a module that holds more than half of all modules: the blocks
    of ``model.transformer.h`` are found as well as those of a plain ``Sequential``.

    Returns:
        Paths as ``named_modules()`` gives them on the inner model, none inside another.
    """
    inner = inner_model(model)
    half = sum(1 for _ in inner.modules()) / 2
    found: list[Named] = []
    waiting = _children("", inner)
    while waiting:
        path, module = waiting.pop(0)
        below = _children(path, module)
        many = len(below) > 1 and sum(1 for _ in module.modules()) > half
        if below and (isinstance(module, _CONTAINERS) or many):
            waiting = below + waiting
        elif not isinstance(module, nn.ModuleList | nn.ModuleDict):
            found.append((path, module))
    return found


def parts_of(path: str, block: nn.Module) -> list[Named]:
    """Cut a block into its parts; a leaf has none."""
    found: list[Named] = []
    for name, child in _children(path, block):
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            found += parts_of(name, child)
        else:
            found.append((name, child))
    return found


def _children(path: str, module: nn.Module) -> list[Named]:
    children = module.named_children()
    return [(join(path, name), inner_model(child)) for name, child in children]


def kind_of(module: nn.Module) -> str:
    """Say what a part is: attention, normalisation, MLP, embedding, or its class's own name."""
    if isinstance(module, nn.MultiheadAttention):
        return "attention"
    if isinstance(module, _NORMS):
        return "normalisation"
    name = type(module).__name__.lower()
    for kind, words in _WORDS.items():
        if any(word in name for word in words):
            return kind
    return type(module).__name__


def kinds_in(tree: Any) -> Kinds:
    """Classes of non-finite values in any nesting of tensors."""
    return kinds_of(tensors_in(tree))


def kinds_of(tensors: Iterable[Tensor]) -> Kinds:
    """Classes of non-finite values in some tensors."""
    found: set[str] = set()
    for tensor in tensors:
        with quiet():  # a probe's own arithmetic is no part of a step that is traced
            counts = exact_counts(tensor.detach())
        found |= {kind for kind, n in zip(("nan", "+inf", "-inf"), counts, strict=True) if n}
    return frozenset(found)
