"""The autocast region that the forward of a user's own loop runs in: the loop does not say it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class AutocastWatch:
    """Looks at it whenever the model is called within a watched step.

    Args:
        model: The model, possibly wrapped.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._told: Callable[[str], None] | None = None
        self._number: int | None = None
        self._hook = self._look

    def begin(self, told: Callable[[str], None]) -> None:
        """Watch until ``end``.

        Args:
            told: Told the dtype, or ``off``.
        """
        self._told = told
        if self._number is None:
            self._number = self._model.register_forward_pre_hook(self._hook).id
        # what registering and removing a hook does, without making a handle at every step
        self._model._forward_pre_hooks[self._number] = self._hook

    def end(self) -> None:
        """Watch no more."""
        self._told = None
        if self._number is not None:
            self._model._forward_pre_hooks.pop(self._number, None)

    def _look(self, module: torch.nn.Module, inputs: Any) -> None:
        del inputs
        if self._told is None:
            return
        device = next((p.device.type for p in module.parameters()), "cpu")
        enabled = torch.is_autocast_enabled(device)
        self._told(
            str(torch.get_autocast_dtype(device)).removeprefix("torch.") if enabled else "off"
        )
