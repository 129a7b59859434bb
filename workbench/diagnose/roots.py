"""The stable form of a composition: roots of squares, and division by a norm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from workbench.diagnose.case import ancestors
from workbench.diagnose.interventions import Intervention

if TYPE_CHECKING:
    from workbench.diagnose.case import Case

_PRODUCTS = frozenset("mul __mul__ __rmul__".split())
_POWERS = frozenset("pow __pow__ float_power".split())
_QUOTIENTS = frozenset("div __truediv__ true_divide divide".split())
_NORMS = frozenset("norm vector_norm linalg_vector_norm linalg_norm".split())
Sum = tuple[torch.Tensor, Any, bool]


class Roots:
    """Remembers squares, their sums and norms, and answers what is made of them.

    ``sqrt(x * x)`` is answered with ``abs(x)``, ``sqrt(sum(x * x))`` with a norm, whose derivative
    at 0 is 0, and ``x / norm(x)`` with a quotient whose denominator is 1 where the norm is 0.
    """

    def __init__(self) -> None:
        self.applied = False
        self._held: list[torch.Tensor] = []
        self._squares: dict[int, torch.Tensor] = {}
        self._sums: dict[int, Sum] = {}
        self._norms: set[int] = set()

    def __call__(
        self,
        number: int,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Answer a root or a quotient that has a stable form; remember what others make."""
        del number
        name = getattr(func, "__name__", "")
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if first is None:
            return NotImplemented
        if name == "sqrt" or (name in _POWERS and args[1:2] == (0.5,)):
            return self._root(first)
        if name in _QUOTIENTS and len(args) > 1 and id(args[1]) in self._norms:
            self.applied = True
            below = args[1]
            return func(first, torch.where(below == 0, torch.ones_like(below), below), **kwargs)
        return self._note(name, first, func, args, kwargs)

    def _root(self, first: torch.Tensor) -> Any:
        if id(first) in self._squares:
            self.applied = True
            return self._squares[id(first)].abs()
        if id(first) in self._sums:
            self.applied = True
            value, dim, keep = self._sums[id(first)]
            out = torch.linalg.vector_norm(value, dim=dim, keepdim=keep)
            return self._hold(out, self._norms.add)
        return NotImplemented

    def _note(
        self,
        name: str,
        first: torch.Tensor,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        square = name == "square" or (name in _POWERS and args[1:2] in ((2,), (2.0,)))
        square |= name in _PRODUCTS and len(args) > 1 and args[1] is first
        if square:
            out = func(*args, **kwargs)
            return self._hold(out, lambda key: self._squares.__setitem__(key, first))
        if name == "sum" and id(first) in self._squares:
            out = func(*args, **kwargs)
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            keep = bool(kwargs.get("keepdim", args[2] if len(args) > 2 else False))
            made = (self._squares[id(first)], dim, keep)
            return self._hold(out, lambda key: self._sums.__setitem__(key, made))
        if name in _NORMS:
            return self._hold(func(*args, **kwargs), self._norms.add)
        return NotImplemented

    def _hold(self, out: Any, remember: Callable[[int], object]) -> Any:
        if isinstance(out, torch.Tensor):
            self._held.append(out)  # holding it keeps its id from being reused
            remember(id(out))
        return out


def stable_roots(case: Case) -> list[Intervention]:
    """The stable form, where a root or a quotient has one."""
    event = case.event
    if event is None:
        return []
    graph = case.trace.graph
    at = event if event.forward_event is None else graph[event.forward_event]
    above = {graph[i].base for i in ancestors(case.trace, at.index)}
    root = at.base in ("sqrt", "pow")
    if root and "sum" in above:
        name = "a norm, with derivative 0 at 0, instead of sqrt(sum(x * x))"
    elif root and above & {"pow", "mul", "square"}:
        name = "|x| instead of sqrt(x * x)"
    elif at.base.startswith("div") and above & {"linalg_vector_norm", "norm", "sqrt"}:
        name = "a denominator of 1 where the norm is 0 in x / ‖x‖"
    else:
        return []
    return [Intervention(name, Roots(), at.function_call)]
