"""One origin with everything a cause's rule may look at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from workbench.diagnose.recompute import Range, range_of, underflowed

if TYPE_CHECKING:
    from torch import Tensor

    from workbench.diagnose.slicing import Origin, Slice
    from workbench.replay.trace import Trace
    from workbench.replay.trace_events import Event, KeptEvent

LOW_PRECISION = ("float16", "bfloat16")
_PASSING = frozenset(
    "view reshape t transpose permute expand unsqueeze squeeze select slice neg clone _to_copy "
    "detach alias index gather mul contiguous copy_ abs sum add_ stack cat _unsafe_view "
    "linalg_vector_norm clamp clamp_min clamp_max".split()
)
"""Ops a zero passes through, looked past when the op that made it is searched for."""
_DIVISIONS = ("div", "true_divide", "floor_divide", "remainder", "fmod")
_LOGARITHMS = frozenset("log log2 log10 log1p logit xlogy special_xlogy special_xlog1py".split())
_INVERSES = frozenset("reciprocal reciprocal_ rsqrt rsqrt_".split())
MAX_HOPS = 4


@dataclass
class Case:
    """An origin and its evidence.

    Attributes:
        trace: The traced step.
        slice: What reaches the sinks.
        origin: The origin in question.
        kept: Real arguments of events kept in the second pass, by event number.
        range: Whether its op left the dtype's range or its domain.
        facts: Bundle facts a rule may need: scale, optimizer names, first bad record.
    """

    trace: Trace
    slice: Slice
    origin: Origin
    kept: dict[int, KeptEvent] = field(default_factory=dict)
    range: Range = "none"
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def event(self) -> Event | None:
        """The origin's event; None for a leaf that no event read."""
        index = self.origin.event
        return self.trace.graph[index] if 0 <= index < len(self.trace.graph) else None

    @property
    def base(self) -> str:
        """Name of the origin's op, ``log`` for ``_foreach_log_``; empty where there is no event.

        Without namespace and overload, as if out of place and for one tensor.
        """
        name = self.event.base if self.event is not None else ""
        return name.removeprefix("_foreach_").rstrip("_")

    @property
    def dtype(self) -> str:
        """The dtype the bad value was made in."""
        if self.event is None:
            return ""
        for write in self.event.writes:
            if write.bad:
                return write.dtype
        return self.event.writes[0].dtype if self.event.writes else ""

    @property
    def backward(self) -> bool:
        """Whether the origin is a derivative: its op ran inside an autograd node."""
        return self.event is not None and self.event.node is not None

    def raised_with(self, texts: tuple[str, ...]) -> bool:
        """Whether the step ended with an exception whose message holds one of these texts."""
        raised = self.trace.raised
        return raised is not None and any(text in raised.message.lower() for text in texts)

    def element(self, index: int | None = None) -> int:
        """Which list element an event is within its call."""
        at = self.origin.event if index is None else index
        kept = self.kept.get(at)
        return at - kept.event if kept is not None else 0

    def argument(self, name: str | int, index: int | None = None) -> Any:
        """Return a kept argument of the origin's op (or of another kept event), or None.

        Args:
            name: Argument name as in the op's schema, or its position.
            index: Number of the event; the origin by default.
        """
        at = self.origin.event if index is None else index
        kept = self.kept.get(at)
        if kept is None:
            return None
        position = name if isinstance(name, int) else _position(kept.names, name)
        value = kept.kwargs.get(name) if isinstance(name, str) else None
        if value is None and position is not None and position < len(kept.args):
            value = kept.args[position]
        if isinstance(value, list | tuple) and value and isinstance(value[0], torch.Tensor):
            element = self.element(at)
            value = value[element] if element < len(value) else value[0]
        return value

    def tensor(self, name: str | int, index: int | None = None) -> Tensor | None:
        """Like ``argument``, for real tensors only, in float64."""
        value = self.argument(name, index)
        if isinstance(value, torch.Tensor) and not value.dtype.is_complex:
            return value.to(torch.float64)
        return None

    def division(self) -> tuple[Tensor, Tensor] | None:
        """Return what the origin's op divides by what, in float64; None when it divides nothing.

        Reciprocals, inverse roots, negative powers and weight normalisation divide as well.
        """
        above: Any
        below: Any
        if self.base.startswith(_DIVISIONS):
            above, below = self.argument(0), self.argument(1)
        elif "addcdiv" in self.base:
            above, below = self.argument(1), self.argument(2)
        elif self.base in _INVERSES or self._is_negative_power():
            above, below = 1.0, self.argument("self")
        elif self.base == "_weight_norm_interface":
            kept = self.kept.get(self.origin.event)
            norms = kept.outputs[1] if kept is not None and len(kept.outputs) > 1 else None
            above, below = (None, None) if norms is None else (norms, norms)
        else:
            return None
        if above is None or below is None:
            return None
        return torch.as_tensor(above).to(torch.float64), torch.as_tensor(below).to(torch.float64)

    def logarithm(self) -> Tensor | None:
        """Return what the origin's op takes the logarithm of, in float64; None when it takes none.

        A complex argument comes in complex128. Where a logarithm is multiplied by exactly 0 the
        product is 0, so 1 stands there; of a logit, p or 1 − p, whichever is smaller.
        """
        if self.base in ("xlogy", "special_xlogy", "special_xlog1py"):
            given, factor = self.argument("other"), self.argument("self")
        else:
            given, factor = self.argument("self"), None
        if not isinstance(given, torch.Tensor) or self.base not in _LOGARITHMS:
            return None
        value = given.to(torch.complex128 if given.is_complex() else torch.float64)
        value = value + 1 if "log1p" in self.base else value
        value = torch.minimum(value, 1 - value) if self.base == "logit" else value
        factor = torch.as_tensor(1.0 if factor is None else factor)
        return torch.where(factor == 0, torch.ones_like(value), value)

    def _is_negative_power(self) -> bool:
        exponent = self.argument("exponent") if self.base.startswith("pow") else None
        return isinstance(exponent, float | int) and exponent < 0

    def zero_makers(self) -> list[tuple[int, int]]:
        """Find ops upstream whose result rounded to zero.

        Returns:
            ``(event, elements)`` pairs: which kept event underflowed and how many elements did.
        """
        found = []
        for index in ancestors(self.trace, self.origin.event):
            kept = self.kept.get(index)
            if kept is not None:
                lost = underflowed(kept, self.element(index))
                if lost:
                    found.append((index, lost))
        return found

    def lost_scalars(self) -> list[tuple[int, float]]:
        """Find additions and lower limits upstream whose scalar, an eps, is 0 in their dtype."""
        found = []
        for index in [*ancestors(self.trace, self.origin.event), self.origin.event]:
            if not 0 <= index < len(self.trace.graph):  # an exception before any op ran
                continue
            event = self.trace.graph[index]
            limits = event.base.startswith("clamp")
            if not (limits or event.base.startswith("add")) or not event.writes:
                continue
            dtype = getattr(torch, event.writes[0].dtype, None)
            for name, value in event.scalars:
                if name in ("alpha", "max") or value == 0 or dtype is None:
                    continue
                if not dtype.is_floating_point:
                    continue
                if float(torch.tensor(value, dtype=dtype)) == 0.0:
                    found.append((index, value))
        return found

    def judge_range(self) -> None:
        """Recompute the origin's op in float64."""
        kept = self.kept.get(self.origin.event)
        if kept is not None:
            self.range = range_of(kept, self.element())


def ancestors(trace: Trace, index: int, hops: int = MAX_HOPS) -> list[int]:
    """List the events upstream of one, nearest first, through ops a zero passes."""
    if not 0 <= index < len(trace.graph):
        return []
    found: list[int] = []
    level = [index]
    for _ in range(hops):
        following: list[int] = []
        for at in level:
            for read in trace.graph[at].reads:
                for producer in read.producers:
                    if producer not in found and producer != index:
                        found.append(producer)
                        following.append(producer)
        level = [at for at in following if trace.graph[at].base in _PASSING]
    return found


def _position(names: tuple[str, ...], name: str) -> int | None:
    return names.index(name) if name in names else None
