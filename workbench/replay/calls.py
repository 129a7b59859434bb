"""Number the torch functions a step calls, and change single calls in a diagnostic replay.

A function mode sits above autograd: what is put in for a call is differentiated like the user's own
code, so that its backward changes with it. Calls are numbered as they come; the same step under the
same conditions gives the same numbers, with or without a dispatch mode below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

unnumbered = torch._C.DisableTorchFunction
"""Context in which calls are not numbered: what the tool itself does is no part of the step."""

Change = Callable[[int, Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any]
"""Gets number, function, arguments; returns the result to use, or ``NotImplemented`` to leave the
call as it is. Torch functions it calls itself are not numbered."""


class CallMode(TorchFunctionMode):
    """Counts calls, and lets changes replace results.

    Args:
        changes: Asked in order for each call; the first that answers decides.

    Attributes:
        running: Number of the running call and name of its function; -1 outside of any.
        count: Calls so far.
    """

    def __init__(self, changes: Iterable[Change] = ()) -> None:
        super().__init__()
        self.changes = list(changes)
        self.running = (-1, "")
        self.count = 0

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Number the call and run it, or what a change puts in its place."""
        del types
        outer, number = self.running, self.count
        self.running = (number, str(getattr(func, "__name__", func)))
        self.count = number + 1
        try:
            for change in self.changes:
                result = change(number, func, args, kwargs or {})
                if result is not NotImplemented:
                    return result
            if func is torch.Tensor.backward and _plain(args, kwargs or {}):
                return self._backward(args[0], kwargs or {})
            return func(*args, **(kwargs or {}))
        finally:
            self.running = outer

    def _backward(self, loss: torch.Tensor, options: Mapping[str, Any]) -> None:
        """Run backward with this mode on: hooks and custom backward functions are calls too.

        ``torch.autograd.backward`` would hand itself to the mode again without end, so what it does
        for a plain scalar loss is done here (pinned by a test).
        """
        create_graph = bool(options.get("create_graph"))
        retain_graph = options.get("retain_graph")
        gradients = torch.autograd._make_grads((loss,), (None,), is_grads_batched=False)
        with self:
            torch.autograd.graph._engine_run_backward(
                (loss,),
                gradients,
                create_graph if retain_graph is None else retain_graph,
                create_graph,
                (),
                allow_unreachable=True,
                accumulate_grad=True,
            )


def _plain(args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Whether backward starts from a scalar loss and goes to all leaves."""
    return len(args) == 1 and options.get("gradient") is None and options.get("inputs") is None
