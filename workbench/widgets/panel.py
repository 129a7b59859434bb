"""`Workbench`: the panel. Everything that can be clicked is a method here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from workbench.errors import CannotRunError, UsageError
from workbench.evidence import open_bundle
from workbench.widgets import actions as a
from workbench.widgets import parts
from workbench.widgets.clock import Clock, running_loop
from workbench.widgets.code import to_code
from workbench.widgets.code_text import CodeReader
from workbench.widgets.commands import Commands
from workbench.widgets.conditions import Conditions
from workbench.widgets.drawers import Drawers
from workbench.widgets.facts import read_facts
from workbench.widgets.findings import summary_text
from workbench.widgets.header import Header, card_output, static_card
from workbench.widgets.jobs import START_SECONDS, Jobs, Worker
from workbench.widgets.loading import Loading
from workbench.widgets.main import Main
from workbench.widgets.notes import Notes
from workbench.widgets.rail import Rail
from workbench.widgets.reducer import changed_conditions, next_run_name
from workbench.widgets.report_drawer import ReportDrawer
from workbench.widgets.runs import Runs
from workbench.widgets.saved import read_saved, saved_layers
from workbench.widgets.sharing import Sharing, with_notes
from workbench.widgets.shell import Shell
from workbench.widgets.state import State
from workbench.widgets.store import Store
from workbench.widgets.tabs import makers
from workbench.widgets.tasks import Tasks
from workbench.widgets.trust import TrustCard
from workbench.widgets.trusting import Trusting
from workbench.widgets.ways_on import WaysOn
from workbench.widgets.words import value_text

AGAIN = "Run this cell again for the live panel."


class Workbench(Tasks, Sharing, Trusting, WaysOn, Clock):
    """The panel over one bundle.

    Opening it reads recorded facts and runs nothing that the bundle names.

    Args:
        bundle: An opened bundle, or its path.
        step: The training step: a class or object that can be imported, or a reference such as
            ``"train:Step"`` or ``"train.py:Step"``. Giving it means that it may be run.
        compare: Another bundle, or its path, that the Compare tab compares this one with.

    Raises:
        UsageError: The step has no place it can be imported from.
        BundleError: There is no readable bundle.
    """

    _kept: Any = None  # the temporary directory of a bundle made from a step

    def __init__(
        self, bundle: Any, step: Any = None, compare: Any = None, *, worker: Any = None
    ) -> None:
        self.bundle = open_bundle(bundle) if isinstance(bundle, str | Path) else bundle
        self.other = open_bundle(compare) if isinstance(compare, str | Path) else compare
        self._step, self._make_worker = step, worker
        self._store = Store(_first_state(self.bundle, step))
        self._jobs = Jobs(
            self._store,
            self._start_worker,
            lambda: saved_layers(self.bundle),
            self._ways_on,
        )
        self._task: asyncio.Task[None] | None = None
        self._loop = running_loop()
        self.shell = Shell()
        self._commands = Commands(self)
        self._loading = Loading(self._store, self.bundle)
        self._complete = self._loading.complete
        self._build()
        self._loading.start(self._loop)

    @classmethod
    def from_step(
        cls,
        step: Any,
        batch: Any = None,
        *,
        micro_batches: Sequence[Any] | None = None,
        checkpoint: Any = None,
        directory: str | Path | None = None,
    ) -> Workbench:
        """Open a step that was not recorded: it is run once here, and kept as a bundle.

        Args:
            step: The training step, an object or its class, from a module or a file: the replay
                process must find it again.
            batch: The batch.
            micro_batches: Several batches whose gradients are accumulated, instead of one.
            checkpoint: File of parameters and, where it has it, optimizer state to start from:
                safetensors or torch.save's, read without running code in it; or that mapping.
            directory: Where the bundle goes; a temporary directory, removed with the kernel, when
                None.

        Raises:
            UsageError: ``step`` is no training step, or there is no such checkpoint.
            CannotRunError: The checkpoint cannot be read or does not fit.
        """
        from tempfile import TemporaryDirectory

        from workbench.widgets.live_step import MicroBatches, record_step

        kept = TemporaryDirectory(prefix="workbench-") if directory is None else None
        where = Path(kept.name if kept is not None else str(directory))
        batches = batch if micro_batches is None else MicroBatches(micro_batches)
        panel = cls(record_step(step, batches, checkpoint, where), step=step)
        panel._kept = kept
        return panel

    # -- what is shown ------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """Everything on screen, as one frozen value."""
        return self._store.state

    @property
    def last_error(self) -> Exception | None:
        """The last failure a callback met, also shown in its region."""
        return self._store.guard.last_error

    def to_code(self) -> str:
        """Python for exactly the state on screen."""
        return to_code(self.state)

    def summary(self) -> str:
        """The header as text, with the bundle's digest."""
        return summary_text(self.state)

    def _build(self) -> None:
        store, act = self._store, self._commands.act
        reader = CodeReader(self.bundle)
        self.header, self.rail = Header(store, act), Rail(store, act)
        self.conditions, self.runs = Conditions(store, act), Runs(store, act)
        self.trust, self.drawers = TrustCard(store, act, reader), Drawers(store, act)
        self.notes_drawer, self.report_drawer = Notes(store, act), ReportDrawer(store, act)
        tabs = makers(store, act, self.bundle, lambda: self.other)
        self.main = Main(store, tabs, self.notes_drawer)
        regions: list[Any] = [
            self.header,
            self.report_drawer,
            self.drawers,
            self.rail,
            self.trust,
            self.conditions,
            self.runs,
            self.main,
            self.notes_drawer,
        ]
        for region in regions:
            store.subscribe(region)
        store.watch(self._swap_trust)
        self._swap_trust(self.state)
        placed = (self.trust, self.notes_drawer)  # inside another region
        order: list[Any] = [region for region in regions if region not in placed]
        self.widget = parts.column([self.shell, *(one.widget for one in order)], "wb-root")
        guard = store.guard
        self.shell.listen(lambda action: guard.run("header", lambda: act(action)))
        self.shell.observe(guard.wrap("header", self._theme), names=["dark", "width"])

    def _swap_trust(self, state: State) -> None:
        wanted = self.trust.widget if state.trust.asked else self.rail.row
        if self.rail.slot.children != (wanted,):
            self.rail.slot.children = (wanted,)

    def _theme(self) -> None:
        look = (("dark", self.shell.dark), ("width", self.shell.width))
        self._store.dispatch(a.Looked(look))

    def _ipython_display_(self, **_kwargs: Any) -> None:
        """Two outputs: a static card, which the live panel hides, and the panel.

        JupyterLab shows "model not found" in the place of a saved panel without its kernel,
        whatever else that output holds; the card is an output of its own, so that it stays.
        """
        from IPython.display import display

        card = {"text/html": card_output(self.state), "text/plain": self.summary()}
        live = {**self.widget._repr_mimebundle_(), "text/plain": AGAIN}
        display(card, raw=True)
        display(live, raw=True)

    def _repr_mimebundle_(self, **_kwargs: Any) -> dict[str, Any]:
        """The live panel, with the header as plain HTML and text for readers without a kernel."""
        shown: dict[str, Any] = dict(self.widget._repr_mimebundle_())
        shown["text/html"] = static_card(self.state)
        shown["text/plain"] = self.summary()
        return shown

    # -- replaying ----------------------------------------------------------------------------

    def step(self) -> None:
        """Run the next stage of the run on screen."""
        self._replaying("step", lambda: self._jobs.step(self.state.shown))

    def back(self) -> None:
        """Run again from the start, up to the stage before."""
        run = self.state.shown
        if run is not None and run.reached:
            self._replaying("back", lambda: self._jobs.back(run))

    def run_to_first_bad(self) -> None:
        """Run until something goes bad, compare with the record, and trace it."""
        run = self.state.shown
        self._replaying("run_to_first_bad", lambda: self._jobs.run_to_first_bad(run))

    def run_to(self, stage: str) -> None:
        """Run from the start up to and including a stage.

        Raises:
            UsageError: There is no such stage, or the bundle cannot replay it.
        """
        views = {view.name: view for view in self.state.facts.stages}
        if stage not in views:
            raise UsageError(
                f"There is no stage {stage[:40]!r} to run to, so nothing was run. The stages are "
                f"{', '.join(views)}."
            )
        missing = dict(self.state.facts.missing)
        if stage in missing:
            raise UsageError(
                f"The stage {stage.replace('_', ' ')!r} is not available, so nothing was run. "
                f"{missing[stage]}"
            )
        run = self.state.shown
        self._replaying(f"run_to:{stage}", lambda: self._jobs.run_to(run, stage))

    def reset(self) -> None:
        """Forget where the run on screen stands."""
        run = self.state.shown
        if run is not None:
            self._replaying("reset", lambda: self._jobs.reset(run))

    def trace(self) -> None:
        """Run once more with probes on, for the ranges of every layer."""
        run = self.state.shown
        name, changed = (run.name, run.changed) if run is not None else ("Original", ())
        self._replaying("trace", lambda: self._jobs.trace(name, changed), waits=True)

    def set_condition(self, key: str, value: Any) -> None:
        """Set a switch. Nothing runs until ``replay``.

        Raises:
            UsageError: No such condition, an illegal value, or a switch without effect here.
        """
        self._loading.complete()
        switch = self.state.facts.switch(key)
        checked = value_text(getattr(self.bundle.conditions.replace(**{key: value}), key))
        if switch is not None and switch.why_not and checked != switch.recorded:
            raise UsageError(
                f"The condition {key!r} was not set to {checked!r}. {switch.why_not} A run with it "
                "would be the same run under another name. Choose another condition."
            )
        self._store.dispatch(a.ConditionSet(key, checked))

    def undo_conditions(self) -> None:
        """Put every switch back to what was recorded."""
        self._store.dispatch(a.ConditionsUndone())

    def replay(self) -> None:
        """Run the step under the switches as they are set, and keep the run."""
        changed = changed_conditions(self.state)
        if not changed:
            self._replaying("replay", lambda: self._jobs.run_to_first_bad(None))
            return
        self._replaying("replay", lambda: self._jobs.replay(next_run_name(self.state), changed))

    def diagnose(self, anomaly: bool = False) -> None:
        """Find where the value was born, in a process of its own.

        Args:
            anomaly: Whether autograd's anomaly mode is asked too, in one more replay.
        """
        name = "ask_anomaly" if anomaly else "diagnose"
        self._replaying(name, lambda: self._jobs.diagnose(anomaly=anomaly), waits=True)

    def stop(self) -> None:
        """End the replay process now."""
        self._jobs.stop()

    def close(self) -> None:
        """End the replay process and take the widgets out of the page."""
        self._loading.close()
        if self._report is not None:
            self._report.stop()
        self._jobs.close()
        if self._task is not None:
            self._task.cancel()
        parts.close(self.widget)
        if self._kept is not None:
            self._kept.cleanup()

    # -- the replay process -------------------------------------------------------------------

    def _replaying(
        self,
        pending: str,
        start: Callable[[], None],
        *,
        waits: bool = False,
        runs_code: bool = True,
    ) -> None:
        if runs_code and self.state.no_replay:
            raise CannotRunError(
                f"Nothing was replayed, since not even the input of the step is there. "
                f"{self.state.no_replay} Recorded evidence is shown."
            )
        if runs_code and self._step is None and not self.state.trust.given:
            self._store.dispatch(a.TrustAsked(pending))
            return
        if self._jobs.busy and not waits:
            raise UsageError(
                "A replay is running, so nothing else was started. Wait for it, or press Stop."
            )
        start()
        self._watch()

    def _start_worker(self) -> Worker:
        from workbench.widgets.process import start

        if self._make_worker is not None:
            made: Worker = self._make_worker()
            return made
        trust = self.state.trust
        step: Any = self._step
        if step is None and trust.given == "own":
            step = trust.reference or self.state.facts.step_reference or None
        return start(self.bundle, step, "source" if trust.given == "source" else None)


def _first_state(bundle: Any, step: Any) -> State:
    from dataclasses import replace

    facts = read_facts(bundle)
    state = State(facts=facts, takes=START_SECONDS + (facts.seconds or 0.0))
    if step is not None:
        state = replace(state, trust=replace(state.trust, given="own"))
    return with_notes(bundle, read_saved(bundle, state))
