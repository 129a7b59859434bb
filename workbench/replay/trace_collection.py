"""Keep Python's garbage collector from walking over everything that is not part of the trace."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_OBJECTS: Final = 5_000
"""New objects between two runs of the collector: some five hundred events."""


@contextmanager
def old_objects_set_aside() -> Iterator[None]:
    """Let the collector look only at what is made within.

    A trace makes many small objects, so that the collector runs often; each full run would walk
    over all of torch. What is made within is still collected: a step's cycles hold tensors.
    """
    # Where the program set objects aside itself nothing is done, since thawing is for all. To count
    # them takes as long as to walk over them, so that it is asked only where it matters.
    if not gc.isenabled() or gc.get_freeze_count():
        yield
        return
    thresholds = gc.get_threshold()
    gc.freeze()
    if thresholds[0]:  # 0: the program does not collect by itself
        gc.set_threshold(max(thresholds[0], _OBJECTS), *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
