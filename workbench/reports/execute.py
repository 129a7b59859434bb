"""Running a template with papermill: this Python as the kernel, and true cell states after it.

papermill marks every cell as completed when the kernel dies, and starts kernels by the names a user
has installed. Here the kernel is this interpreter, under a specification that exists for one run
and in folders of its own, and what is written down is what happened.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.errors import CannotRunError
from workbench.reports.markdown import headings
from workbench.reports.telling import LISTENING, told

KERNEL = "workbench-report"
Progress = Callable[[str], None]
_START_TIMEOUT_S = 120
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PARAMETERS = {"parameters", "injected-parameters"}


class Terminated(KeyboardInterrupt):
    """The process was asked to end by SIGTERM; what ran is still written."""

    exit_code = 143


@dataclass
class Execution:
    """A run of a notebook.

    Attributes:
        notebook: The notebook with the outputs of what ran.
        failed: Name of the cell that failed, empty when all ran.
        reason: Why, in a few words.
        error: Name of the exception's class, empty when there was none or the kernel ended.
        interrupt: The user's own interruption, to be raised again.
    """

    notebook: Any
    failed: str = ""
    reason: str = ""
    error: str = ""
    interrupt: BaseException | None = None

    @property
    def sentence(self) -> str:
        """What did not work, for people; empty when all ran."""
        if not self.failed:
            return ""
        word = "failed" if self.interrupt is None else "was not finished"
        return f'cell "{self.failed}" {word} ({short(self.reason)}). Sections after it did not run.'


def short(text: str, width: int = 300) -> str:
    """A text on one line, cut where it is too long for one."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[:width]} …"


def run_notebook(
    node: Any,
    parameters: Mapping[str, Any],
    progress: Progress | None = None,
    timeout_s: float | None = None,
    modules: Sequence[Path] = (),
) -> Execution:
    """Run a template from top to bottom, stopping at the first cell that fails.

    Args:
        node: The notebook.
        parameters: Checked parameters.
        progress: Called with a sentence as each part begins, and by the parts themselves.
        timeout_s: Most seconds one cell may take; None for no limit.
        modules: Folders a template of the user's own may import from.

    Returns:
        The notebook with what ran, and the state of each cell in its metadata: ``completed``,
        ``failed``, ``stopped`` (by the user or a signal) or ``not run``.

    Raises:
        CannotRunError: No kernel could be started.
    """
    from papermill.execute import execute_notebook
    from papermill.iorw import load_notebook_node

    node = load_notebook_node(node)
    watch = _Watch(progress)
    result: Any = None
    problem: BaseException | None = None
    with ExitStack() as stack:
        stack.enter_context(_kernel(modules))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="workbench-report-"))
        watch.tell("Starting the report's own Python")
        try:
            stack.enter_context(ended_by_signal())
            result = execute_notebook(
                node,
                str(Path(folder) / "run.ipynb"),
                parameters=dict(parameters),
                engine_name=_register(watch),
                kernel_name=KERNEL,
                progress_bar=False,
                log_output=False,
                store_widget_state=False,
                request_save_on_cell_execute=False,
                start_timeout=_START_TIMEOUT_S,
                execution_timeout=timeout_s,
            )
        except KeyboardInterrupt as stop:
            problem = stop
        except Exception as error:  # noqa: BLE001 - whatever ends a run, what ran is still shown
            problem = error
    if watch.notebook is None and isinstance(problem, KeyboardInterrupt):
        watch.notebook = node
    if watch.notebook is None:
        raise CannotRunError(
            f"The report could not start a kernel with this Python, {sys.executable!r}: {problem}. "
            "Nothing was run. Check that ipykernel is installed here: "
            "pip install 'nonfinite-workbench[lab]'"
        ) from problem
    return _execution(result or watch.notebook, watch, problem)


class _Watch:
    """What one run did, seen from inside the engine."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress
        self.notebook: Any = None
        self.started = -1
        self.exit_code: int | None = None
        self._said = ""

    def start(self, cell: Any, index: int | None) -> None:
        self.started = -1 if index is None else index
        tags = cell.get("metadata", {}).get("tags", [])
        if cell.get("cell_type") == "code" and not _PARAMETERS & set(tags):
            self.tell(doing(self.notebook.cells, self.started))

    def tell(self, sentence: str) -> None:
        if self.progress is not None and sentence and sentence != self._said:
            self._said = sentence
            self.progress(sentence)


@contextmanager
def ended_by_signal() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that what ran is written before the process ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: Any) -> None:
        del number, frame
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _register(watch: _Watch) -> str:
    """An engine of papermill's that tells ``watch`` which cell is running."""
    from papermill.clientwrap import PapermillNotebookClient
    from papermill.engines import NBClientEngine, papermill_engines

    class Client(PapermillNotebookClient):
        async def _async_poll_kernel_alive(self) -> None:
            try:
                await super()._async_poll_kernel_alive()
            finally:
                process = getattr(getattr(self.km, "provisioner", None), "process", None)
                if process is not None:
                    watch.exit_code = process.poll()

        def process_message(self, msg: dict[str, Any], *rest: Any, **named: Any) -> Any:
            sentence = told(msg)
            if sentence is not None:
                return watch.tell(sentence)
            return super().process_message(msg, *rest, **named)

    class Engine(NBClientEngine):
        @classmethod
        def execute_managed_notebook(
            cls, nb_man: Any, kernel_name: str, log_output: bool = False, **kwargs: Any
        ) -> Any:
            watch.notebook = nb_man.nb
            original = nb_man.cell_start

            def cell_start(cell: Any, cell_index: int | None = None, **rest: Any) -> Any:
                watch.start(cell, cell_index)
                return original(cell, cell_index, **rest)

            nb_man.cell_start = cell_start
            timeout = kwargs.pop("execution_timeout", None)
            kwargs.pop("input_path", None)
            start = kwargs.pop("start_timeout", _START_TIMEOUT_S)
            for unused in ("stdout_file", "stderr_file"):
                kwargs.pop(unused, None)
            client = Client(
                nb_man, kernel_name=kernel_name, startup_timeout=start, timeout=timeout, **kwargs
            )
            return client.execute()

    papermill_engines.register(KERNEL, Engine)
    return KERNEL


