"""The rules by which checkpoints change state, and what may be resumed from."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from workbench.checkpoints.layout import QUARANTINED, Checkpoint, checkpoint_at, find_checkpoints
from workbench.checkpoints.states import (
    CLEAN_STEPS,
    PATIENCE_S,
    Entry,
    States,
    changing,
    read_states,
)
from workbench.errors import CannotRunError, UsageError
from workbench.evidence.wording import command_line, counted

if TYPE_CHECKING:
    from workbench.checkpoints.scanning import ScanResult

TOOL = "workbench"
_MOST_RESUMES = 100


SAVED: Final = "it was just saved and has not been scanned"
SCANNED: Final = "scanned and finite; suspect until clean steps follow"


@dataclass(frozen=True)
class Known:
    """A checkpoint with what is known of it.

    Attributes:
        checkpoint: The checkpoint.
        entry: Its entry; a fresh one, ``suspect``, where there is none.
        changed: Whether it was written again since it was scanned: what was seen then says nothing.
    """

    checkpoint: Checkpoint
    entry: Entry
    changed: bool

    @property
    def state(self) -> str:
        """Its state; one that was committed and then written again is suspect."""
        return "suspect" if self.changed and self.entry.state == "committed" else self.entry.state

    @property
    def waits(self) -> bool:
        """Whether its scan is finite and only clean steps after it are missing."""
        finite = self.entry.scan is not None and bool(self.entry.scan.get("finite"))
        return self.state == "suspect" and finite and not self.changed

    @property
    def why(self) -> str:
        """Why it is in its state, in a few words."""
        if self.changed:
            return "written again since it was scanned"
        if not self.entry.history:
            return "not scanned"
        last = str(self.entry.history[-1].get("why", "")).rstrip(".")
        if not self.waits:
            return last
        missing = "its scan is finite, and clean steps after it are missing"
        return missing if last in (SAVED, SCANNED) else f"{last}; {missing}"


class Registry:
    """The checkpoints of one directory and their states.

    Args:
        directory: Where training saves them.
        clean_steps: Clean training steps after a checkpoint before it may be committed.
    """

    def __init__(self, directory: str | Path, clean_steps: int = CLEAN_STEPS) -> None:
        if clean_steps < 0:
            raise UsageError(
                f"clean_steps={clean_steps!r} is below zero, so it is not clear when a checkpoint "
                "may be committed. Use a whole number of at least 0."
            )
        self.directory = Path(directory)
        self.clean_steps = clean_steps
        self.patience = PATIENCE_S  # for another process that changes the states

    # -- looking ----------------------------------------------------------------------------------

    def known(self) -> list[Known]:
        """Every checkpoint, oldest first, with its state.

        Raises:
            UsageError: No such directory.
            CheckpointError: The states file is damaged.
        """
        found = find_checkpoints(self.directory)
        states = read_states(self.directory)
        return [_known(one, states) for one in found]

    def latest(self) -> Path | None:
        """The newest committed checkpoint, or None."""
        committed = [one for one in self.known() if one.state == "committed"]
        return committed[-1].checkpoint.path if committed else None

    def may_delete(self, path: str | Path) -> bool:
        """Whether retention may delete a checkpoint: the newest committed one stays."""
        latest = self.latest()
        return latest is None or latest.name != Path(path).name

    def refuse_unless_committed(self, path: str | Path) -> Path:
        """Give the path back when it may be resumed from.

        Raises:
            CannotRunError: It is suspect or quarantined, or is not known here.
        """
        name = Path(path).name
        states = {one.checkpoint.name: one for one in self.known()}
        one = states.get(name)
        if one is not None and one.state == "committed":
            return Path(path)
        state = "not known here" if one is None else one.state
        latest = self.latest()
        instead = (
            "None here is committed, for the reasons of: "
            f"{command_line('checkpoints', 'list', self.directory)}"
            if latest is None
            else f"The newest committed one is {str(latest)!r}."
        )
        raise CannotRunError(
            f"The checkpoint {str(path)!r} is {state}, so training was not resumed from it: a bad "
            f"checkpoint must not re-enter training. {instead}"
        )

    # -- changing ---------------------------------------------------------------------------------

    def saved(self, path: str | Path, step: int | None = None) -> None:
        """Note a checkpoint that was just saved: it is suspect."""
        checkpoint = checkpoint_at(Path(path))
        if checkpoint is None:
            return
        with changing(self.directory, self.patience) as states:
            entry = states.entries.setdefault(checkpoint.name, Entry())
            entry.step = checkpoint.step if step is None else step
            entry.scan, entry.fingerprint = None, []
            entry.move("suspect", TOOL, SAVED)

    def scan(
        self,
        names: Iterable[str] | None = None,
        progress: Callable[[int], None] | None = None,
        who: str = TOOL,
    ) -> list[tuple[Known, ScanResult]]:
        """Scan checkpoints and move them to the state they have earned.

        Args:
            names: Which of them; None scans those that were not scanned as they are now.
            progress: Told the bytes that were read.
            who: Signs the change of state.

        Raises:
            UsageError: No such directory, or a name that is not in it.
        """
        from workbench.checkpoints.scanning import scan

        chosen = self._chosen(names)
        done: list[tuple[Known, ScanResult]] = []
        for checkpoint in chosen:
            fingerprint = checkpoint.fingerprint()
            result = scan(checkpoint, progress)
            with changing(self.directory, self.patience) as states:
                entry = states.entries.setdefault(checkpoint.name, Entry(step=checkpoint.step))
                entry.scan, entry.fingerprint = result.as_dict(), fingerprint
                if not result.finite:
                    entry.move("quarantined", who, result.sentence)
                elif entry.state == "committed" or not entry.history:
                    entry.move("suspect", who, SCANNED)
                self._promote(states, entry, who)
                done.append((_known(checkpoint, states), result))
        return done

    def clean(self, through: int) -> None:
        """Note that training was clean up to and including a step.

        Args:
            through: The step.
        """
        with changing(self.directory, self.patience) as states:
            states.clean_through = max(through, states.clean_through or 0)
            for entry in states.entries.values():
                self._promote(states, entry, TOOL)

    def incident(self, step: int, proven_clean: int, why: str) -> list[str]:
        """On an incident: what is newer than the last step proven clean becomes suspect.

        Args:
            step: The step of the incident.
            proven_clean: The last step whose whole state was seen finite.
            why: For the history.

        Returns:
            Names of the checkpoints that changed state.
        """
        changed = []
        with changing(self.directory, self.patience) as states:
            states.clean_from = max(states.clean_from, step + 1)
            for checkpoint in find_checkpoints(self.directory):
                entry = states.entries.setdefault(checkpoint.name, Entry(step=checkpoint.step))
                newer = entry.step is None or entry.step > proven_clean
                if newer and entry.state != "quarantined" and entry.move("suspect", TOOL, why):
                    changed.append(checkpoint.name)
        return changed

    def quarantine(self, name: str, who: str, why: str, move: bool = False) -> Path:
        """Forbid a checkpoint; ``move`` renames it so that loaders that do not know us pass by.

        Returns:
            Where it lies now.

        Raises:
            UsageError: No such checkpoint.
        """
        checkpoint = self._one(name)
        with changing(self.directory, self.patience) as states:
            entry = states.entries.setdefault(checkpoint.name, Entry(step=checkpoint.step))
            entry.move("quarantined", who, why)
            if not move:
                return checkpoint.path
            target = checkpoint.path.with_name(f"{QUARANTINED}{checkpoint.name}")
            checkpoint.path.rename(target)
            states.entries[target.name] = states.entries.pop(checkpoint.name)
            return target

    def release(self, name: str, by: str, why: str) -> None:
        """Commit a checkpoint on a person's word.

        Raises:
            CannotRunError: It holds non-finite values, was never scanned, or changed since.
            UsageError: No such checkpoint, or nobody or no reason is named.
        """
        checkpoint = self._one(name)
        if not by.strip() or not why.strip():
            raise UsageError(
                f"Releasing {name!r} needs a name (--by) and a reason (--why), since a person "
                "answers for it. Give both."
            )
        with changing(self.directory, self.patience) as states:
            known = _known(checkpoint, states)
            scan = known.entry.scan
            if scan is None or known.changed:
                raise CannotRunError(
                    f"The checkpoint {name!r} has not been scanned as it is now, so nobody knows "
                    "what it holds. Scan it first: "
                    f"{command_line('checkpoints', 'scan', self.directory, name)}"
                )
            if not scan.get("finite"):
                raise CannotRunError(
                    f"The checkpoint {name!r} is known to hold what must not be trained on, and "
                    "is not released. Remove it, or resume from an earlier one; the reasons: "
                    f"{command_line('checkpoints', 'list', self.directory)}"
                )
            states.entries[checkpoint.name].move("committed", by, why)

    def diagnosed(self, step: int, why: str) -> list[str]:
        """Quarantine what a diagnosis speaks against: checkpoints saved after a step.

        Args:
            step: The step of the incident.
            why: An anomaly that cannot be reproduced, or that persists in float32 or bfloat16.
        """
        changed = []
        with changing(self.directory, self.patience) as states:
            for checkpoint in find_checkpoints(self.directory):
                entry = states.entries.setdefault(checkpoint.name, Entry(step=checkpoint.step))
                suspect = entry.state == "suspect" and (entry.step is None or entry.step >= step)
                if suspect and entry.move("quarantined", TOOL, why):
                    entry.reproduced = why
                    changed.append(checkpoint.name)
        return changed

    def resumed(self, name: str, who: str) -> None:
        """Note that training is resumed from a checkpoint.

        Args:
            name: Its name within the directory.
            who: Who resumes.

        Raises:
            OSError: The directory cannot be written.
        """
        with changing(self.directory, self.patience) as states:
            entry = states.entries.setdefault(name, Entry())
            entry.resumed = [*entry.resumed, {"time": time.time(), "who": who}][-_MOST_RESUMES:]

    def prune(self, keep: int) -> list[Path]:
        """Delete all but the newest ``keep`` checkpoints, never the newest committed one.

        Quarantined ones are evidence and are left alone.

        Returns:
            What was deleted.
        """
        candidates = [one for one in self.known() if one.state != "quarantined"]
        latest = self.latest()
        deleted = []
        for one in candidates[: max(0, len(candidates) - max(0, keep))]:
            path = one.checkpoint.path
            if path == latest:
                continue
            for file in [path] if path.is_dir() else one.checkpoint.files():
                shutil.rmtree(file) if file.is_dir() else file.unlink()
            deleted.append(path)
        with changing(self.directory, self.patience) as states:
            for path in deleted:
                states.entries.pop(path.name, None)
        return deleted

    # -- inside -----------------------------------------------------------------------------------

    def _promote(self, states: States, entry: Entry, who: str) -> None:
        """Commit a suspect whose scan is finite and that enough clean steps followed."""
        if entry.state != "suspect" or entry.scan is None or not entry.scan.get("finite"):
            return
        if entry.step is None or states.clean_through is None:
            return
        since = max(entry.step, states.clean_from - 1)
        clean = states.clean_through - since
        if clean >= self.clean_steps:
            why = f"its scan is finite and {counted(clean, 'clean step')} followed step {since}"
            entry.move("committed", who, why)

    def _chosen(self, names: Iterable[str] | None) -> list[Checkpoint]:
        if names is not None:
            return [self._one(name) for name in names]
        return [
            one.checkpoint
            for one in self.known()
            if one.entry.scan is None or one.changed or not one.entry.scan.get("finite")
        ]

    def _one(self, name: str) -> Checkpoint:
        found = {one.name: one for one in find_checkpoints(self.directory)}
        path, here = Path(name), self.directory.resolve()
        meant = here in {path.parent.resolve(), (self.directory / path).parent.resolve()}
        if path.name not in found or not meant:
            raise UsageError(
                f"There is no checkpoint {name!r} in {str(self.directory)!r}. It holds: "
                f"{', '.join(map(repr, found)) or 'none'}."
            )
        return found[path.name]


def _known(checkpoint: Checkpoint, states: States) -> Known:
    entry = states.entries.get(checkpoint.name)
    if entry is None:
        return Known(checkpoint, Entry(step=checkpoint.step), False)
    changed = bool(entry.fingerprint) and entry.fingerprint != checkpoint.fingerprint()
    return Known(checkpoint, entry, changed)
