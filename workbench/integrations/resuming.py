"""Resuming from committed checkpoints only, whatever library asks."""

from __future__ import annotations

import logging
from pathlib import Path

from workbench.checkpoints import Registry
from workbench.checkpoints.states import who_am_i
from workbench.errors import CannotRunError
from workbench.evidence.wording import command_line

logger = logging.getLogger("workbench")


def latest_committed(directory: str | Path) -> Path:
    """The newest committed checkpoint of a directory.

    Raises:
        CannotRunError: None is committed.
        UsageError: No such directory.
    """
    latest = Registry(directory).latest()
    if latest is None:
        raise CannotRunError(
            f"No checkpoint in {str(directory)!r} is committed, so training was not resumed: "
            f"`{command_line('checkpoints', 'list', directory)}` says why for each."
        )
    _note(latest)
    return latest


def refuse_unless_committed(path: str | Path) -> Path:
    """Give the path of a checkpoint back when it may be resumed from.

    Raises:
        CannotRunError: It is suspect or quarantined, or nothing is known of it.
        UsageError: Its directory is not there.
    """
    where = Path(path)
    found = Registry(where.parent).refuse_unless_committed(where)
    _note(found)
    return found


def _note(path: Path) -> None:
    """Note the resume in the states file, for an audit; a read-only folder stops nothing."""
    try:
        Registry(path.parent).resumed(path.name, who_am_i())
    except OSError as error:
        logger.warning("The resume from %s was not noted: %s", path.name, error)
