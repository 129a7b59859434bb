"""Turns what the user asks for into commands of the replay process, and its answers into actions.

The panel itself never runs torch. Stop ends the process; the next command starts a new one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from workbench.widgets import actions as a
from workbench.widgets.state import MADE_HERE, ORIGINAL, STAGE_NAMES, Problem, Run
from workbench.widgets.store import Store
from workbench.widgets.translate import layers_of, stage_view, stage_views
from workbench.widgets.words import changed_words, diagnosis_takes, finding_of, run_result

START_SECONDS = 4.0
"""What starting a process and importing torch takes before the first stage."""

WHOLE = ("run", "None")
"""Key of a job that runs the whole step."""


class Worker(Protocol):
    """A replay in a child process."""

    @property
    def alive(self) -> bool:
        """Whether the process runs."""

    def send(self, command: str, **arguments: Any) -> None:
        """Ask for something; the answers come as events."""

    def poll(self, timeout: float = 0.0) -> list[dict[str, Any]]:
        """Events that have arrived, waiting up to ``timeout`` seconds for the first."""

    def stop(self) -> None:
        """End the process now."""


@dataclass(frozen=True)
class Job:
    """One command of the replay process.

    Attributes:
        verb: What the user reads while it runs.
        run: The run it belongs to.
        command: The worker's command.
        arguments: Its arguments.
        changed: Conditions that differ from the recorded ones.
        restart: Whether the run's stages start over.
        after: The diagnostic run that this repetition of Original follows.
        result: Name its answer is kept under, where it is no run and no diagnosis.
    """

    verb: str
    run: str
    command: str
    arguments: dict[str, Any] = field(default_factory=dict)
    changed: tuple[tuple[str, str], ...] = ()
    restart: bool = False
    after: str = ""
    result: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Jobs of one key take about the same time."""
        return (self.command, self.result or str(self.arguments.get("until")))


