"""Longer tasks the panel asks its replay process for, each in that process, so that Stop ends it.

Each task takes the replay, plain arguments and a way to say what is going on, and gives plain data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any

from workbench.diagnose.analysis import analyse
from workbench.diagnose.cell import run_cell, stopped
from workbench.diagnose.counterfactuals import run_counterfactuals
from workbench.errors import CannotRunError, UsageError, WorkbenchError
from workbench.evidence import Bundle
from workbench.numerics import jsonio

if TYPE_CHECKING:
    from workbench.diagnose.cell import Task
    from workbench.replay import Replay

Data = dict[str, Any]
Say = Callable[[str], None]


def run_task(replay: Replay, name: str, arguments: Mapping[str, Any], say: Say) -> Data:
    """Carry out one task by name.

    Raises:
        UsageError: There is no such task.
        CannotRunError: The replay is of no bundle on disk, or cannot be run here.
    """
    task = _TASKS.get(name)
    if task is None:
        raise UsageError(
            f"The replay process has no task '{name[:80]}', so nothing was run. The tasks are: "
            f"{', '.join(_TASKS)}."
        )
    return task(replay, arguments, say)


def counterfactual(replay: Replay, arguments: Mapping[str, Any], say: Say) -> Data:
    """Run one counterfactual of the first origin again; ``intervention`` is its name."""
    name = str(arguments.get("intervention") or "")
    original = replay.nearest
    say("Tracing every op")
    trace = replay.trace(conditions=original, exponents=False)
    analysis = analyse(trace, lambda keep: replay.kept(keep, conditions=original))
    rows = run_counterfactuals(replay, analysis, say, only=name)
    if not rows:
        raise CannotRunError(
            f"The counterfactual '{name[:200]}' cannot be made here: the traced step has no such "
            "change to make. Diagnose again to see what can be tried."
        )
    return rows[0]


def sweep(replay: Replay, arguments: Mapping[str, Any], say: Say) -> Data:
    """Run a sweep in this process and save it; ``cells`` are changes of conditions by name."""
    from workbench.diagnose.sweep import each_alone, run_sweep

    bundle = _bundle(replay)
    cells = arguments.get("cells") or each_alone({k: [v] for k, v in _usual(replay).items()})
    made = run_sweep(
        bundle, cells, step=replay.source.step, executor=_Inline(replay, say), progress=say
    )
    _saved(lambda: made.save(bundle.findings_dir / "sweep"), say)
    return made.to_data()


def minimal(replay: Replay, arguments: Mapping[str, Any], say: Say) -> Data:
    """Find the smallest set of changed conditions under which the step is finite."""
    from workbench.diagnose.minimal import minimal_changes
    from workbench.diagnose.probe import InProcess

    del arguments
    bundle = _bundle(replay)
    found = minimal_changes(InProcess(replay), _usual(replay), say=say).to_data()
    _save_json(bundle, "sweep", "minimal_conditions", found, say)
    return found


def ladder(replay: Replay, arguments: Mapping[str, Any], say: Say) -> Data:
    """Run the step uncompiled and under compile backends."""
    from workbench.diagnose.ladder import BACKENDS
    from workbench.diagnose.ladder import ladder as run_ladder

    bundle = _bundle(replay)
    made = run_ladder(
        bundle,
        replay.source.step,
        backends=arguments.get("backends") or BACKENDS,
        search_compiler=False,
        progress=say,
    ).to_data()
    _save_json(bundle, "ladder", "ladder", made, say)
    return made


def minimize(replay: Replay, arguments: Mapping[str, Any], say: Say) -> Data:
    """Find the smallest failing samples and write a script with just the op's inputs."""
    from workbench.diagnose.minimize import minimize as run_minimize

    del arguments
    bundle = _bundle(replay)
    made = run_minimize(bundle, bundle.findings_dir / "minimize", replay.source.step, progress=say)
    _save_json(bundle, "minimize", "minimize", made.to_data(), say)
    return made.to_data()


_TASKS: dict[str, Callable[[Replay, Mapping[str, Any], Say], Data]] = {
    "counterfactual": counterfactual,
    "sweep": sweep,
    "minimal": minimal,
    "ladder": ladder,
    "minimize": minimize,
}


class _Inline(Executor):
    """Runs the cells of a sweep one after the other with the replay that is open."""

    def __init__(self, replay: Replay, say: Say) -> None:
        self._replay, self._say = replay, say

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        del fn, kwargs
        task: Task = args[0]
        changed = task.arguments["conditions"]
        self._say(f"Running {', '.join(f'{k} {v}' for k, v in changed.items()) or 'original'}")
        future: Future[Any] = Future()
        try:
            future.set_result(run_cell(self._replay, task.arguments, lambda event: None))
        except WorkbenchError as error:
            future.set_result(stopped("error", str(error)))
        except Exception as error:  # noqa: BLE001 - user code may raise anything; the table says so
            future.set_result(stopped("error", f"{type(error).__name__}: {error}"))
        return future


def _usual(replay: Replay) -> Data:
    from workbench.diagnose.minimal import usual_changes

    return usual_changes(replay.nearest)


def _bundle(replay: Replay) -> Bundle:
    bundle = replay.source.bundle
    if bundle is None:
        raise CannotRunError(
            f"The replay of '{replay.source.path}' is of no bundle on disk, so there is nothing "
            "that a result could be about. Open a bundle first."
        )
    return bundle


def _save_json(bundle: Bundle, folder: str, name: str, data: Data, say: Say) -> None:
    def write() -> None:
        directory = bundle.findings_dir / folder
        directory.mkdir(parents=True, exist_ok=True)
        part = directory / f".{name}.json.part"
        part.write_text(jsonio.dumps(data, indent=1) + "\n", encoding="utf-8")
        part.replace(directory / f"{name}.json")

    _saved(write, say)


def _saved(write: Callable[[], Any], say: Say) -> None:
    try:
        write()
    except OSError as error:
        say(f"The result was not saved beside the bundle: {error}")
