"""Keep Python's garbage collector from walking over everything that is not part of the trace."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def old_objects_set_aside() -> Iterator[None]:
    """Let the collector look only at what is made within.

    A trace makes many small objects, so that the collector runs often; each full run would walk
    over all of torch. What is made within is still collected: a step's cycles hold tensors.
    """
    if gc.get_freeze_count():  # the program set objects aside itself, and thawing is for all
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
