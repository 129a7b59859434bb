"""Rewrites of values: valid indices, an eps that counts, finite operands, other keywords."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from workbench.diagnose.rewrites import Rewrite, map_tensors


def valid_indices() -> Rewrite:
    """Bring indices and labels into the range of the table they point into."""

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if func.__name__ == "one_hot":
            most = kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
            inside = args[0].clamp(0, most - 1 if most > 0 else None)
            return func(inside, *args[1:], **kwargs)
        place = _INDEXED.get(func.__name__)
        if place is None or len(args) <= max(place):
            return NotImplemented
        index, table = args[place[0]], args[place[1]]
        if not isinstance(index, torch.Tensor) or not isinstance(table, torch.Tensor):
            return NotImplemented
        dim = args[1] if func.__name__ in _ALONG else place[2]
        if index.is_floating_point() or not isinstance(dim, int):
            return NotImplemented
        ignored = kwargs.get("ignore_index", -100) if func.__name__ in _LABELS else None
        inside = index.clamp(0, max(table.shape[min(dim, table.dim() - 1)] - 1, 0))
        if ignored is not None:
            inside = torch.where(index == ignored, index, inside)
        changed = [*args]
        changed[place[0]] = inside
        return func(*changed, **kwargs)

    return rewrite


_INDEXED = {
    "embedding": (0, 1, 0),
    "embedding_bag": (0, 1, 0),
    "cross_entropy": (1, 0, 1),
    "nll_loss": (1, 0, 1),
    "index_select": (2, 0, 0),
    "gather": (2, 0, 0),
    "take_along_dim": (1, 0, 0),
}
"""By function: position of the index, of the table, and the table's dimension."""
_ALONG = frozenset(("index_select", "gather"))
_LABELS = frozenset(("cross_entropy", "nll_loss"))


def usable_eps(dtype: torch.dtype) -> float:
    """The smallest power of ten whose inverse root has a finite derivative in a dtype."""
    return float(10.0 ** math.ceil(-2 / 3 * math.log10(2 * torch.finfo(dtype).max)))


def representable_eps() -> Rewrite:
    """Add an eps that the dtype can use where the number that is added rounds to 0."""

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        first = args[0] if args else None
        if isinstance(first, list | tuple) and first:
            first = first[0]
        if not isinstance(first, torch.Tensor) or not first.is_floating_point():
            return NotImplemented
        dtype = first.dtype

        def lift(value: Any) -> Any:
            if not isinstance(value, float) or value == 0:
                return value
            lost = float(torch.tensor(value, dtype=dtype)) == 0
            return math.copysign(usable_eps(dtype), value) if lost else value

        changed = [lift(value) for value in args]
        named = {name: lift(value) for name, value in kwargs.items()}
        same = all(new is old for new, old in zip(changed, args, strict=True))
        if same and all(named[name] is value for name, value in kwargs.items()):
            return NotImplemented
        return func(*changed, **named)

    return rewrite


def finite_operands() -> Rewrite:
    """Take 0 for non-finite elements of the tensors among the arguments."""

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if func.__name__.endswith("_") and not func.__name__.endswith("__"):
            return NotImplemented  # written in place: it must stay the same tensor
        return func(
            *map_tensors(args, _finite), **{k: map_tensors(v, _finite) for k, v in kwargs.items()}
        )

    return rewrite


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(tensor, 0.0, 0.0, 0.0)


def finite_result() -> Rewrite:
    """Give 0 for non-finite elements of the result."""

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        out = func(*args, **kwargs)
        return (
            map_tensors(out, _finite)
            if isinstance(out, torch.Tensor | list | tuple)
            else NotImplemented
        )

    return rewrite


def finite_mask(value: float) -> Rewrite:
    """Take a finite number for -Inf in the first argument: a masked class stays unlikely."""

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if not args or not isinstance(args[0], torch.Tensor) or not args[0].is_floating_point():
            return NotImplemented
        first = args[0].masked_fill(args[0] == -math.inf, value)
        return func(first, *args[1:], **kwargs)

    return rewrite


def without_cast() -> Rewrite:
    """Keep what would be cast in float32."""

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        del kwargs
        casts = func.__name__ in ("to", "half", "bfloat16", "type", "type_as")
        if not casts or not isinstance(args[0], torch.Tensor) or not args[0].is_floating_point():
            return NotImplemented
        return args[0].to(torch.float32)

    return rewrite


def with_fused_eps(eps: float) -> Rewrite:
    """Call a fused optimizer with an eps where it has none."""

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if kwargs.get("eps") != 0:
            return NotImplemented
        return func(*args, **{**kwargs, "eps": eps})

    return rewrite


def running_statistics() -> Rewrite:
    """Normalise by the running statistics instead of the batch's own."""

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        statistics = args[1:3]
        if func.__name__ != "batch_norm" or len(statistics) < 2:
            return NotImplemented
        if any(value is None for value in statistics):
            return NotImplemented
        changed = [*args]
        if len(args) > _TRAINING:
            changed[_TRAINING] = False
            return func(*changed, **kwargs)
        return func(*args, **{**kwargs, "training": False})

    return rewrite


_TRAINING = 5
"""Position of ``training`` among the arguments."""


def positive_last() -> Rewrite:
    """Take the magnitude of the call's second argument, and 1e-7 where that is 0."""

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if len(args) < 2 or not isinstance(args[1], torch.Tensor):
            return NotImplemented
        return func(args[0], args[1].abs().clamp_min(1e-7), *args[2:], **kwargs)

    return rewrite


def keyword(**changed: Any) -> Rewrite:
    """Call with other keyword arguments, unless the call gives just these."""

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if all(name in kwargs and kwargs[name] == value for name, value in changed.items()):
            return NotImplemented
        return func(*args, **{**kwargs, **changed})

    return rewrite


def bounded_infinities(limit: float) -> Rewrite:
    """Take a large finite number of the same sign for every infinity in the tensors given."""

    def bound(tensor: torch.Tensor) -> torch.Tensor:
        most = min(limit, torch.finfo(tensor.dtype).max)
        infinite = torch.isinf(tensor)
        return torch.where(infinite, torch.sign(tensor).mul(most), tensor)

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if func.__name__.endswith("_") and not func.__name__.endswith("__"):
            return NotImplemented  # written in place: it must stay the same tensor
        return func(
            *map_tensors(args, bound), **{k: map_tensors(v, bound) for k, v in kwargs.items()}
        )

    return rewrite


def magnitude_of_determinant() -> Rewrite:
    """Take the logarithm of the determinant's magnitude."""

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if func.__name__ != "logdet":
            return NotImplemented
        return torch.linalg.slogdet(*args, **kwargs)[1]

    return rewrite


def positive_variance() -> Rewrite:
    """Take 0 for negative running variances of a batch normalisation."""

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if func.__name__ != "batch_norm" or len(args) <= _VARIANCE or args[_VARIANCE] is None:
            return NotImplemented
        changed = [*args]
        changed[_VARIANCE] = args[_VARIANCE].clamp(min=0)
        return func(*changed, **kwargs)

    return rewrite


_VARIANCE = 2
"""Position of ``running_var`` among the arguments."""