class Jobs:
    """The queue of commands of one panel.

    Args:
        store: The panel's state.
        start: Starts a replay process.
        saved_layers: Reads the layers table that a diagnosis leaves beside the bundle, or None.
        ways_on: What can be done when the process died: action names and labels.
    """

    def __init__(
        self,
        store: Store,
        start: Callable[[], Worker],
        saved_layers: Callable[[], Any],
        ways_on: Callable[[], tuple[tuple[str, str], ...]] = tuple,
    ) -> None:
        self._store, self._start, self._saved_layers = store, start, saved_layers
        self._ways_on = ways_on
        self._queue: deque[Job] = deque()
        self._worker: Worker | None = None
        self._job: Job | None = None
        self._began = 0.0
        self._took: dict[tuple[str, str], float] = {}
        self._at = ""
        self._unfinished: tuple[Job, ...] = ()

    @property
    def busy(self) -> bool:
        """Whether something runs or waits."""
        return self._job is not None or bool(self._queue)

    @property
    def standing_at(self) -> str:
        """The run whose step the process holds, so that it can be stepped on."""
        return self._at if self._worker is not None and self._worker.alive else ""

    # -- asking -------------------------------------------------------------------------------

    def step(self, run: Run | None) -> None:
        """Run the next stage of a run."""
        name = run.name if run is not None else ORIGINAL
        stage = run.next_stage if run is not None else STAGE_NAMES[0]
        if stage and self.standing_at == name:
            self.add(Job("Step", name, "step", changed=_changed(run)))
        elif stage:
            self.run_to(run, stage, "Step")

    def run_to(self, run: Run | None, stage: str, verb: str = "Run to") -> None:
        """Run from the start up to a stage."""
        name = run.name if run is not None else ORIGINAL
        arguments = {"until": stage, "conditions": dict(_changed(run))}
        self.add(Job(verb, name, "run", arguments, _changed(run), restart=True))

    def run_to_first_bad(self, run: Run | None, trace: bool = True) -> None:
        """Run without probes until something goes bad, then compare and trace it."""
        name = run.name if run is not None else ORIGINAL
        changed = _changed(run)
        arguments = {"until": None, "conditions": dict(changed)}
        self.add(Job("Run to first bad", name, "run", arguments, changed, restart=True))
        if name == ORIGINAL:
            self.add(Job("Compare with the record", name, "verdict"))
        if trace:
            self.trace(name, changed)

    def replay(self, name: str, changed: tuple[tuple[str, str], ...]) -> None:
        """Make a diagnostic run; Original follows when it is finite (see ``_after_run``)."""
        arguments = {"until": None, "conditions": dict(changed)}
        self.add(Job("Replay", name, "run", arguments, changed, restart=True))

    def trace(self, name: str, changed: tuple[tuple[str, str], ...]) -> None:
        """Run once more with probes on, for the statistics of every layer."""
        self.add(Job("Trace", name, "trace", {"conditions": dict(changed)}, changed))

    def diagnose(self, anomaly: bool = False) -> None:
        """Find where the value was born; with ``anomaly`` ask autograd's anomaly mode too."""
        self.add(Job("Diagnose", "", "diagnose", {"anomaly": True} if anomaly else {}))

    def back(self, run: Run) -> None:
        """Run again from the start, up to the stage before the last one that ran."""
        if self.standing_at == run.name:
            self.add(Job("Back", run.name, "back", changed=run.changed, restart=True))
        elif run.reached <= 1:
            self.reset(run)
        else:
            self.run_to(run, STAGE_NAMES[run.reached - 2], "Back")

    def reset(self, run: Run) -> None:
        """Forget where a run stands."""
        if self.standing_at == run.name:
            self.add(Job("Reset", run.name, "reset", changed=run.changed, restart=True))
        else:
            self._store.dispatch(a.Started("Reset", run.name, run.changed, restart=True))
            self._store.dispatch(a.Ended(run.name))

    def add(self, job: Job) -> None:
        """Queue a command."""
        self._queue.append(job)
        self._next()

    def stop(self) -> None:
        """End the process and forget what waits."""
        self._queue.clear()
        if self._worker is not None:
            self._worker.stop()
        self._worker, self._job, self._at = None, None, ""
        self._store.dispatch(a.Stopped())

    def again(self) -> None:
        """What the process was doing when it died, and what waited behind it."""
        unfinished, self._unfinished = self._unfinished, ()
        for job in unfinished:
            # a process that died does not stand anywhere any more
            stands = job.command in ("step", "back", "reset")
            self.add(self._from_the_start(job) if stands else job)

    def _from_the_start(self, job: Job) -> Job:
        run = self._store.state.run(job.run)
        stage = (run.next_stage if run is not None else "") or STAGE_NAMES[0]
        arguments = {"until": stage, "conditions": dict(job.changed)}
        return Job(job.verb, job.run, "run", arguments, job.changed, restart=True)

    def close(self) -> None:
        """End the process without a word."""
        self._queue.clear()
        if self._worker is not None:
            self._worker.stop()
        self._worker, self._job, self._at = None, None, ""

    def expected(self, job: Job) -> float | None:
        """How long a job takes here, from the last of its kind or from the record."""
        if job.key in self._took:
            return self._took[job.key]
        if job.command == "diagnose" and not job.result:
            return diagnosis_takes(self._store.state)
        recorded = self._store.state.facts.seconds
        if self._worker is None or not self._worker.alive:
            return START_SECONDS + (recorded or 0.0)
        return recorded if recorded is not None and recorded >= 1.0 else None

    # -- answers ------------------------------------------------------------------------------

    def pump(self, timeout: float = 0.0) -> None:
        """Take the events that have arrived and show them."""
        if self._worker is None or self._job is None:
            return
        for event in self._worker.poll(timeout):
            self._take(event)
        self._next()

    def _next(self) -> None:
        if self._job is not None or not self._queue:
            return
        job = self._job = self._queue.popleft()
        expected = self.expected(job)
        self._began = time.monotonic()
        self._store.dispatch(
            a.Started(job.verb, job.run, job.changed, self._began, expected, job.restart)
        )
        try:
            if self._worker is None or not self._worker.alive:
                self._worker = self._start()
            self._worker.send(job.command, **job.arguments)
        except BaseException:
            self._queue.clear()
            self._job = None
            self._store.dispatch(a.Ended(job.run))
            raise

    def _take(self, event: dict[str, Any]) -> None:
        job = self._job
        if job is None:
            return
        kind = event.get("event")
        if kind == "stage_begun":
            self._store.dispatch(a.StageStarted(job.run, str(event["stage"])))
        elif kind == "stage_done":
            self._store.dispatch(a.StageReported(job.run, stage_view(event)))
        elif kind == "progress":
            self._store.dispatch(a.Progressed(str(event.get("text") or "")))
        elif kind == "done":
            self._done(job, event)
        elif kind == "error":
            self._fail(Problem(str(event.get("message"))))
        elif kind == "died":
            self._unfinished = (job, *self._queue)
            self._queue.clear()
            self._worker, self._job, self._at = None, None, ""
            self._store.dispatch(a.WorkerDied(str(event.get("message")), self._ways_on()))

    def _fail(self, problem: Problem) -> None:
        self._queue.clear()
        self._job = None
        self._store.dispatch(a.Failed("rail", problem))

    def _done(self, job: Job, event: dict[str, Any]) -> None:
        spent = time.monotonic() - self._began
        self._took[job.key] = spent
        if job.key == WHOLE:
            self._store.dispatch(a.Estimated(spent))
        self._job = None
        result = event.get("result") or {}
        if job.result:
            self._store.dispatch(a.ResultCame(job.result, result, MADE_HERE))
            self._end(job)
        elif job.command == "verdict":
            self._verdict(job, result)
            self._end(job)
        elif job.command == "diagnose":
            self._diagnosed(result)
            self._end(job)
        elif job.command == "trace":
            self._traced(job, event)
            self._end(job)
        else:
            self._at = job.run
            self._stages(job, result)

    def _end(self, job: Job) -> None:
        self._store.dispatch(a.Ended(job.run, more=bool(self._queue)))

    def _diagnosed(self, findings: dict[str, Any]) -> None:
        """A diagnosis traces too: its ranges are shown where no run has its own."""
        self._store.dispatch(a.FindingsCame(findings, "Diagnosed here, just now."))
        layers = self._saved_layers()
        if layers is not None:
            said = "From the diagnosis made here just now, with probes on (recorded conditions)"
            self._store.dispatch(a.SavedLayersCame(layers, said))

    def _traced(self, job: Job, event: dict[str, Any]) -> None:
        reproduction = (event.get("result") or {}).get("reproduction")
        if reproduction and job.run == ORIGINAL:
            self._verdict(job, reproduction)
        if event.get("layers") is not None:
            self._store.dispatch(a.LayersCame(job.run, layers_of(event)))

    def _verdict(self, job: Job, result: dict[str, Any]) -> None:
        self._store.dispatch(
            a.VerdictCame(
                job.run,
                str(result.get("verdict") or ""),
                str(result.get("sentence") or ""),
                result.get("survives_instrumentation"),
            )
        )

    def _stages(self, job: Job, result: dict[str, Any]) -> None:
        views = stage_views(result.get("stages") or (), self._store.state.facts.missing)
        self._store.dispatch(a.StagesReported(job.run, views))
        effect = tuple(str(one.get("why")) for one in result.get("without_effect") or ())
        whole = job.command == "run" and job.arguments.get("until") is None
        finished = whole or bool(views and views[-1].status in ("clean", "bad", "alert", "skip"))
        more = bool(self._queue) or job.verb in ("Replay", "Original again")
        self._store.dispatch(a.Ended(job.run, finished, effect, more))
        if job.verb == "Replay":
            self._after_run(job)
        elif job.verb == "Original again":
            self._after_original(job)

    def _after_run(self, job: Job) -> None:
        """A finite diagnostic run proves nothing until Original still fails beside it."""
        run = self._store.state.run(job.run)
        if run is not None and run.bad is None and run.finished:
            arguments: dict[str, Any] = {"until": None, "conditions": {}}
            again = Job("Original again", ORIGINAL, "run", arguments, (), True, job.run)
            self.add(again)
        else:
            self._store.dispatch(a.OriginalRepeated(job.run, self._moved(run)))
            self.trace(job.run, job.changed)

    def _moved(self, run: Run | None) -> str:
        facts = self._store.state.facts
        if run is None or run.bad is None:
            return ""
        if run.bad.name == facts.stage and run.bad.tensor == facts.tensor:
            return "It fails the same way."
        return f"It fails elsewhere: {run_result(run)}."

    def _after_original(self, job: Job) -> None:
        after = self._store.state.run(job.after)
        original = self._store.state.run(ORIGINAL)
        if after is None or original is None:
            return
        if original.bad is not None:
            said = finding_of(after, changed_words(after.changed))
            text = f"Original, run again after it: still {run_result(original)}. {said}"
        else:
            text = (
                f"Original, run again after it: {run_result(original)} too. So this shows nothing: "
                "the failure did not come back here under the recorded conditions."
            )
        self._store.dispatch(a.OriginalRepeated(after.name, text))
        self._store.dispatch(a.RunShown(after.name))
        self.trace(after.name, after.changed)


def _changed(run: Run | None) -> tuple[tuple[str, str], ...]:
    return run.changed if run is not None else ()
