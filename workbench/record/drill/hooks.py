"""Hooks and attributes that are there for one step only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any


@contextmanager
def while_hooked(handle: Any) -> Iterator[None]:
    """Keep a hook until the block ends."""
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Let an object or a module have another attribute until the block ends."""
    own = name in vars(owner)
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before) if own else delattr(owner, name)


@contextmanager
def both(*parts: AbstractContextManager[Any]) -> Iterator[None]:
    """Enter several contexts as one."""
    with ExitStack() as stack:
        for part in parts:
            stack.enter_context(part)
        yield
