"""Many bundles, one report each: several at a time, resumed where a run was cut off.

Every report is made in a process of its own, so that a bundle which is damaged, or a step that
takes its process down, costs its own report and no other.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.errors import BundleError, UsageError, WorkbenchError
from workbench.numerics import jsonio
from workbench.reports.execute import ended_by_signal
from workbench.reports.extract import extract_about
from workbench.reports.index import write_index
from workbench.reports.run import prepare, step_reference
from workbench.reports.templates import check_parameters, find_template

Progress = Callable[[str], None]
INDEX = "index.html"
_ENTRY = "workbench.reports.one"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_STOP_S = 60


@dataclass
class Made:
    """One report of a batch.

    Attributes:
        bundle: The bundle.
        output: The page.
        state: ``made``, ``kept`` (the page there is about the same inputs), ``incomplete`` (a page
            with what ran), ``failed`` (no page) or ``stopped``.
        headline: The page's sentence.
        reason: Why it is incomplete, failed or stopped.
        exit_code: What making it alone would have exited with.
    """

    bundle: Path
    output: Path
    state: str = "stopped"
    headline: str = ""
    reason: str = ""
    exit_code: int = 0

    def to_data(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "bundle": str(self.bundle),
            "report": str(self.output),
            "state": self.state,
            "headline": self.headline,
            "reason": self.reason,
            "exit_code": self.exit_code,
        }


@dataclass
class Batch:
    """What a batch made.

    Attributes:
        index: The page that lists the reports.
        reports: One entry a bundle, in the order given.
        interrupt: What stopped it, to be raised again, or None.
    """

    index: Path
    reports: list[Made] = field(default_factory=list)
    interrupt: KeyboardInterrupt | None = None

    @property
    def exit_code(self) -> int:
        """0 when every page is complete; else the highest exit code among them."""
        return max((made.exit_code for made in self.reports), default=0)

    def to_data(self) -> dict[str, Any]:
        """As ``workbench.report-batch/1``."""
        return {
            "schema": "workbench.report-batch/1",
            "index": str(self.index),
            "reports": [made.to_data() for made in self.reports],
        }


def report_batch(
    bundles: Iterable[str | os.PathLike[str]],
    template: str | Path = "incident",
    directory: str | os.PathLike[str] = "reports",
    parameters: Mapping[str, Any] | None = None,
    step: Any = None,
    trust: str | None = None,
    *,
    jobs: int = 1,
    resume: bool = True,
    timeout_s: float | None = None,
    progress: Progress | None = None,
) -> Batch:
    """Make one report of each bundle, and a page that lists them.

    Args:
        bundles: Paths of bundles.
        template: Name or path of a template that is about one bundle.
        directory: The folder of the pages.
        parameters: Values for the template's parameters, the same for all.
        step: Code of the step, the same for all.
        trust: ``import`` or ``source``.
        jobs: Reports at a time.
        resume: Keep a page that is complete and carries the digest of the same inputs.
        timeout_s: Most seconds one cell may take.
        progress: Called with a sentence that names its bundle.

    Returns:
        What came of each; a bundle that failed did not stop the others.

    Raises:
        UsageError: Unknown template or parameter, wrong type, a template that compares bundles,
            or no bundle; nothing was run.
    """
    paths = [Path(path) for path in bundles]
    _check(paths, template, parameters, jobs)
    folder = Path(directory)
    work = _Work(
        {
            "template": str(template),
            "parameters": dict(parameters or {}),
            "step": None if step is None else step_reference(step),
            "trust": trust,
            "timeout_s": timeout_s,
        },
        progress or (lambda sentence: None),
        resume,
    )
    batch = Batch(folder / INDEX, _named(paths, folder))
    try:
        with ended_by_signal():
            _run(batch, work, jobs)
    except KeyboardInterrupt as stop:
        batch.interrupt = stop
    for made in batch.reports:
        if made.state == "stopped":
            made.reason, made.exit_code = made.reason or "It was not begun.", made.exit_code or 130
    write_index(batch.index, batch.reports, str(template))
    return batch


def _check(
    paths: Sequence[Path], template: str | Path, parameters: Mapping[str, Any] | None, jobs: int
) -> None:
    found = find_template(template)
    check_parameters(found, parameters or {})
    if not paths or jobs < 1:
        raise UsageError(
            f"A batch was asked for {len(paths)} bundles with jobs={jobs!r}, so it would make "
            "nothing. Name at least one bundle, and at least 1 job."
        )
    if found.bundles > 1:
        raise UsageError(
            f"A report from the template {found.name!r} is about {found.bundles} bundles, and "
            f"it was given {len(paths)}, so nothing was run. Give just the ones to compare."
        )


def _named(paths: Sequence[Path], folder: Path) -> list[Made]:
    """An output for each bundle, named like it; equal names are told apart by a number."""
    taken = {INDEX.lower()}
    made = []
    for path in paths:
        stem = _UNSAFE.sub("-", path.name.removesuffix(".zip").removesuffix(".bundle")) or "bundle"
        name, number = f"{stem}.html", 1
        while name.lower() in taken:
            number += 1
            name = f"{stem}-{number}.html"
        taken.add(name.lower())
        made.append(Made(path, folder / name))
    return made


def _run(batch: Batch, work: _Work, jobs: int) -> None:
    pool = ThreadPoolExecutor(jobs)
    futures: dict[Future[None], Made] = {pool.submit(work.one, m): m for m in batch.reports}
    try:
        for future in as_completed(futures):
            future.result()
    finally:
        work.stop()
        pool.shutdown(cancel_futures=True)


@dataclass
class _Work:
    """The processes of a batch."""

    request: dict[str, Any]
    progress: Progress
    resume: bool
    running: set[subprocess.Popen[str]] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopped: bool = False

    def stop(self) -> None:
        """End what still runs; each writes the page of what it has."""
        with self.lock:
            self.stopped = True
            for process in self.running:
                process.terminate()

    def say(self, made: Made, sentence: str) -> None:
        if sentence:
            with self.lock:
                self.progress(f"{made.bundle.name}: {sentence}")

    def one(self, made: Made) -> None:
        """Make one report, or keep the one that is there."""
        keys = ("template", "parameters", "step", "trust")
        try:
            prepared = prepare(made.bundle, **{key: self.request[key] for key in keys})
        except (WorkbenchError, OSError) as error:
            code = error.exit_code if isinstance(error, WorkbenchError) else BundleError.exit_code
            made.state, made.reason, made.exit_code = "failed", str(error), code
            self.say(made, f"not made. {made.reason}")
            return
        if self.resume and is_made(made.output, prepared.inputs):
            made.state = "kept"
            made.headline = str(_about(made.output).get("headline") or "")
            self.say(made, f"kept, made before from the same inputs: {made.output.name}")
            return
        before = _stamp(made.output)
        made.exit_code, made.reason = self._process(made)
        written = _stamp(made.output) != before
        about = _about(made.output) if written else {}
        made.headline = str(about.get("headline") or "")
        if made.exit_code == 0:
            made.state = "made"
        elif self.stopped:
            made.state = "stopped"
        else:
            made.state = "incomplete" if written else "failed"
        self.say(made, made.state if made.exit_code == 0 else f"{made.state}. {made.reason}")

    def _process(self, made: Made) -> tuple[int, str]:
        """Exit code of the process that makes it, and why it was not 0."""
        request = {**self.request, "bundle": str(made.bundle), "output": str(made.output)}
        with self.lock:
            if self.stopped:
                return 130, "It was not begun."
            process = subprocess.Popen(
                [sys.executable, "-m", _ENTRY],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                # a Ctrl-C is for this process, which then ends those
                start_new_session=True,
            )
            self.running.add(process)
        assert process.stdin is not None  # noqa: S101 - a pipe
        assert process.stdout is not None  # noqa: S101 - a pipe
        ending = (_NO_ANSWER, "Its process ended without an answer.")
        try:
            with process.stdin as stdin:
                stdin.write(jsonio.dumps(request))
            for line in process.stdout:
                event = jsonio.loads(line)
                if "code" in event:
                    ending = int(event["code"]), str(event["reason"])
                self.say(made, str(event.get("said", "")))
        finally:
            process.wait(_STOP_S)
            with self.lock:
                self.running.discard(process)
        if process.returncode == 0:
            return 0, ""
        if ending[0] == _NO_ANSWER and process.returncode < 0:
            return _NO_ANSWER, f"Its process was killed by signal {-process.returncode}."
        return ending


def is_made(page: Path, inputs: str) -> bool:
    """Whether a page is there that is complete and was made from these very inputs."""
    about = _about(page)
    return about.get("complete") is True and about.get("inputs") == inputs


_NO_ANSWER = 4
"""Exit code of a report whose process did not end by itself."""


def _about(page: Path) -> dict[str, Any]:
    """How a page says it was made; empty where there is none that can be read."""
    if not page.is_file():
        return {}
    try:
        return extract_about(page)
    except WorkbenchError:
        return {}


def _stamp(page: Path) -> tuple[int, int] | None:
    try:
        found = page.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino
