"""The classes of a batch's records, found in the user's code that is loaded already."""

from __future__ import annotations

import sys
from typing import Any

from workbench.evidence.pytree import Resolve
from workbench.evidence.reader import Bundle
from workbench.evidence.records import is_record_class, loaded_class

_METHODS = ("forward", "loss", "build_model")


def classes_of(step: Any, bundle: Bundle) -> Resolve:
    """Give the look-up of dataclasses and namedtuples for a batch; it imports nothing.

    A class recorded in the module of the step (or in ``__main__``) is looked up where the step
    given now was defined, since a file may be loaded under another module name.

    Args:
        step: The user's training step, loaded and trusted.
        bundle: The bundle whose batch names the classes.
    """
    recorded = bundle.manifest.step_reference.reference.partition(":")[0]
    scopes = [vars(sys.modules[m]) for m in {type(step).__module__} if m in sys.modules]
    for name in _METHODS:
        method = getattr(type(step), name, None)
        scopes.append(getattr(method, "__globals__", {}))

    def resolve(name: str) -> type | None:
        module, _, qualified = name.partition(":")
        if module in {recorded, "__main__", type(step).__module__}:
            for scope in scopes:
                found = _attribute(scope, qualified)
                if isinstance(found, type) and is_record_class(found):
                    return found
        return loaded_class(name)

    return resolve


def _attribute(scope: Any, qualified: str) -> Any:
    head, *rest = qualified.split(".")
    found = scope.get(head)
    for part in rest:
        found = getattr(found, part, None) if isinstance(found, type) else None
    return found
