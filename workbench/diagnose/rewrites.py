"""Rewrites: what is put in for one torch function call in a diagnostic replay."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

Rewrite = Callable[[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any]
"""Gets function and arguments of the call; returns its result, or ``NotImplemented``."""

_TINY = 1e-7
_JITTER = 1e-2


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Apply a function to every floating tensor in arguments."""
    if isinstance(value, torch.Tensor):
        return change(value) if value.dtype.is_floating_point else value
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(map_tensors(item, change) for item in value)
    return value


class Copies:
    """Stand-ins for a call's tensors; what the call writes into one goes to the real tensor.

    Batch normalisation writes its running statistics so; left in a copy, an overflow in them would
    seem gone.

    Args:
        make: Makes a stand-in.
    """

    def __init__(self, make: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._make = make
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Make one."""
        copy = self._make(tensor)
        if copy is not tensor:
            self._pairs.append((tensor, copy))
        return copy

    def write_back(self) -> None:
        """Copy what was written since."""
        with torch.no_grad():
            for tensor, copy in self._pairs:
                before = self._make(tensor)  # not every op that writes says so by the version
                same = (copy == before) | ((copy != copy) & (before != before))
                if not bool(same.all()):
                    tensor.copy_(copy)


def in_dtype(dtype: torch.dtype, *, narrow: bool = True) -> Rewrite:
    """Run the call in a wider dtype, outside of autocast, and keep its result in it.

    Args:
        dtype: The wider dtype.
        narrow: Whether a float64 result goes back to float32, so that later calls see the usual
            dtype.
    """

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if func.__name__.endswith("_") and not func.__name__.endswith("__"):
            return NotImplemented  # written in place: its memory has the narrow dtype
        copies = Copies(lambda t: t.to(dtype))
        wide = map_tensors(args, copies)
        named = {k: _wide_dtype(map_tensors(v, copies), dtype) for k, v in kwargs.items()}
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            out = func(*wide, **named)
        if not narrow:
            return out
        copies.write_back()
        return map_tensors(out, _narrow)

    return rewrite


def through_float64() -> Rewrite:
    """Run the call in float64 and give its result the dtype it has anyway: a placebo."""

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        wide = in_dtype(torch.float64, narrow=False)(func, args, kwargs)
        if not isinstance(wide, torch.Tensor):
            return NotImplemented
        with torch.no_grad():
            usual = func(*args, **kwargs)
        return wide.to(usual.dtype)

    return rewrite


def _wide_dtype(value: Any, dtype: torch.dtype) -> Any:
    return dtype if isinstance(value, torch.dtype) and value.is_floating_point else value


def _narrow(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float32) if tensor.dtype is torch.float64 else tensor


def safe_denominator() -> Rewrite:
    """Divide by 1 where the denominator is exactly 0."""

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        name = func.__name__.strip("_").removeprefix("foreach_")
        position = _DENOMINATORS.get(name)
        if position is None or position >= len(args):
            return NotImplemented
        return func(
            *args[:position], _one_for_zero(args[position]), *args[position + 1 :], **kwargs
        )

    return rewrite


def _one_for_zero(below: Any) -> Any:
    if isinstance(below, torch.Tensor):
        return torch.where(below == 0, torch.ones_like(below), below)
    if isinstance(below, list | tuple):
        return [_one_for_zero(item) for item in below]
    return below if below != 0 else 1.0


_DENOMINATORS = {
    "div": 1,
    "true_divide": 1,
    "truediv": 1,
    "itruediv": 1,
    "rdiv": 0,
    "rtruediv": 0,
    "divide": 1,
    "addcdiv": 2,
    "reciprocal": 0,
    "rsqrt": 0,
    "pow": 0,
    "remainder": 1,
    "mod": 1,
    "fmod": 1,
    "floor_divide": 1,
    "floordiv": 1,
}


def clamped_argument(low: float | None, high: float | None) -> Rewrite:
    """Clamp the call's first tensor argument."""

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if not args or not isinstance(args[0], torch.Tensor):
            return NotImplemented
        return func(args[0].clamp(low, high), *args[1:], **kwargs)

    return rewrite


def double_where() -> Rewrite:
    """Give the call a safe argument where its result or its derivative is not finite."""

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if not args or not isinstance(args[0], torch.Tensor) or not args[0].is_floating_point():
            return NotImplemented
        value = args[0]
        unsafe = _unsafe(func, value, args[1:], kwargs)
        if unsafe is None:
            return NotImplemented
        safe = torch.where(unsafe, torch.ones_like(value), value)
        out = func(safe, *args[1:], **kwargs)
        if not isinstance(out, torch.Tensor) or out.shape != value.shape:
            return NotImplemented
        with torch.no_grad():
            original = func(value.detach(), *args[1:], **kwargs)
        return torch.where(unsafe, torch.nan_to_num(original), out)

    return rewrite


def _unsafe(
    func: Callable[..., Any], value: torch.Tensor, rest: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> torch.Tensor | None:
    """Where result or derivative of an element-wise call is not finite."""
    with torch.enable_grad():
        probe = value.detach().clone().requires_grad_()
        out = func(probe, *_detached(rest), **kwargs)
        if not isinstance(out, torch.Tensor) or out.shape != value.shape:
            return None
        slope: torch.Tensor | None = torch.autograd.grad(out.sum(), probe, allow_unused=True)[0]
    if slope is None:
        return None
    return ~(torch.isfinite(slope) & torch.isfinite(out.detach()) & torch.isfinite(value.detach()))


def _detached(values: tuple[Any, ...]) -> Any:
    return map_tensors(values, lambda t: t.detach())


def safe_softmax() -> Rewrite:
    """Give rows that are -Inf everywhere the value 0 in forward and backward.

    Where the softmax is inside an attention function, such a row sees every key instead.
    """

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        name = func.__name__
        if name == "scaled_dot_product_attention":
            mask = kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
            if not isinstance(mask, torch.Tensor):
                return NotImplemented
            named = {k: v for k, v in kwargs.items() if k != "attn_mask"}
            return func(*args[:3], _opened(mask), *args[4:], **named)
        if name == "multi_head_attention_forward":
            changed = {
                key: _opened(kwargs[key], hides=True)
                for key in ("key_padding_mask", "attn_mask")
                if isinstance(kwargs.get(key), torch.Tensor)
            }
            return func(*args, **{**kwargs, **changed}) if changed else NotImplemented
        value = args[0]
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return NotImplemented
        dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
        empty = (value == -math.inf).all(dim=dim, keepdim=True)
        out = func(value.masked_fill(empty, 0.0), *args[1:], **kwargs)
        return out.masked_fill(empty, 0.0)

    return rewrite


def _opened(mask: torch.Tensor, *, hides: bool = False) -> torch.Tensor:
    """An attention mask in which no row hides every key; ``hides``: True hides a key."""
    if mask.dtype is torch.bool:
        closed = mask.all(-1, keepdim=True) if hides else (~mask).all(-1, keepdim=True)
        return mask & ~closed if hides else mask | closed
    closed = (mask == -math.inf).all(-1, keepdim=True)
    return mask.masked_fill(closed, 0.0)


def counted_mean() -> Rewrite:
    """Divide a sum by at least 1 instead of taking a mean over nothing."""

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        name = func.__name__
        if name in ("mean", "nanmean"):
            return _mean(args, kwargs, missing=name == "nanmean")
        if name in ("max", "min", "amax", "amin") and len(args) == 1 and not args[0].numel():
            return args[0].sum()
        if name == "segment_reduce":  # an empty segment's result is where the reduction begins
            return func(*args, **{**kwargs, "initial": 0.0})
        if name in ("cross_entropy", "nll_loss"):
            total = func(*args, **{**kwargs, "reduction": "sum"})
            target = args[1]
            ignored = kwargs.get("ignore_index", -100)
            return total / max(int((target != ignored).sum()), 1)
        return NotImplemented

    return rewrite


def _mean(args: tuple[Any, ...], kwargs: Mapping[str, Any], *, missing: bool) -> Any:
    value = args[0]
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    keep = bool(kwargs.get("keepdim", args[2] if len(args) > 2 else False))
    there = ~value.isnan() if missing else torch.ones_like(value, dtype=torch.bool)
    held = torch.where(there, value, torch.zeros_like(value))
    if dim is None:
        return held.sum() / there.sum().clamp(min=1)
    return held.sum(dim, keepdim=keep) / there.sum(dim, keepdim=keep).clamp(min=1)


def nonzero_arguments() -> Rewrite:
    """Take 1e-7 for exact zeros in every tensor argument."""

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        def lift(tensor: torch.Tensor) -> torch.Tensor:
            return torch.where(tensor == 0, torch.full_like(tensor, _TINY), tensor)

        return func(*map_tensors(args, lift), **kwargs)

    return rewrite


def distinct_eigenvalues() -> Rewrite:
    """Add a small, growing diagonal to a matrix, so that no two eigenvalues are equal."""

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        matrix = args[0]
        if not isinstance(matrix, torch.Tensor) or matrix.dim() < 2:
            return NotImplemented
        size = min(matrix.shape[-2:])
        steps = torch.linspace(_JITTER, 2 * _JITTER, size, dtype=matrix.dtype, device=matrix.device)
        full = torch.zeros(matrix.shape[-2:], dtype=matrix.dtype, device=matrix.device)
        full.diagonal().copy_(steps)
        return func(matrix + full, *args[1:], **kwargs)

    return rewrite


def finite_numbers() -> Rewrite:
    """Take 0 for numbers among the arguments, Python's or tensors of one element, if not finite."""

    def finite(value: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            return 0.0
        single = isinstance(value, torch.Tensor) and value.dim() == 0 and value.is_floating_point()
        return torch.nan_to_num(value, 0.0, 0.0, 0.0) if single else value

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return func(*(finite(a) for a in args), **{k: finite(v) for k, v in kwargs.items()})

    return rewrite


def representable_numbers() -> Rewrite:
    """Bring Python numbers among the arguments into the range of the first tensor's dtype."""

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if not isinstance(args[0], torch.Tensor) or not args[0].is_floating_point():
            return NotImplemented
        limit = torch.finfo(args[0].dtype).max

        def fit(value: Any) -> Any:
            return max(-limit, min(limit, value)) if isinstance(value, float) else value

        return func(*(fit(a) for a in args), **{k: fit(v) for k, v in kwargs.items()})

    return rewrite


def bounded_operands(limit: float) -> Rewrite:
    """Clamp every tensor argument but one that is written in place."""

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        in_place = func.__name__.endswith("_") and not func.__name__.endswith("__")
        copies = Copies(lambda t: t.clamp(-limit, limit))
        first = args[:1] if in_place else map_tensors(args[:1], copies)
        out = func(*first, *map_tensors(args[1:], copies), **kwargs)
        copies.write_back()
        return out

    return rewrite


def zeroed_empty() -> Rewrite:
    """Start from zeros instead of undefined memory."""

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        return func(*args, **kwargs).zero_()

    return rewrite


def finite_second_operand() -> Rewrite:
    """Take 0 for infinite elements of the second operand."""

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if len(args) < 2 or not isinstance(args[1], torch.Tensor):
            return NotImplemented
        second = torch.where(torch.isinf(args[1]), torch.zeros_like(args[1]), args[1])
        return func(args[0], second, *args[2:], **kwargs)

    return rewrite


def absorbing_product() -> Rewrite:
    """Give 0 wherever one factor is exactly 0."""

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        numbers = [isinstance(a, float | int) for a in args[:2]]
        if len(args) < 2 or all(numbers):
            return NotImplemented
        like = args[numbers.index(False)]
        if not all(isinstance(a, torch.Tensor) or n for a, n in zip(args, numbers, strict=False)):
            return NotImplemented
        pair = [torch.full_like(like, x) if n else x for x, n in zip(args, numbers, strict=False)]
        a, b = torch.broadcast_tensors(*pair)
        zero = (a == 0) | (b == 0)
        kept = [torch.where(zero, torch.zeros_like(x), x) for x in (a, b)]
        return func(*kept, *args[2:], **kwargs)

    return rewrite


def biased_variance() -> Rewrite:
    """Divide by n instead of n - 1."""

    def rewrite(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        rest = {k: v for k, v in kwargs.items() if k not in ("unbiased", "correction")}
        positional = [a for a in args if not isinstance(a, bool)]
        return func(*positional, **rest, correction=0)

    return rewrite
