"""The stable form of a composition: logarithms kept beside the probabilities they are of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional


class LogSpace:
    """Keeps the logarithm of probabilities beside them, for the stable form of a composition.

    ``log(softmax(x))``, ``log(sigmoid(x))``, ``log(1 - sigmoid(x))`` and ``log(sum(exp(x)))`` are
    answered with ``log_softmax``, ``logsigmoid`` and ``logsumexp``, also after the probabilities
    were gathered, indexed or reshaped.
    """

    _PASSING = frozenset(
        "gather __getitem__ index_select squeeze unsqueeze view reshape transpose permute flatten "
        "select narrow t expand contiguous float to double".split()
    )

    def __init__(self) -> None:
        self.applied = False
        self._logs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._opposites: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._exponents: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(
        self,
        number: int,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Answer a logarithm whose argument has a stable form; remember what others make."""
        del number
        name = getattr(func, "__name__", "")
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if first is None:
            return NotImplemented
        if name == "log" and id(first) in self._logs:
            self.applied = True
            return self._logs[id(first)][1]
        made = self._made(name, first, func, args, kwargs)
        if made is None:
            return NotImplemented
        out, store, log = made
        store[id(out)] = (out, log)  # holding the tensor keeps its id from being reused
        return out

    def _made(
        self,
        name: str,
        first: torch.Tensor,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> tuple[torch.Tensor, dict[int, tuple[torch.Tensor, torch.Tensor]], torch.Tensor] | None:
        if name == "softmax":
            out = func(*args, **kwargs)
            dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
            return out, self._logs, torch.log_softmax(first, dim, dtype=out.dtype)
        if name == "sigmoid":
            out = func(*args, **kwargs)
            self._opposites[id(out)] = (out, functional.logsigmoid(-first))
            return out, self._logs, functional.logsigmoid(first)
        if name in ("rsub", "__rsub__") and id(first) in self._opposites and args[1] == 1:
            return func(*args, **kwargs), self._logs, self._opposites[id(first)][1]
        if name == "exp":
            return func(*args, **kwargs), self._exponents, first
        if name == "sum" and id(first) in self._exponents:
            out = func(*args, **kwargs)
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            axes = dim if dim is not None else tuple(range(first.dim()))
            keep = bool(kwargs.get("keepdim", False))
            log = torch.logsumexp(self._exponents[id(first)][1], axes, keepdim=keep)
            return out, self._logs, log
        if name in self._PASSING and id(first) in self._logs:
            rest = args[1:]
            return (
                func(*args, **kwargs),
                self._logs,
                func(self._logs[id(first)][1], *rest, **kwargs),
            )
        return None
