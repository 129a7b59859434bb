"""Reading what a user's step hands over: numbers of any tensor, texts of any exception."""

from __future__ import annotations

import logging
from typing import Any

from torch import Tensor

logger = logging.getLogger("workbench")


def scalar(value: Any) -> float | None:
    """Read a number.

    Args:
        value: A number, a tensor, anything else or None.

    Returns:
        The number; None where there is not one: several elements, a complex value, no number.
    """
    if value is None:
        return None
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex() or value.is_meta:
            return None
        if value.requires_grad:
            value = value.detach()
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def text_of(error: BaseException) -> str:
    """An exception's message; its own ``__str__`` is the user's code and may fail."""
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001 - the tool may not replace the user's exception
        return f"(its text cannot be had: {type(second).__name__})"


def note(error: BaseException, text: str) -> None:
    """Add a note to an exception of the user's, unless it refuses one."""
    try:
        error.add_note(text)
    except Exception:  # noqa: BLE001 - it must come out as it was, and may be of any make
        logger.warning("%s", text)
