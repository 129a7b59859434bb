"""One report of a batch, in a process of its own: ``python -m workbench.reports.one``.

The request comes as JSON on stdin. What is being done, and at the end how it went, goes out as one
JSON object a line on stdout; whatever else prints goes to stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from workbench.errors import WorkbenchError
from workbench.numerics import jsonio


def main() -> int:
    """Make the report that stdin asks for; returns the exit code."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    request = jsonio.loads(sys.stdin.read())

    def send(**event: Any) -> None:
        lines.write(jsonio.dumps(event) + "\n")
        lines.flush()

    code, reason = _make(request, lambda sentence: send(said=sentence))
    send(code=code, reason=reason)
    return code


def _make(request: dict[str, Any], progress: Callable[[str], None]) -> tuple[int, str]:
    from workbench.reports.execute import Terminated, ended_by_signal
    from workbench.reports.run import report

    try:
        with ended_by_signal():
            report(**request, progress=progress)
    except WorkbenchError as error:
        return error.exit_code, str(error)
    except Terminated:
        return Terminated.exit_code, "It was stopped."
    except KeyboardInterrupt:
        return 130, "It was stopped."
    return 0, ""


if __name__ == "__main__":
    sys.exit(main())
