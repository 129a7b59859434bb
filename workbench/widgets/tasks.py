"""What the panel can ask for besides stepping: comparisons, sweeps, counterfactuals, minimising.

Each is a method of `Workbench`, a button or link in a tab, and one command of the replay process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from workbench.errors import UsageError
from workbench.widgets import actions as a
from workbench.widgets.findings import items
from workbench.widgets.jobs import Job, Jobs
from workbench.widgets.presets import PRESETS
from workbench.widgets.state import ORIGINAL, SECTIONS, TABS, VIEWS, State
from workbench.widgets.store import Store


class Tasks:
    """The part of `Workbench` that asks for longer tasks and sets how the panel is looked at."""

    bundle: Any
    other: Any
    _store: Store
    _jobs: Jobs
    _replaying: Callable[..., None]
    _complete: Callable[[], None]
    set_condition: Callable[[str, Any], None]
    replay: Callable[[], None]

    @property
    def state(self) -> State:
        """Everything on screen, as one frozen value."""
        return self._store.state

    # -- looking ------------------------------------------------------------------------------

    def show(
        self,
        tab: str | None = None,
        *,
        run: str | None = None,
        stage: str | None = None,
        tensors: str | None = None,
        view: str | None = None,
        layer: str | None = None,
        search: str | None = None,
        section: str | None = None,
        record: int | None = None,
    ) -> None:
        """Look at something else; nothing is run.

        Args:
            tab: ``origin``, ``ranges``, ``timeline``, ``compare`` or ``evidence``.
            run: Name of a run, or ``"Recorded"``.
            stage: Stage the rail's line is about.
            tensors: Kind of tensor in Ranges: ``activations``, ``gradients``, ….
            view: ``"ranges"`` or ``"heat map"``.
            layer: Name of the layer whose card is shown.
            search: Text that layer names must hold.
            section: Section of Evidence: ``batch``, ``state``, ….
            record: Step whose record stands under the timeline.

        Raises:
            UsageError: There is no such tab, run, view, section or layer.
        """
        _check("tab", tab, TABS)
        _check("run", run, ("Recorded", *(one.name for one in self.state.runs)))
        _check("view", view, VIEWS)
        _check("section", section, SECTIONS)
        if run is not None:
            self._store.dispatch(a.RunShown(run))
        wanted = {"stage": stage, "tensor_kind": tensors, "view": view, "search": search}
        wanted_too = {**wanted, "section": section, "record": record}
        changes: list[tuple[str, Any]] = [(k, v) for k, v in wanted_too.items() if v is not None]
        if tab is not None:
            changes.append(("tab", tab))
        self._store.dispatch(a.Looked(tuple(changes)))
        if layer is not None:
            self._choose_layer(layer)

    def show_event(self, number: int) -> None:
        """Show the card of the layer that an op of the trace wrote, in Ranges.

        Args:
            number: The op's number, as the chain of the findings has it.

        Raises:
            UsageError: No layer on screen was written by it.
        """
        from workbench.charts.arrays import rows_of
        from workbench.widgets.ranges import shown_layers

        layers, _ = shown_layers(self.state)
        events = () if layers is None else layers.columns.get("event", ())
        for kind in ("activations", "gradients") if len(events) else ():
            places = rows_of(layers, kind)
            found = [i for i, row in enumerate(places) if int(events[int(row)]) == number]
            if found:
                look = (("tab", "ranges"), ("tensor_kind", kind), ("layer", found[0]))
                self._store.dispatch(a.Looked((*look, ("search", ""), ("group", ""))))
                return
        raise UsageError(
            f"No layer of the ranges on screen was written by op number {number}: it lies inside "
            "a module. The layers around it are in Ranges."
        )

    def _choose_layer(self, label: str) -> None:
        from workbench.widgets.layer_rows import layer_rows
        from workbench.widgets.ranges import shown_layers

        layers, _ = shown_layers(self.state)
        rows = layer_rows(layers, self.state.look.tensor_kind)
        index = next((row.index for row in rows if row.label == label), None)
        if index is None:
            raise UsageError(
                f"No layer on screen is called {label[:80]!r}, so the same one stays chosen. "
                f"There are {len(rows):,}; the first are "
                f"{', '.join(row.label for row in rows[:5]) or 'none: replay first'}."
            )
        self._store.dispatch(a.Looked((("layer", index),)))

    # -- conditions ---------------------------------------------------------------------------

    def preset(self, name: str) -> None:
        """Set the switches to a named set; nothing runs until ``replay``.

        Args:
            name: ``original``, ``float32``, ``bfloat16``, ``float64``, ``deterministic``,
                ``no cuDNN`` or ``math attention``.

        Raises:
            UsageError: There is no such preset, or nothing of it has an effect here.
        """
        _check("preset", name, tuple(PRESETS))
        self._complete()
        self._store.dispatch(a.PresetChosen(name, PRESETS[name]))
        if PRESETS[name] and not self.state.wanted:
            raise UsageError(
                f"The preset {name!r} changes nothing here, so nothing will be run: "
                f"{' '.join(self._why_nothing(PRESETS[name])) or 'it is what was recorded.'} "
                "Choose another one, or a switch below Conditions."
            )

    def _why_nothing(self, settings: Mapping[str, str]) -> list[str]:
        found = (self.state.facts.switch(key) for key in settings)
        return list(dict.fromkeys(one.why_not for one in found if one and one.why_not))

    def replay_samples(self, samples: Iterable[int]) -> None:
        """Replay with only some samples of each micro-batch, as a diagnostic run.

        Args:
            samples: Their indices in the batch.
        """
        chosen = tuple(sorted(set(samples)))
        self._store.dispatch(a.Looked((("samples", chosen),)))
        self.set_condition("keep_samples", chosen)
        self.replay()

    # -- longer tasks -------------------------------------------------------------------------

    def compare(self, first: str = "", second: str = "") -> None:
        """Run two kept runs' conditions again without probes and compare them tensor by tensor.

        Args:
            first: Name of a run; Original when empty.
            second: Name of the other; the last diagnostic run when empty.

        Raises:
            UsageError: There is no such run, or only one.
        """
        names = tuple(run.name for run in self.state.runs)
        diagnostic = [run.name for run in self.state.runs if run.diagnostic]
        first = first or self.state.look.against[0] or ORIGINAL
        second = second or self.state.look.against[1] or (diagnostic[-1] if diagnostic else "")
        if not second or first == second:
            raise UsageError(
                "There is only one set of conditions to look at, so there is nothing to compare. "
                "Change a switch and replay, then compare that run with Original."
            )
        for name in (first, second):
            _check("run", name, (ORIGINAL, *names))
        changed = {run.name: dict(run.changed) for run in self.state.runs}
        arguments = {"first": changed.get(first, {}), "second": changed.get(second, {})}
        job = Job("Compare", "", "compare", arguments, result="comparison")
        look = (("against", (first, second)), ("tab", "compare"))
        self._ask("compare", job, look)

    def compare_bundles(self, other: str | Path | None = None) -> None:
        """Compare the recorded tensors of this bundle with those of another; runs no code.

        Args:
            other: Path of the other bundle; the one the panel was opened with when None.

        Raises:
            UsageError: No other bundle was named.
            BundleError: It cannot be read.
        """
        from workbench.evidence import open_bundle

        if other is not None:
            self.other = open_bundle(other)
        if self.other is None:
            raise UsageError(
                "No other bundle was named, so nothing was compared. Give its path, or open the "
                "panel with Workbench(bundle, compare=other)."
            )
        job = Job(
            "Compare bundles", "", "compare", {"other": str(self.other.path)}, result="bundles"
        )
        look = (("tab", "compare"), ("other", str(self.other.path)))
        self._store.dispatch(a.Looked(look))
        self._replaying("", lambda: self._jobs.add(job), waits=True, runs_code=False)

    def sweep(self, cells: Iterable[Mapping[str, Any]] | None = None) -> None:
        """Replay under many conditions, one change at a time, and keep the table.

        Args:
            cells: Changes of conditions, each by name; the usual ones when None.
        """
        arguments = {"task": "sweep", "cells": None if cells is None else [dict(c) for c in cells]}
        self._ask("sweep", Job("Sweep", "", "diagnose", arguments, result="sweep"))

    def minimal(self) -> None:
        """Find the smallest set of changed conditions under which the step is finite."""
        job = Job("Minimal set", "", "diagnose", {"task": "minimal"}, result="minimal")
        self._ask("minimal", job)

    def ladder(self) -> None:
        """Run the step uncompiled and under each backend of ``torch.compile``."""
        job = Job("Backend ladder", "", "diagnose", {"task": "ladder"}, result="ladder")
        self._ask("ladder", job)

    def minimize(self) -> None:
        """Find the smallest failing samples and write a script with just the op's inputs."""
        job = Job("Minimise", "", "diagnose", {"task": "minimize"}, result="minimize")
        self._ask("minimize", job)

    def counterfactual(self, number: int) -> None:
        """Run one counterfactual of the findings again, here.

        Args:
            number: Its place in ``findings["counterfactuals"]``.

        Raises:
            UsageError: There is no such counterfactual.
        """
        rows = items(self.state.findings, "counterfactuals")
        if not 0 <= number < len(rows):
            raise UsageError(
                f"There is no counterfactual number {number}: the findings have {len(rows)}. "
                "Diagnose first."
            )
        name = str(rows[number].get("intervention"))
        arguments = {"task": "counterfactual", "intervention": name}
        job = Job("Counterfactual", "", "diagnose", arguments, result=f"counterfactual:{number}")
        self._ask(f"counterfactual:{number}", job)

    def _ask(self, pending: str, job: Job, look: tuple[tuple[str, Any], ...] = ()) -> None:
        if look:
            self._store.dispatch(a.Looked(look))
        self._replaying(pending, lambda: self._jobs.add(job), waits=True)


def _check(what: str, value: str | None, known: Iterable[str]) -> None:
    names = tuple(known)
    if value is not None and value not in names:
        raise UsageError(
            f"There is no {what} {value[:80]!r} to choose, so nothing was changed. There is: "
            f"{', '.join(names)}."
        )
