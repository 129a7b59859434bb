"""What a report is doing, in words, from its kernel to whoever started it.

A cell may run for minutes. What the package says meanwhile travels as a display message of a type
of its own, which the run takes out again: the notebook that is kept holds results only.
"""

from __future__ import annotations

import os
from typing import Any, Final

PROGRESS: Final = "application/vnd.workbench.progress+json"
LISTENING: Final = "WORKBENCH_REPORT_LISTENING"
_LONGEST = 400


def tell(sentence: str) -> None:
    """Say what is being done; nothing happens where nobody listens, as under plain papermill."""
    if os.environ.get(LISTENING) != "1":
        return
    from IPython.display import publish_display_data

    publish_display_data({PROGRESS: {"text": sentence[:_LONGEST]}})


def told(message: dict[str, Any]) -> str | None:
    """The sentence of a kernel's message, or None when it is something else."""
    if message.get("msg_type") != "display_data":
        return None
    data = message.get("content", {}).get("data", {})
    return str(data[PROGRESS].get("text", ""))[:_LONGEST] if PROGRESS in data else None
