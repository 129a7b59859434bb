"""Reading what a user's step hands over: numbers of any tensor, texts of any exception."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from workbench.errors import UsageError

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


def text_of(error: object) -> str:
    """An exception's message, or another object's text; ``__str__`` is the user's and may fail."""
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


def split_loss(result: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Split a loss into its total and its named components.

    A component may be a plain number, such as 0.0 while its weight warms up.

    Raises:
        UsageError: It is neither a tensor nor a mapping with one, or an empty mapping.
    """
    if isinstance(result, Tensor):
        return result, {}
    components = dict(result) if isinstance(result, Mapping) else {"": result}
    if not components:
        raise UsageError(
            "TrainingStep.loss returned an empty mapping '{}', so there is nothing to run backward "
            "on. Return a scalar tensor, or a mapping with at least one named component."
        )
    only_numbers = not any(isinstance(value, Tensor) for value in components.values())
    for name, value in components.items():
        if not isinstance(value, Tensor) and (only_numbers or not isinstance(value, int | float)):
            where = f"the component {name!r} as " if isinstance(result, Mapping) else ""
            raise UsageError(
                f"TrainingStep.loss returned {where}{text_of(value)[:80]!r} of type "
                f"{type(value).__name__!r}, which is no tensor, so there is nothing to run "
                "backward on. Return a scalar tensor, or a mapping of named scalar tensors."
            )
    total, *others = components.values()
    for value in others:
        total = total + value
    # the sum is made of the numbers as they are: a tensor in their place might change its dtype
    parts = {k: v if isinstance(v, Tensor) else torch.tensor(v) for k, v in components.items()}
    return total, parts
