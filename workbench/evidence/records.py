"""What records become when their classes are not at hand."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any


class AttributeDict(dict[str, Any]):
    """A dict whose string keys are attributes too."""

    def __getattr__(self, name: str) -> Any:
        """The value of a key.

        Raises:
            AttributeError: No such key.
        """
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a key."""
        self[name] = value


class FieldTuple(tuple[Any, ...]):
    """A tuple whose items have names: a namedtuple whose class is not at hand."""

    _fields: tuple[str, ...]

    def __new__(cls, names: tuple[str, ...], items: list[Any]) -> FieldTuple:
        """A tuple of the items, named in order."""
        made = super().__new__(cls, items)
        made._fields = names
        return made

    def __getattr__(self, name: str) -> Any:
        """The item of that name.

        Raises:
            AttributeError: No item has it.
        """
        if name != "_fields" and name in self._fields:
            return self[self._fields.index(name)]
        raise AttributeError(name)

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))


@dataclasses.dataclass(frozen=True, slots=True)
class Missing:
    """Stands for an object that could not be recorded.

    Attributes:
        type: The type's name.
    """

    type: str


def loaded_class(name: str) -> type | None:
    """A dataclass or namedtuple class that is already imported; imports nothing."""
    module, _, qualified = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = getattr(found, part, None) if found is not None else None
    return found if is_record_class(found) else None


def is_record_class(found: Any) -> bool:
    """Whether something is a dataclass or a namedtuple class."""
    if not isinstance(found, type):
        return False
    named = issubclass(found, tuple) and isinstance(getattr(found, "_fields", None), tuple)
    return dataclasses.is_dataclass(found) or named
