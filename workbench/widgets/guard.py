"""The one place where a callback of the panel may fail.

Jupyter shows nothing when a button's callback raises. Every callback goes through a guard, which
shows the failure in the region it belongs to. Under ``WORKBENCH_RAISE=1`` (set by the tests) it
also raises.
"""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable
from typing import Any

from workbench.errors import WorkbenchError
from workbench.widgets.state import Problem

logger = logging.getLogger(__name__)


def strict() -> bool:
    """Whether a guarded failure is raised again."""
    return os.environ.get("WORKBENCH_RAISE", "") == "1"


class Guard:
    """Runs callbacks and reports what they raise.

    Args:
        report: Called with the region's name and the problem to show there.
    """

    def __init__(self, report: Callable[[str, Problem], None]) -> None:
        self._report = report
        self.last_error: Exception | None = None

    def run(self, region: str, call: Callable[[], Any]) -> Any:
        """Call, and turn what it raises into a problem shown in ``region``.

        Args:
            region: Name of the region the callback belongs to.
            call: The callback, without arguments.
        """
        try:
            return call()
        except WorkbenchError as error:
            self.last_error = error
            self._report(region, Problem(str(error)))
            if strict():
                raise
        except Exception as error:
            self.last_error = error
            logger.exception("the panel's region %r failed", region)
            text = "This panel failed; the others work."
            self._report(region, Problem(text, trace="".join(traceback.format_exception(error))))
            if strict():
                raise
        return None

    def wrap(self, region: str, call: Callable[..., Any]) -> Callable[..., None]:
        """A callback for ipywidgets (any arguments are dropped) around ``call()``."""

        def guarded(*_args: Any, **_kwargs: Any) -> None:
            self.run(region, call)

        return guarded