@contextmanager
def _kernel(modules: Sequence[Path] = ()) -> Iterator[None]:
    """A kernel specification for this Python, in folders that vanish with the run."""
    with tempfile.TemporaryDirectory(prefix="workbench-kernel-") as name:
        folder = Path(name)
        spec = folder / "kernels" / KERNEL
        spec.mkdir(parents=True)
        settings = {
            "argv": [
                sys.executable,
                "-m",
                "ipykernel_launcher",
                "-f",
                "{connection_file}",
                "--HistoryManager.enabled=False",
                # below CRITICAL it says on stderr that a local socket is not encrypted, and logs a
                # traceback when it is ended within a cell
                "--IPKernelApp.log_level=50",
            ],
            "display_name": "Python of this report",
            "language": "python",
        }
        (spec / "kernel.json").write_text(json.dumps(settings), encoding="utf-8")
        paths = [str(folder), os.environ.get("JUPYTER_PATH", "")]
        changed = {
            LISTENING: "1",
            "JUPYTER_PATH": os.pathsep.join(path for path in paths if path),
            "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
            "IPYTHONDIR": str(folder / "ipython"),
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        }
        if modules:
            added = [*map(str, modules), os.environ.get("PYTHONPATH", "")]
            changed["PYTHONPATH"] = os.pathsep.join(path for path in added if path)
        before = {key: os.environ.get(key) for key in changed}
        os.environ.update(changed)
        try:
            yield
        finally:
            for key, value in before.items():
                if value is None:
                    os.environ.pop(key, None)
                else:
                    os.environ[key] = value


def cell_name(cell: Mapping[str, Any], index: int) -> str:
    """The name a template gives a cell, else its number."""
    return str(cell.get("metadata", {}).get("name") or f"cell {index + 1}")


def doing(cells: Sequence[Any], index: int) -> str:
    """What a cell does, in words: as its template says, else by the heading it stands under."""
    metadata = cells[index].get("metadata", {})
    if metadata.get("doing"):
        return str(metadata["doing"])
    for cell in reversed(cells[:index]):
        if cell["cell_type"] == "markdown" and (found := headings("".join(cell["source"]))):
            level, text = found[-1]
            return f"Writing: {text}" if level > 1 else cell_name(cells[index], index)
    return cell_name(cells[index], index)


def _execution(notebook: Any, watch: _Watch, problem: BaseException | None) -> Execution:
    # The error marker that papermill puts first moves every index by what it inserted.
    cells = [c for c in notebook.cells if not _is_marker(c)]
    notebook.cells = cells
    execution = Execution(notebook)
    last = len(cells) if problem is None else watch.started
    ended = "stopped" if isinstance(problem, KeyboardInterrupt) else "failed"
    for index, cell in enumerate(cells):
        state = "completed" if index < last else ended if index == last else "not run"
        cell.setdefault("metadata", {})["workbench"] = {"state": state}
        if "papermill" in cell["metadata"]:
            cell["metadata"]["papermill"]["status"] = state.replace(" ", "_")
    if problem is None:
        return execution
    if 0 <= last < len(cells):
        execution.failed = cell_name(cells[last], last)
        execution.error, execution.reason = _why(cells[last], watch, problem)
    else:
        execution.failed, execution.reason = "start", str(problem)
    if isinstance(problem, KeyboardInterrupt):
        by_signal = isinstance(problem, Terminated)
        execution.reason = "ended from outside, by SIGTERM" if by_signal else "stopped by you"
        execution.interrupt, execution.error = problem, ""
    if "papermill" in notebook.metadata:
        notebook.metadata["papermill"]["exception"] = True
    return execution


def _is_marker(cell: Mapping[str, Any]) -> bool:
    return "papermill-error-cell-tag" in cell.get("metadata", {}).get("tags", [])


def _why(cell: Any, watch: _Watch, problem: BaseException) -> tuple[str, str]:
    kind = type(problem).__name__
    if kind == "CellTimeoutError":
        return "", "it took longer than the time it was given"
    if kind == "DeadKernelError":
        return "", _death(watch.exit_code)
    for output in cell.get("outputs", []):
        if output.get("output_type") == "error":
            text = _ANSI.sub("", str(output.get("evalue", "")))
            return str(output.get("ename", "")), f"{output.get('ename')}: {text}".strip(": ")
    return kind, str(problem) or kind


def _death(code: int | None) -> str:
    if code is None:
        return "its process ended without an answer"
    if code < 0:
        memory = ", which is what happens when memory runs out" if code == -9 else ""
        return f"its process was killed by signal {-code}{memory}"
    return f"its process ended with exit code {code}"
