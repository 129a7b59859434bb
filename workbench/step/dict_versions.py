"""Whether dictionaries were written since, told from the version that CPython keeps of each.

Comparing all objects that the modules of a model hold touches every one of them; a version is one
number a dictionary. It is read from memory, which depends on the interpreter: what is relied on is
tried out once, and where it does not hold nobody uses it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

_OFFSET: Final = object.__basicsize__ + ctypes.sizeof(ctypes.c_ssize_t)
"""Behind the head that every object has and the number of entries."""


class Versions:
    """The versions of some dictionaries when they were looked at.

    Args:
        dicts: The dictionaries; they are kept alive.
    """

    def __init__(self, dicts: Sequence[dict[Any, Any]]) -> None:
        self._dicts = dicts
        self._cells = [ctypes.c_uint64.from_address(id(one) + _OFFSET) for one in dicts]
        self._seen = [cell.value for cell in self._cells]

    def same(self) -> bool:
        """Whether none was written since."""
        return [cell.value for cell in self._cells] == self._seen


@cache
def tell_writes() -> bool:
    """Whether every way to write a dictionary changes its version here, and reading does not."""
    if sys.implementation.name != "cpython" or sys.version_info >= (3, 13):
        return False

    class Probe:
        pass

    probe: Any = Probe()
    probe.value = 0
    own = probe.__dict__
    plain: dict[str, int] = {"a": 1}
    versions = Versions([own, plain])

    def store(number: int) -> bool:
        probe.value = -1000 - number  # the interpreter specialises this line once it is warm
        return _changed(versions)

    def read() -> bool:
        _ = probe.value, own["value"], plain.get("a"), list(plain), len(own)
        return _changed(versions)

    writes = [
        lambda: plain.__setitem__("a", 2),
        lambda: plain.__setitem__("b", 3),
        lambda: plain.update(c=4),
        lambda: plain.pop("b"),
        lambda: plain.__delitem__("c"),
        lambda: plain.setdefault("d", 5),
        plain.clear,
        lambda: own.__setitem__("value", "other"),
        lambda: object.__setattr__(probe, "more", 1),
        lambda: delattr(probe, "more"),
    ]
    for write in writes:
        write()
        if not _changed(versions):
            return False
    return all(store(number) for number in range(64)) and not any(read() for _ in range(64))


def _changed(versions: Versions) -> bool:
    """Whether one was written since this was asked last."""
    if versions.same():
        return False
    versions.__init__(versions._dicts)  # type: ignore[misc]
    return True
