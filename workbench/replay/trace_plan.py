"""What an op's schema says about its arguments, worked out once per op.

Which tensors are read, which are written, which outputs are views, whether the op creates
uninitialised memory, and whether a list argument is worked on element by element.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

OVERWRITES = frozenset(
    "copy_ fill_ zero_ normal_ uniform_ random_ bernoulli_ exponential_ geometric_ cauchy_ "
    "log_normal_ set_ resize_ _foreach_zero_ _foreach_copy_".split()
)
"""In-place ops that never look at what they write over (``copy_`` reads its source only)."""

UNINITIALISED = frozenset(
    "empty empty_like empty_strided new_empty new_empty_strided empty_permuted "
    "empty_quantized _efficientzerotensor".split()
) - {"_efficientzerotensor"}
"""Ops whose output holds whatever the memory held before."""

NOT_NEW = UNINITIALISED | {"_lazy_clone"}
"""Ops whose output has no content of its own yet: undefined, or shared until someone writes."""

CONSTANT_FILLS = frozenset(
    "fill fill_ full full_like new_full masked_fill masked_fill_ index_fill index_fill_ "
    "scalar_tensor constant_pad_nd where lift_fresh _foreach_fill_ threshold".split()
)
"""Ops that place a Python scalar into a tensor as it is: an Inf placed so is intended."""

COLLECTIVE_NAMESPACES = frozenset(("c10d", "_c10d_functional", "_dtensor"))
"""Collectives write all their tensors although their schemas declare nothing."""


@dataclass(frozen=True, slots=True)
class OpPlan:
    """How to read one op's arguments.

    Attributes:
        name: The op as ``str(func)`` gives it, ``aten.log.default``.
        base: Its name without namespace and overload, ``log``.
        arguments: Names of the schema's arguments, by position.
        written: Names of arguments the op writes.
        unread: Names of arguments whose content the op does not look at.
        view: Whether the output only aliases an input.
        uninitialised: Whether the output's content is not defined.
        fills_constant: Whether a scalar argument is placed into the output as it is.
        elementwise_lists: Whether list arguments are worked on element by element (``_foreach_``,
            fused optimizers), so that each element is an event of its own.
        collective: Whether it is a collective.
        makes_new: Whether it returns something that is not an argument it wrote.
        ignored: Whether it is no op of the step: a profiler's mark, a question about a device.
        looked_at: Position, name and whether the content is looked at, of the arguments that can be
            tensors or numbers.
        by_name: The last two of these by name.
        by_position: The same of every argument; the name of one that is no such is empty.
        gives_new: Whether all it does is to return what did not exist before.
        run: What runs the op.
    """

    name: str
    base: str
    arguments: tuple[str, ...]
    written: frozenset[str]
    unread: frozenset[str]
    view: bool
    uninitialised: bool
    fills_constant: bool
    elementwise_lists: bool
    collective: bool
    makes_new: bool
    ignored: bool
    looked_at: tuple[tuple[int, str, bool], ...]
    by_name: dict[str, bool]
    by_position: tuple[tuple[str, bool], ...]
    gives_new: bool
    run: Callable[..., Any]


_STATISTICS: Final = frozenset({"running_mean", "running_var"})
UNDECLARED_WRITES: Final = dict.fromkeys(
    ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "batch_norm_gather_stats"),
    _STATISTICS,
)
"""Arguments that an op updates in place although its schema does not say so."""

_NEITHER: Final = re.compile(
    r"(Optional\[)?List\[(Optional\[)?(int|SymInt|float|bool|number|str)\]+$"
    r"|(Optional\[)?(bool|str|Device|Generator)\]?$"
)
"""Types of arguments that are neither tensors nor single numbers."""


class _Plans(dict[Any, OpPlan]):
    """Plans by op; one that is not there yet is made."""

    def __missing__(self, func: Any) -> OpPlan:
        plan = self[func] = _make_plan(func)
        return plan


PLANS: Final = _Plans()


PLANS_AT: Final[dict[int, OpPlan]] = {}
"""The same by the identity of the op, whose hash is a function in Python."""


def plan_at(func: Any) -> OpPlan:
    """Make an op's plan known by its identity; ``PLANS`` keeps the op."""
    plan = PLANS_AT[id(func)] = PLANS[func]
    return plan


def plan_of(func: Any) -> OpPlan:
    """Return the plan of an op, from the cache after the first call."""
    return PLANS[func]


def _make_plan(func: Any) -> OpPlan:
    schema = func._schema
    namespace, _, rest = str(schema.name).partition("::")
    written = {
        a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write
    }
    if rest in UNDECLARED_WRITES:
        written |= UNDECLARED_WRITES[rest] & {a.name for a in schema.arguments}
    unread = {a.name for a in schema.arguments if a.is_out}
    if rest in OVERWRITES:
        unread |= {"self"}
    collective = namespace in COLLECTIVE_NAMESPACES
    if collective:
        written |= {a.name for a in schema.arguments if "Tensor" in str(a.type)}
    aliases = [r.alias_info for r in schema.returns]
    view = bool(aliases) and all(a is not None and not a.is_write for a in aliases) and not written
    elementwise_lists = rest.startswith(("_foreach_", "_fused_", "_amp_foreach_"))
    looked_at = tuple(
        (position, a.name, not view and a.name not in unread)
        for position, a in enumerate(schema.arguments)
        if not _NEITHER.match(str(a.type))
    )
    at = {position: (name, used) for position, name, used in looked_at}
    return OpPlan(
        name=str(func),
        base=rest,
        arguments=tuple(a.name for a in schema.arguments),
        written=frozenset(written),
        unread=frozenset(unread),
        view=view,
        uninitialised=rest in UNINITIALISED,
        fills_constant=rest in CONSTANT_FILLS,
        elementwise_lists=elementwise_lists,
        collective=collective,
        makes_new=any(alias is None for alias in aliases),
        ignored=str(func).startswith(("profiler.", "prim.device")),
        looked_at=looked_at,
        by_name={name: used for _, name, used in looked_at},
        by_position=tuple(at.get(n, ("", False)) for n in range(len(schema.arguments))),
        gives_new=not (view or written or collective or elementwise_lists or rest in NOT_NEW),
        run=getattr(func, "_op", func),  # past ``OpOverload.__call__``, which only hands on
    )


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return what a functorch transform's tensor holds (with its batch dimensions)."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


class _Floating(dict[torch.dtype, bool]):
    """Whether a dtype can hold NaN or Inf at all."""

    def __missing__(self, dtype: torch.dtype) -> bool:
        known = self[dtype] = dtype.is_floating_point or dtype.is_complex
        return known


FLOATING: Final = _Floating()


def floating(tensor: torch.Tensor) -> bool:
    """Whether a tensor can hold NaN or Inf at all."""
    return FLOATING[tensor.dtype]
