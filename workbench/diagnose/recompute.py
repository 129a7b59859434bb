"""Range or domain: recompute one op from its real inputs in float64 (DESIGN rule 6).

Finite in float64 means the op left the range of its dtype (overflow, or an underflow that made a
zero); non-finite means that no finite value exists for these inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from workbench.diagnose.attention_again import attention_gradients
from workbench.diagnose.ops import FINITE_EVERYWHERE
from workbench.replay.trace_plan import plan_of

if TYPE_CHECKING:
    from torch import Tensor

    from workbench.replay.trace_events import KeptEvent

Range = Literal["domain", "overflow", "underflow", "none"]

_WIDER = {torch.complex64: torch.complex128, torch.complex32: torch.complex128}
_RANDOM = frozenset(
    "bernoulli native_dropout rand randn normal uniform exponential multinomial".split()
)


def recompute(kept: KeptEvent, element: int = 0) -> Tensor | None:
    """Run a kept event again in float64.

    Args:
        kept: The event's call with its real arguments.
        element: Which list element of a ``_foreach_`` or fused op.

    Returns:
        The result in float64 (what was written in place, for in-place ops), or None when the op
        cannot be run so (random ops, integer results, kernels without float64).
    """
    plan = plan_of(kept.func)
    if plan.base in _RANDOM or plan.uninitialised or plan.collective:
        return None
    args = tuple(_widen(value) for value in kept.args)
    kwargs = {name: _widen(value) for name, value in kept.kwargs.items()}
    named = dict(zip(plan.arguments, args, strict=False)) | kwargs
    special = _special(plan.base, named, element)
    if special is not None:
        return special
    try:
        with torch.no_grad():
            out = kept.func(*args, **kwargs)
    except (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError):
        return None  # no such kernel in float64, or dtypes that must not be mixed
    slot = _bad_slot(kept)
    if slot is not None:
        out = named.get(slot)
    elif plan.written and not plan.makes_new:
        out = next((named[name] for name in plan.arguments if name in plan.written), out)
    return _pick(out, element)


def range_of(kept: KeptEvent, element: int = 0) -> Range:
    """Judge whether the event left its dtype's range or had no finite value to give."""
    wide = recompute(kept, element)
    actual = _actual(kept, element)
    if wide is None or actual is None or wide.shape != actual.shape:
        return "none"
    bad = ~torch.isfinite(actual)
    if not bool(bad.any()):
        return "underflow" if bool(((actual == 0) & (wide != 0)).any()) else "none"
    if bool(torch.isfinite(wide)[bad].any()):
        return "overflow"
    # nothing is wider than float64: an op that is finite for all real arguments overflowed
    everywhere = plan_of(kept.func).base.rstrip("_") in FINITE_EVERYWHERE
    return "overflow" if everywhere and _all_finite(kept) else "domain"


def result_fits(kept: KeptEvent, element: int = 0) -> bool:
    """Whether every bad element is one that its dtype could hold, computed in float64.

    Then it is not the result that left the range, but something the op computes on its way.
    """
    wide, actual = recompute(kept, element), _actual(kept, element)
    if wide is None or actual is None or wide.shape != actual.shape:
        return False
    values = wide[~torch.isfinite(actual)].abs()
    return bool(values.numel()) and bool((values <= torch.finfo(actual.dtype).max).all())


def _all_finite(kept: KeptEvent) -> bool:
    values = [*kept.args, *kept.kwargs.values()]
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    tensors += [t for v in values if isinstance(v, list | tuple) for t in v if _is_tensor(t)]
    numbers = [v for v in values if isinstance(v, float)]
    finite = all(bool(torch.isfinite(t).all()) for t in tensors if not t.is_sparse)
    return finite and all(math.isfinite(number) for number in numbers)


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def limited(kept: KeptEvent) -> KeptEvent:
    """The same call with every Inf among its arguments replaced by its dtype's largest value."""

    def limit(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype.is_floating_point:
            largest = torch.finfo(value.dtype).max
            return value.clamp(-largest, largest)
        if isinstance(value, list | tuple):
            return type(value)(limit(item) for item in value)
        return value

    return replace(
        kept,
        args=tuple(limit(value) for value in kept.args),
        kwargs={name: limit(value) for name, value in kept.kwargs.items()},
    )


def underflowed(kept: KeptEvent, element: int = 0) -> int:
    """Count elements that rounded to zero although their float64 value is not zero."""
    wide = recompute(kept, element)
    actual = _actual(kept, element)
    if wide is None or actual is None or wide.shape != actual.shape:
        return 0
    return int(((actual == 0) & (wide != 0) & torch.isfinite(wide)).sum())


def _bad_slot(kept: KeptEvent) -> str | None:
    """The argument written in place that went bad although all that was returned is finite.

    The running variance of a batch normalisation overflows so.
    """
    if not kept.written or any(not _finite(t) for t in kept.outputs):
        return None
    return next((name for name, t in kept.written.items() if not _finite(t)), None)


def _finite(t: Tensor) -> bool:
    return bool(torch.isfinite(t).all())


def _actual(kept: KeptEvent, element: int) -> Tensor | None:
    """What the event really produced."""
    slot = _bad_slot(kept)
    if slot is not None:
        return kept.written[slot]
    if not kept.outputs:
        return None
    index = element if element < len(kept.outputs) else 0
    value = kept.outputs[index]
    return value if value.dtype.is_floating_point or value.dtype.is_complex else None


def _widen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.dtype.is_floating_point:
            return value.to(torch.float64)
        return value.to(_WIDER.get(value.dtype, value.dtype)).clone()
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else _WIDER.get(value, value)
    if isinstance(value, list | tuple):
        return type(value)(_widen(item) for item in value)
    return value


def _special(base: str, named: Mapping[str, Any], element: int) -> Tensor | None:
    """Ops whose own kernel does not take float64 as it is, or does not tell in it."""
    if base == "_amp_foreach_non_finite_check_and_unscale_":
        product: Tensor = named["self"][element] * named["inv_scale"]
        return product
    found = attention_gradients(base, named)
    return None if found is None else _pick(found, element)


def _pick(out: Any, element: int) -> Tensor | None:
    if isinstance(out, list | tuple):
        if not out:
            return None
        out = out[element] if element < len(out) else out[0]
    if isinstance(out, torch.Tensor) and (out.dtype.is_floating_point or out.dtype.is_complex):
        return out
    return None
