"""Send the user's own autocast regions and loss scalers to where the replay runs.

A step may open ``torch.autocast`` itself, deep in its model, or name ``"cuda"`` on a machine that
has none: torch would then switch autocast and the loss scaler off with a warning, and the replay
would be another computation. While a replay runs, both constructors are told what to do instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.amp.autocast_mode import autocast
from torch.amp.grad_scaler import GradScaler


@dataclass(frozen=True)
class Redirection:
    """Where autocast regions and loss scalers go.

    Attributes:
        device_type: Device type of every region and scaler, or None to keep the user's.
        enabled: False switches every region off; True keeps what the user says.
        dtype: dtype of every enabled region, or None to keep the user's.
        default_dtype: dtype of regions that name none, or None for the device's own default.
        cache: Switches the cache of casts on or off; None keeps what the user says.
    """

    device_type: str | None = None
    enabled: bool = True
    dtype: torch.dtype | None = None
    default_dtype: torch.dtype | None = None
    cache: bool | None = None


@contextmanager
def redirected(how: Redirection | None) -> Iterator[None]:
    """Redirect constructors for a while; None leaves everything as it is."""
    if how is None or how == Redirection():
        yield
        return
    with (
        _replaced(autocast, functools.partial(_autocast, how)),
        _replaced(GradScaler, functools.partial(_scaler, how)),
    ):
        yield


_Init = Callable[..., None]


@contextmanager
def _replaced(owner: type, make: Callable[[_Init], _Init]) -> Iterator[None]:
    original = owner.__init__  # type: ignore[misc]
    owner.__init__ = make(original)  # type: ignore[misc]
    try:
        yield
    finally:
        owner.__init__ = original  # type: ignore[misc]


def _autocast(how: Redirection, original: _Init) -> _Init:
    @functools.wraps(original)
    def init(
        self: Any,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        chosen = (how.dtype or dtype or how.default_dtype) if enabled else dtype
        cache = cache_enabled if how.cache is None else how.cache
        device = how.device_type or device_type
        original(self, device, chosen, bool(enabled and how.enabled), cache)

    return init


def _scaler(how: Redirection, original: _Init) -> _Init:
    @functools.wraps(original)
    def init(self: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        original(self, how.device_type or device, *args, **kwargs)

    return init
