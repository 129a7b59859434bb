"""The child process of a `ReplayWorker`: reads commands, answers with events.

Not meant to be imported: ``python -m workbench.replay.worker_main``.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any, Final

from workbench.errors import UsageError, WorkbenchError
from workbench.numerics import jsonio

ENTRIES: Final = frozenset({"workbench.diagnose:run_in_worker", "workbench.diagnose:run_cell"})
"""What a command may ask to be called by name: rooms that this one may not import."""

DEVICE_LOST: Final = 86
"""Exit code after an error that CUDA does not recover from within a process."""

Emit = Callable[[dict[str, Any]], None]


def main() -> None:
    """Serve commands until the parent closes its end."""
    commands, emit = _channels()
    server = Server(emit)
    for line in commands:
        message = jsonio.loads(line)
        if not isinstance(message, Mapping):
            continue
        arguments = dict(message)
        server.handle(str(arguments.pop("command", "")), arguments)
        if server.broken:
            # neither finalizers nor atexit: they would touch the device once more
            os._exit(DEVICE_LOST)


def _channels() -> tuple[IO[bytes], Emit]:
    """Take the pipes for ourselves, so that user code that prints or reads does not disturb."""
    commands = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a file descriptor is wanted
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr

    def emit(event: dict[str, Any]) -> None:
        answers.write((jsonio.dumps(event) + "\n").encode())
        answers.flush()

    return commands, emit


class Server:
    """Holds the live replay and answers commands.

    Args:
        emit: Sends one event to the parent.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._opening: dict[str, Any] = {}
        self._replay: Any = None
        self.broken = False

    def handle(self, command: str, arguments: dict[str, Any]) -> None:
        """Run one command; whatever it raises becomes an event."""
        if command == "open":
            self._opening = arguments
            sys.path.extend(e for e in arguments.get("path", ()) if e not in sys.path)
            return
        try:
            answer = getattr(self, f"_{command}")(arguments)
        except WorkbenchError as error:
            self._fail(command, error, error.exit_code)
        except Exception as error:  # noqa: BLE001 - user code may raise anything; the panel says so
            self._fail(command, error, 1)
        else:
            self._last({"event": "done", "command": command, **answer})

    def _last(self, event: dict[str, Any]) -> None:
        """Send a command's last event; after a device error this process can do no more."""
        lost = device_lost()
        self.broken = lost is not None
        if lost is not None:
            event |= {"leaves": True, "device_lost": lost}
        self._emit(event)

    def _fail(self, command: str, error: Exception, exit_code: int) -> None:
        self._last(
            {
                "event": "error",
                "command": command,
                "kind": type(error).__name__,
                "message": str(error),
                "exit_code": exit_code,
            }
        )

    def _live(self) -> Any:
        if self._replay is None:
            from workbench.replay.replay import Replay

            self._replay = Replay(
                self._opening["bundle"],
                step=self._opening.get("step"),
                trust=self._opening.get("trust"),
                progress=self._emit,
            )
        return self._replay

    def _conditions(self, arguments: Mapping[str, Any]) -> Any:
        changed = arguments.get("conditions") or {}
        return self._live().nearest.replace(**changed)

    # -- commands -----------------------------------------------------------------------------

    def _run(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        replay = self._live()
        conditions = self._conditions(arguments)
        return {"result": replay.run(arguments.get("until"), conditions).to_data()}

    def _step(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        del arguments
        replay = self._live()
        replay.advance()
        return {"result": replay.result().to_data()}

    def _back(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        del arguments
        replay = self._live()
        if replay.back() is None:
            return {"result": {"stages": [stage.to_data() for stage in replay.stages]}}
        return {"result": replay.result().to_data()}

    def _reset(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        del arguments
        replay = self._live()
        replay.reset()
        return {"result": {"stages": [stage.to_data() for stage in replay.stages]}}

    def _verdict(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        del arguments
        return {"result": self._live().verdict().to_data()}

    def _trace(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        replay = self._live()
        trace = replay.trace(until=arguments.get("until"), conditions=self._conditions(arguments))
        reproduction = replay.reproduction
        return {
            "result": {
                "events": len(trace.events),
                "reproduction": None if reproduction is None else reproduction.to_data(),
            },
            "layers": table_data(trace.layers),
            "loss_events": table_data(loss_events(trace.events)),
        }

    def _compare(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Two runs of this step; with ``other`` two bundles, and then no code of them is run."""
        from workbench.replay.side_by_side import compare_paths, compare_runs

        if arguments.get("other"):
            paths = (self._opening["bundle"], str(arguments["other"]))
            return {"result": compare_paths(*paths, self._say)}
        replay = self._live()
        first, second = (
            replay.nearest.replace(**(arguments.get(name) or {})) for name in ("first", "second")
        )
        return {"result": compare_runs(replay, first, second, self._say)}

    def _say(self, text: str) -> None:
        self._emit({"event": "progress", "text": text})

    def _diagnose(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        rest = dict(arguments)
        entry = str(rest.pop("entry", "workbench.diagnose:run_in_worker"))
        if entry not in ENTRIES:
            raise UsageError(
                f"The replay process was asked to call '{entry[:80]}', which is not one of "
                f"{sorted(ENTRIES)}, so nothing was run."
            )
        module, _, name = entry.partition(":")
        function = getattr(importlib.import_module(module), name)
        return {"result": function(self._live(), rest, self._emit)}


def loss_events(events: Any) -> Any:
    """The events of the loss: a loss function is no module, so layers do not have it."""
    columns = events.columns
    kept = [
        i
        for i, (stage, within) in enumerate(zip(columns["stage"], columns["in_loss"], strict=True))
        if stage == "loss" or within
    ]
    chosen = {name: [column[i] for i in kept] for name, column in columns.items()}
    return type(events)({name: _plain(values) for name, values in chosen.items()}, events.attrs)


def _plain(values: list[Any]) -> list[Any]:
    return [value.item() if hasattr(value, "item") else value for value in values]


def device_lost() -> str | None:
    """The error that CUDA is left with, or None while it works or was never used.

    A device-side assert or an illegal address ends CUDA for the whole process: every later call
    fails with the same error, whatever it does.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:  # also torch.AcceleratorError
        return str(error).strip().splitlines()[0][:300]
    return None


def table_data(table: Any) -> dict[str, Any]:
    """A table as plain data: ``{"columns": {name: list}, "attrs": {…}}``."""
    columns = {
        name: column.tolist() if hasattr(column, "tolist") else list(column)
        for name, column in table.columns.items()
    }
    return {"columns": columns, "attrs": dict(table.attrs)}


if __name__ == "__main__":
    main()
