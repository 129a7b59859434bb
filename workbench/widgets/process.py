"""The replay process as the panel's jobs want it."""

from __future__ import annotations

from typing import Any

from workbench.widgets.jobs import Worker


def start(bundle: Any, step: Any, trust: str | None) -> Worker:
    """A replay process for a bundle; it starts with its first command.

    Args:
        bundle: The opened bundle.
        step: Reference of the step, or an object that can be found again by one; None takes the
            copy in the bundle.
        trust: ``"source"`` for the copy in the bundle.

    Raises:
        CannotRunError: The step is an object that no other process can find again.
    """
    from workbench.replay import ReplayWorker

    made: Worker = ReplayWorker(bundle.path, step=step, trust=trust)
    return made
