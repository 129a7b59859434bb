"""The logging boundary: metrics as strict JSON lines, in which NaN and Inf stay visible.

``json.dumps`` writes ``NaN``, which is no JSON; many loggers drop or average away what is not
finite; and a logger that throws while an exception is on its way hides the first failure behind
its own. Here a non-finite value is written as such, named, with the exception that is being
handled; and what fails inside the logger is counted and noted, never raised.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from workbench.numerics import jsonio
from workbench.numerics.counts import count
from workbench.numerics.stats import tensor_stats
from workbench.record.failures import Failures
from workbench.step.values import note, text_of

_TEXT = 500
_DEPTH = 8
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
logger = logging.getLogger("workbench")


class StrictJsonLogger:
    """Appends one strict JSON object a call to a file or a text stream.

    A line is ``{"step", "time", "values", "nonfinite", "exception"}``: ``nonfinite`` lists the
    fields that are, or hold, NaN or Inf (``field``, ``step``, ``value`` or ``counts``), and
    ``exception`` is the one given, else the one that is being handled, else null. A tensor of
    several elements is written as its statistics over the finite elements; where there are none,
    the statistics are null and ``"no_finite_elements"`` is true.

    Args:
        target: A path, appended to, or an open text stream, which is left open.

    Attributes:
        failures: What failed inside the logger, one sentence each: the last thousand, and how many
            in ``total``.
    """

    def __init__(self, target: str | Path | IO[str]) -> None:
        self._path = Path(target) if isinstance(target, str | Path) else None
        self._stream: IO[str] | None = None if isinstance(target, str | Path) else target
        self.failures = Failures()

    def log(
        self,
        values: Mapping[str, Any] | None = None,
        /,
        step: int | None = None,
        exception: BaseException | None = None,
        **named: Any,
    ) -> bool:
        """Write one line.

        Args:
            values: Numbers, texts, tensors, arrays, or mappings and lists of them, by name.
            step: The training step.
            exception: The exception to write along; None takes the one that is being handled.
            **named: More values.

        Returns:
            Whether the line was written. A failure is counted in ``failures``, logged, and noted
            on the exception; it is never raised.
        """
        error = exception if exception is not None else sys.exception()
        try:
            self._write(log_line({**(values or {}), **named}, step, error))
        except Exception as failure:  # noqa: BLE001 - logging may not break or mask training
            self._failed(failure, step, error)
            return False
        return True

    def close(self) -> None:
        """Close the file; a stream that was given stays open."""
        if self._path is not None and self._stream is not None:
            with suppress(OSError):
                self._stream.close()
            self._stream = None

    def __enter__(self) -> StrictJsonLogger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        text = jsonio.dumps(line) + "\n"
        if self._stream is None and self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._stream = self._path.open("a", encoding="utf-8")
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self.close()  # half a line is not written again later on
            raise

    def _failed(self, failure: Exception, step: int | None, error: BaseException | None) -> None:
        where = "" if step is None else f" of step {step}"
        sentence = f"the log line{where} was not written: {type(failure).__name__}: "
        sentence += text_of(failure)[:_TEXT]
        self.failures.add(sentence)
        logger.warning("%s", sentence)
        if error is not None:
            note(error, f"workbench: {sentence}")


class StrictJsonHandler(logging.Handler):
    """A ``logging`` handler that writes records as strict JSON lines.

    The message, the level, and everything passed as ``extra`` are the values; ``step`` among the
    extras is the step.

    Args:
        target: A path, appended to, or an open text stream.
        level: The lowest level that is written.
    """

    def __init__(self, target: str | Path | IO[str], level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self.writer = StrictJsonLogger(target)

    @property
    def failures(self) -> list[str]:
        """What failed inside the handler so far, one sentence each."""
        return self.writer.failures

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; never raises."""
        if (
            record.name == logger.name
            and record.levelno == logging.WARNING
            and self._is_own(record)
        ):
            return
        extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        step = extra.pop("step", None)
        error = record.exc_info[1] if record.exc_info else None
        values = {"message": _message(record), "level": record.levelname, "logger": record.name}
        self.writer.log(
            {**values, **extra}, step=step if isinstance(step, int) else None, exception=error
        )

    def close(self) -> None:
        """Close the file."""
        self.writer.close()
        super().close()

    def _is_own(self, record: logging.LogRecord) -> bool:
        # a failure to write is itself logged, and would come back here for ever
        return bool(self.failures) and record.getMessage() == self.failures[-1]


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError):  # arguments that do not fit their format
        return str(record.msg)


def log_line(
    values: Mapping[str, Any], step: int | None, error: BaseException | None
) -> dict[str, Any]:
    """Build the object of one line.

    Args:
        values: What is logged, by name.
        step: The training step.
        error: The exception to write along.
    """
    nonfinite: list[dict[str, Any]] = []
    plain = {str(name): _plain(str(name), value, nonfinite, 0) for name, value in values.items()}
    return {
        "step": step,
        "time": time.time(),
        "values": plain,
        "nonfinite": [{**entry, "step": step} for entry in nonfinite],
        "exception": None
        if error is None
        else {"type": type(error).__name__, "message": text_of(error)[:_TEXT]},
    }


def _plain(name: str, value: Any, nonfinite: list[dict[str, Any]], depth: int) -> Any:
    """Turn a logged value into what JSON can hold, noting what is not finite."""
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        value = torch.as_tensor(np.array(value))
    if isinstance(value, Tensor):
        return _tensor(name, value.detach(), nonfinite)
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            nonfinite.append({"field": name, "value": value})
        return value
    if depth < _DEPTH and isinstance(value, Mapping):
        return {str(k): _plain(f"{name}.{k}", v, nonfinite, depth + 1) for k, v in value.items()}
    if depth < _DEPTH and isinstance(value, list | tuple):
        return [_plain(f"{name}.{i}", v, nonfinite, depth + 1) for i, v in enumerate(value)]
    return _text(value)


def _text(value: Any) -> str:
    try:
        return str(value)[:_TEXT]
    except Exception as error:  # noqa: BLE001 - the user's __str__ may fail; the line goes on
        return f"(an object of type {type(value).__name__} without a text: {type(error).__name__})"


def _tensor(name: str, value: Tensor, nonfinite: list[dict[str, Any]]) -> Any:
    if value.numel() == 1 and not value.is_complex():
        return _plain(name, value.item(), nonfinite, 0)
    stats = tensor_stats(value)
    counts = count(value)
    if counts.nonfinite:
        nonfinite.append({"field": name, "counts": counts.as_dict()})
    rms = None if stats.mean_square is None else math.sqrt(stats.mean_square)
    return {
        "shape": list(value.shape),
        "dtype": str(value.dtype).removeprefix("torch."),
        "counts": counts.as_dict(),
        "min": stats.min,
        "max": stats.max,
        "rms": rms,
        "no_finite_elements": bool(value.numel()) and counts.finite == 0,
    }
