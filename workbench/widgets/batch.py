"""The batch of the step: its tensors, its samples to choose from, and what minimising found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ipywidgets as w

from workbench.errors import WorkbenchError
from workbench.evidence.wording import counted
from workbench.widgets import parts
from workbench.widgets.actions import Looked
from workbench.widgets.findings import items, mapping
from workbench.widgets.markup import esc, name, note
from workbench.widgets.parts import Act
from workbench.widgets.saved_results import read_results
from workbench.widgets.state import Result, State
from workbench.widgets.store import Store
from workbench.widgets.words import seconds

MOST_SAMPLES = 2000
MINIMISE = (
    "Minimise finds the smallest set that still fails and writes a script with just the op's "
    "inputs."
)
NOTHING_FAILS = "There is nothing to minimise: no value in this step is non-finite."
PROBES = 12
"""About how many replays minimising takes, for the estimate."""


class Batch:
    """Samples of the batch: choose some and replay with them, or find the smallest failing set.

    Args:
        store: The panel's state.
        act: Starts replays.
        bundle: The opened bundle.
    """

    def __init__(self, store: Store, act: Act, bundle: Any) -> None:
        self._store, self._bundle = store, bundle
        self._act = act
        wrap = store.guard.wrap
        self._saved: dict[str, Result] | None = None
        self._facts: tuple[int, list[str]] | None = None
        self._list = w.SelectMultiple(options=[], rows=8, layout=w.Layout(width="330px"))
        self._list.add_class("wb-samples")
        self._list.observe(wrap("evidence", self._chosen), names="value")
        self._run = parts.button(
            "Replay with these", wrap("evidence", lambda: act("replay_samples"))
        )
        self._least = parts.button("Minimise", wrap("evidence", lambda: act("minimize")))
        self._said = parts.html("", "wb-samples-said")
        self._none = parts.html("")
        buttons = parts.row([self._run, self._least], "wb-controls")
        right = parts.column([buttons, self._said], "wb-samples-right")
        self._choice = parts.row([self._list, right], "wb-samples-row")
        self.widget = parts.column([self._none, self._choice], "wb-batch")
        self._drawing = False

    def _chosen(self) -> None:
        if not self._drawing:
            self._store.dispatch(Looked((("samples", tuple(self._list.value)),)))

    def draw(self, state: State) -> None:
        """Draw the samples, what is chosen, and what minimising found."""
        if self._facts is None:
            self._facts = samples_of(self._bundle)
            self._saved = read_results(self._bundle)
        count, ids = self._facts
        parts.show(self._choice, count > 0)
        whole = self._bundle.has("batch.safetensors")
        one = "Its tensors share no first dimension, so no samples can be chosen."
        self._none.value = note(one) if whole and not count else ""
        if not count:
            return
        options = sample_options(count, ids, marked_samples(state, self._bundle))
        self._drawing = True
        try:
            if list(self._list.options) != options:
                self._list.options = options
            self._list.value = tuple(i for i in state.look.samples if i < len(options))
        finally:
            self._drawing = False
        chosen = len(self._list.value)
        busy = state.activity is not None or bool(state.no_replay)
        takes = seconds(state.takes)
        self._run.description = f"Replay with {chosen:,} of {count:,}" + (
            f", {takes}" if takes else ""
        )
        self._run.disabled = busy or not chosen or chosen == count
        least = seconds(None if state.takes is None else 4.0 + PROBES * max(state.takes - 4.0, 0.1))
        self._least.description = f"Minimise, {least}" if least else "Minimise"
        fails = state.facts.kind == "nonfinite"
        self._least.disabled = busy or not fails
        self._least.tooltip = "Minimise" if fails else "Nothing in this step is non-finite."
        found = state.result("minimize") or (self._saved or {}).get("minimize")
        self._said.value = said_of(found, fails)


def samples_of(bundle: Any) -> tuple[int, list[str]]:
    """How many samples the batch has, and their recorded names where there are some."""
    rel = "batch.safetensors"
    if not bundle.has(rel):
        return 0, []
    shapes = [list(facts["shape"]) for facts in bundle.tensor_index(rel).values()]
    sizes = {shape[0] for shape in shapes if shape}
    if len(sizes) != 1:
        return 0, []
    try:
        ledger: Sequence[Mapping[str, Any]] = bundle.ledger()
    except WorkbenchError:
        ledger = []
    ids = ledger[-1].get("sample_ids") if ledger else None
    return int(sizes.pop()), [str(one) for one in ids] if isinstance(ids, list) else []


def marked_samples(state: State, bundle: Any) -> dict[int, str]:
    """Samples that stand out, and why: outside their domain, or where the value was born."""
    found: dict[int, str] = {}
    for origin in items(state.findings, "origins"):
        tensor = mapping(origin.get("tensor"))
        for sample in mapping(tensor.get("positions")).get("samples") or ():
            found[int(sample)] = "✕ bad value at the origin"
    for row in items(mapping(state.findings).get("envelope"), "left"):
        if row.get("what") == "sample" and str(row.get("name")).isdecimal():
            found[int(str(row["name"]))] = "! its loss alone left the usual range"
    try:
        recorded = bundle.evidence().get("input") if bundle.has("evidence.json") else None
    except WorkbenchError:
        recorded = None
    for one in recorded or ():
        index = mapping(one).get("index")
        if isinstance(index, list) and index:
            found[int(index[0])] = f"! {mapping(one).get('field')}: {mapping(one).get('why')}"
    return found


def sample_options(count: int, ids: list[str], marked: Mapping[int, str]) -> list[tuple[str, int]]:
    """What the list shows: the marked samples first, then the others in order."""
    order = [i for i in sorted(marked) if i < count]
    order += [i for i in range(min(count, MOST_SAMPLES)) if i not in marked]
    made = []
    for i in order:
        sample_id = f" · {ids[i]}" if i < len(ids) else ""
        why = f"   {marked[i]}" if i in marked else ""
        made.append((f"sample {i:,}{sample_id}{why}", i))
    return made


def said_of(found: Result | None, fails: bool) -> str:
    """What minimising found, and where the script is; before it, what the buttons do."""
    if found is None:
        said = "Choose samples to replay with only these: a diagnostic run. "
        return note(esc(said + (MINIMISE if fails else NOTHING_FAILS)))
    data = mapping(found.data)
    lines = []
    samples = data.get("samples")
    if isinstance(samples, list) and samples:
        shown = ", ".join(str(one) for one in samples[:20])
        lines.append(
            f"Fails the same way with {len(samples):,} of "
            f"{counted(int(data.get('of') or 0), 'sample')}: {shown}."
        )
    lines.append(f"{data.get('op')} alone, with its real inputs: {data.get('printed')}.")
    body = "".join(f"<p>{esc(line)}</p>" for line in lines)
    script = name(str(data.get("script") or ""), 90)
    head = f'<p class="wb-dim">{esc(found.source)}</p>'
    return f"{head}{body}<p>Script: {script}</p>"
