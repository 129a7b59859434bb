"""Run the tool's own arithmetic within a step as if it were not there."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from workbench.replay.calls import unnumbered

AUTOCAST_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | (
    torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
)

DisableFuncTorch = torch._C._DisableFuncTorch
DisableTorchDispatch = torch._C._DisableTorchDispatch
ExcludeKeys = torch._C._ExcludeDispatchKeyGuard


class quiet(AbstractContextManager[None]):  # used like the functions of contextlib
    """Run our own tensor arithmetic unseen: no modes, transforms, autocast or autograd."""

    __slots__ = ("_guards",)

    def __enter__(self) -> None:
        """Put the guards up; a generator's frame would cost more than they do."""
        self._guards = guards = (
            unnumbered(),
            # within torch.func's transforms even an op on a plain tensor gives a wrapped one
            DisableFuncTorch(),
            DisableTorchDispatch(),
            ExcludeKeys(AUTOCAST_KEYS),
            torch.no_grad(),
        )
        for guard in guards:
            guard.__enter__()

    def __exit__(self, *error: object) -> None:
        """Take them down in reverse order."""
        for guard in reversed(self._guards):
            guard.__exit__(None, None, None)
