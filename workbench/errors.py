"""The exception tree.

WorkbenchError
├── UsageError          wrong argument or name                          exit 2
├── BundleError         damaged, hostile, unreadable or newer bundle    exit 3
│   └── StrictJsonError   text that is not strict JSON
├── CheckpointError     damaged, hostile or unreadable checkpoint       exit 3
├── CannotRunError      evidence, code, device or extra is missing      exit 4
├── CheckFailedError    ran; what was asked to hold does not            exit 5
├── RankError           raised in the training loop of one rank because of another
└── NonFiniteError      raised in the training loop (a FloatingPointError)

A message is one paragraph: what happened, to which object (its value in quotes), why it matters,
what to do next.
"""

from __future__ import annotations

from typing import ClassVar


class WorkbenchError(Exception):
    """Root of all errors this package raises on purpose."""

    exit_code: ClassVar[int] = 1


class UsageError(WorkbenchError):
    """A wrong argument, unknown parameter or unknown condition."""

    exit_code = 2


class BundleError(WorkbenchError):
    """A bundle that is damaged, hostile, unreadable or of a newer format."""

    exit_code = 3


class StrictJsonError(BundleError):
    """Text that is not strict JSON (NaN tokens, duplicate keys, numbers out of range)."""


class CheckpointError(WorkbenchError):
    """A checkpoint, or the file of its states, that is damaged, hostile or of an unknown kind."""

    exit_code = 3


class CannotRunError(WorkbenchError):
    """Evidence, trusted code, a device or an optional package is missing here."""

    exit_code = 4


class CheckFailedError(WorkbenchError):
    """A check ran and what was asked to hold does not hold."""

    exit_code = 5


class RankError(WorkbenchError):
    """Raised in the training loop when another rank raised, was lost, or is out of step.

    Attributes:
        rank: The other rank; None when it is not known which.
        step: Number of the step it happened in; None when it is not known.
        exception: Type name of the other rank's exception; None when it did not raise.
        lost: Whether the other rank does not answer any more.
    """

    def __init__(
        self,
        message: str,
        rank: int | None = None,
        step: int | None = None,
        exception: str | None = None,
        lost: bool = False,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.step = step
        self.exception = exception
        self.lost = lost


class NonFiniteError(WorkbenchError, FloatingPointError):
    """Raised in the training loop when a sink trips and the policy says ``raise``.

    Attributes:
        bundle: Path of the sealed bundle as a string, or None when it could not be written.
    """

    def __init__(self, message: str, bundle: str | None = None) -> None:
        super().__init__(message)
        self.bundle = bundle
