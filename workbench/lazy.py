"""Public names of a package, loaded on first use: one way for all rooms."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def names_on_first_use(
    package: str, modules: Mapping[str, tuple[str, ...]]
) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a package whose public names live in its modules.

    Args:
        package: The package's ``__name__``.
        modules: The public names by the module, relative to the package, that has them.

    Returns:
        A module ``__getattr__`` that imports the module, keeps the value in the package, and
        raises ``AttributeError`` for any other name.
    """
    where = {name: module for module, names in modules.items() for name in names}

    def resolve(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{where[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return resolve
