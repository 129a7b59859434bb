"""The states of a run's checkpoints, in one file beside them.

``suspect`` until a finiteness scan and enough clean training steps after it make it ``committed``;
``quarantined`` when it holds what must not be trained on. Only committed ones are for resuming.
"""

from __future__ import annotations

import fcntl
import getpass
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

from workbench.checkpoints.layout import STATES_FILE
from workbench.errors import CheckpointError, StrictJsonError
from workbench.evidence.wording import command_line
from workbench.numerics import jsonio

State = Literal["suspect", "committed", "quarantined"]

SCHEMA: Final = "workbench.checkpoints/1"
MOST_BYTES: Final = 64 * 2**20
CLEAN_STEPS: Final = 10
"""Clean training steps after a checkpoint before it may be committed."""
_LOCK: Final = ".workbench-checkpoints.lock"
RECORDED: Final = "workbench-checkpoints"
"""What a recorder that keeps the states is present under, in the directory."""
_HISTORY: Final = 50
PATIENCE_S: Final = 10.0
"""Longest wait for another process that changes the states; each needs milliseconds."""
_PAUSE_S: Final = 0.02


@dataclass
class Entry:
    """What is known of one checkpoint.

    Attributes:
        state: ``suspect``, ``committed`` or ``quarantined``.
        step: The training step it was saved after, or None where nothing tells.
        fingerprint: Name, size and time of change of its files when it was scanned.
        scan: The last scan's result, or None.
        reproduced: Whether a diagnosis says the anomaly persists in float32 or bfloat16, or could
            not be reproduced: either keeps it in quarantine until a person releases it.
        history: Changes of state: ``time, who, from, to, why``.
        resumed: When training was resumed from it through an integration: ``time, who``.
    """

    state: State = "suspect"
    step: int | None = None
    fingerprint: list[list[Any]] = field(default_factory=list)
    scan: dict[str, Any] | None = None
    reproduced: str | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    resumed: list[dict[str, Any]] = field(default_factory=list)

    def move(self, state: State, who: str, why: str) -> bool:
        """Change the state and note who did it and why; whether anything changed."""
        if state == self.state and self.history:
            return False
        change = {"time": time.time(), "who": who, "from": self.state, "to": state, "why": why}
        self.history = [*self.history, change][-_HISTORY:]
        self.state = state
        return True


@dataclass
class States:
    """The content of the states file.

    Attributes:
        entries: By name of the checkpoint within its directory.
        clean_from: First step after the last incident, 0 without one.
        clean_through: Last step known to be clean, or None.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    clean_from: int = 0
    clean_through: int | None = None


def read_states(directory: Path) -> States:
    """Read the states file; without one nothing is known.

    Raises:
        CheckpointError: The file is damaged: it is never guessed what may be resumed from.
    """
    path = directory / STATES_FILE
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # a pipe would be waited for, and a device has no end
            raise CheckpointError(_damaged(path, "it is no regular file"))
        if found.st_size > MOST_BYTES:
            raise CheckpointError(_damaged(path, f"it has {found.st_size} bytes"))
        text = path.read_bytes()
    except FileNotFoundError:
        return States()
    try:
        return _decode(jsonio.loads(text))
    except (StrictJsonError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(_damaged(path, f"{type(error).__name__}: {error}")) from error


def _decode(content: Any) -> States:
    if content["schema"] != SCHEMA:
        raise ValueError(f"the schema is {content['schema']!r}, not {SCHEMA!r}")
    entries = {}
    for name, raw in content["checkpoints"].items():
        entry = Entry(**{key: raw[key] for key in Entry.__dataclass_fields__ if key in raw})
        if entry.state not in get_args(State) or not isinstance(entry.history, list):
            raise ValueError(f"the state of {name!r} is {entry.state!r}")
        if entry.step is not None and not isinstance(entry.step, int):
            raise ValueError(f"the step of {name!r} is {entry.step!r}")
        entries[str(name)] = entry
    through = content.get("clean_through")
    return States(
        entries, int(content.get("clean_from", 0)), None if through is None else int(through)
    )


def _damaged(path: Path, what: str) -> str:
    return (
        f"The file of checkpoint states {str(path)!r} cannot be read ({what}), so it is not known "
        "which checkpoints may be resumed from. Restore it from a backup, or remove it and run "
        f"`{command_line('checkpoints', 'scan', path.parent)}`; every checkpoint is suspect until "
        "then."
    )


@contextmanager
def changing(directory: Path, patience: float = PATIENCE_S) -> Iterator[States]:
    """Read the states, let the block change them, and replace the file in one move.

    Only one process at a time is inside. The file is replaced only when the block ends well.

    Args:
        directory: Where the checkpoints lie.
        patience: Seconds to wait at most for another process that is inside.

    Raises:
        CheckpointError: The file is damaged, or another process holds its lock for too long: a
            stopped one must not stop training, which comes here too.
        OSError: The directory cannot be written.
    """
    # neither a link is followed nor a pipe waited for: training comes here, too
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with os.fdopen(os.open(directory / _LOCK, flags, 0o644), "rb") as lock:
        _take(lock.fileno(), directory / _LOCK, patience)
        states = read_states(directory)
        before = _encode(states)
        yield states
        after = _encode(states)
        if after != before or not (directory / STATES_FILE).exists():
            _replace(directory / STATES_FILE, after)


def _take(descriptor: int, path: Path, patience: float) -> None:
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() >= end:
                raise CheckpointError(
                    f"Another process has held the lock {str(path)!r} for {patience:g} seconds, "
                    "so the states of the checkpoints were not changed. Find it with 'fuser' or "
                    "'lsof', end it if it is stuck, and try again."
                ) from error
            time.sleep(_PAUSE_S)
        else:
            return


def _encode(states: States) -> str:
    content: Mapping[str, Any] = {
        "schema": SCHEMA,
        "clean_from": states.clean_from,
        "clean_through": states.clean_through,
        "checkpoints": {name: asdict(entry) for name, entry in states.entries.items()},
    }
    return jsonio.dumps(content, indent=1) + "\n"


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def who_am_i() -> str:
    """The name a change of state is signed with."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
