"""The Evidence tab: what was recorded, read from the bundle piece by piece as it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets as w

from workbench.charts.words import number
from workbench.errors import WorkbenchError
from workbench.evidence.wording import count_words, counted, lacking
from workbench.widgets import parts
from workbench.widgets.actions import Looked
from workbench.widgets.batch import Batch
from workbench.widgets.findings import items, mapping
from workbench.widgets.markup import esc, facts_table, link, name, note, table
from workbench.widgets.parts import Act
from workbench.widgets.state import SECTIONS, State
from workbench.widgets.store import Store

MAX_ROWS = 200


class Evidence:
    """Region: one section of the bundle at a time.

    Args:
        store: The panel's state.
        act: Starts replays with chosen samples.
        bundle: The opened bundle.
    """

    name = "evidence"

    def __init__(self, store: Store, act: Act, bundle: Any) -> None:
        self._store, self._bundle = store, bundle
        options = [(one.capitalize(), one) for one in SECTIONS]
        self._sections = w.ToggleButtons(options=options, value="batch")
        self._sections.add_class("wb-sections")
        self._sections.observe(store.guard.wrap(self.name, self._chosen), names="value")
        self._body = parts.html("", "wb-evidence")
        self._batch = Batch(store, act, bundle)
        self.widget = parts.column([self._sections, self._batch.widget, self._body])

    def _chosen(self) -> None:
        self._store.dispatch(Looked((("section", self._sections.value),)))

    def part(self, state: State) -> object:
        """Section, and what was opened in it."""
        opened = state.look.open & {"all_environment", "verify"}
        batch = (state.look.samples, state.result("minimize"), state.activity is not None)
        known = state.facts.differing
        return (state.look.section, opened, id(state.findings), batch, state.takes, known)

    def draw(self, state: State) -> None:
        """Write one section; a damaged file shows its reason and the others still open."""
        makers: dict[str, Callable[[State], str]] = {
            "batch": lambda _s: tensors_section(self._bundle, ("batch.safetensors",)),
            "state": lambda _s: tensors_section(self._bundle, STATE_FILES),
            "environment": lambda s: environment_section(self._bundle, s),
            "checkpoints": lambda s: checkpoints_section(self._bundle, s),
            "files": lambda s: files_section(self._bundle, s),
        }
        self._sections.value = state.look.section
        parts.show(self._batch.widget, state.look.section == "batch")
        try:
            if state.look.section == "batch":
                self._batch.draw(state)
            self._body.value = makers[state.look.section](state)
        except WorkbenchError as error:
            self._body.value = note(esc(error), "problem")


STORED = "tensors."
"""What the names of a model's tensors begin with in its file."""
STATISTICS = "statistics.json"
REDUCED = {
    "batch.safetensors": "batch.",
    "state/optimizer.safetensors": "optimizer:",
    "gradients.safetensors": "gradient:",
}
"""How the statistics of a file's tensors are named in a redacted copy."""
STATE_FILES = ("state/model.safetensors", "state/optimizer.safetensors", "gradients.safetensors")


def tensors_section(bundle: Any, files: tuple[str, ...]) -> str:
    """Names, dtypes and shapes; no value of the training data is shown."""
    blocks = []
    for rel in files:
        if not bundle.has(rel):
            why = bundle.manifest.dropped.get(rel, "")
            said = f"not in the bundle: {esc(why)}." if why else "not in the bundle."
            blocks.append(note(f"{name(rel)}: {said}") + statistics_of(bundle, rel))
            continue
        found = bundle.tensor_index(rel)
        rows = [
            (
                name(one.removeprefix(STORED)),
                esc(str(facts["dtype"]).removeprefix("torch.")),
                esc(facts["shape"]),
            )
            for one, facts in list(found.items())[:MAX_ROWS]
        ]
        more = len(found) - MAX_ROWS
        tail = note(f"{counted(more, 'more tensor')} in this file.") if more > 0 else ""
        blocks.append(f"<h4>{name(rel)}</h4>" + table(("Tensor", "dtype", "Shape"), rows) + tail)
    return "".join(blocks)


def statistics_of(bundle: Any, rel: str) -> str:
    """What a redacted copy keeps of a file's tensors: shapes, counts and rounded ranges."""
    recorded = bundle.json(STATISTICS) if bundle.has(STATISTICS) else {}
    start = REDUCED.get(rel, "")
    found = [(k, mapping(v)) for k, v in mapping(recorded).items() if start and k.startswith(start)]
    rows = [
        (
            name(key.removeprefix(start)),
            esc(str(one.get("dtype", "")).removeprefix("torch.")),
            esc(one.get("shape", "")),
            esc(count_words({k: n for k, n in one.items() if type(n) is int})),
            value(one.get("min")),
            value(one.get("max")),
        )
        for key, one in found[:MAX_ROWS]
    ]
    if not rows:
        return ""
    more = len(found) - MAX_ROWS
    tail = note(f"{counted(more, 'more tensor')} in {name(STATISTICS)}.") if more > 0 else ""
    return table(("Tensor", "dtype", "Shape", "Elements", "Min", "Max"), rows) + tail


def environment_section(bundle: Any, state: State) -> str:
    """What differs between there and here; everything on request."""
    recorded = bundle.environment()
    if not recorded:
        return note("The bundle has no environment record.")
    differing = state.facts.differing
    if differing is None:
        body = note("This machine is still being asked what it is.")
    elif differing:
        rows = [tuple(name(one, 200) for one in row) for row in differing]
        body = table(("Differs", "Recorded", "Here"), rows)
    else:
        body = note("Nothing differs between the recorded environment and this one.")
    opened = "all_environment" in state.look.open
    body += "<p>" + link("all_environment", "Show less" if opened else "Show all") + "</p>"
    if opened:
        body += facts_table((str(key), value(one)) for key, one in recorded.items())
    return body


def _near(bundle: Any) -> list[Mapping[str, Any]]:
    """The last checkpoints with their states, where the run kept track of them."""
    evidence = bundle.evidence() if bundle.has("evidence.json") else {}
    return items(mapping(evidence).get("checkpoints"), "near")


def _before(near: list[Mapping[str, Any]], step: int) -> Any:
    """The name of the last checkpoint that was saved before a step."""
    earlier = [one for one in near if isinstance(at := one.get("step"), int) and at < step]
    return max(earlier, key=lambda one: one["step"]).get("name") if earlier else None


HOLDERS = {
    "parameters": "in parameters",
    "buffers": "in buffers",
    "optimizer_state": "in optimizer state",
    "checkpoints": "in later checkpoints",
    "collective": "sent to other ranks",
}
"""Where a bad value may be after the step, as a diagnosis says it."""


def checkpoints_section(bundle: Any, state: State) -> str:
    """Which checkpoint came before, and which ones a diagnosis calls touched."""
    ledger = bundle.ledger() if bundle.has("ledger.jsonl") else []
    parent = ledger[-1].get("checkpoint_parent") if ledger else None
    near = _near(bundle)
    named = [f"{one.get('name')}: {one.get('state')}" for one in near]
    rows = [
        ("Last checkpoint before the step", value(parent or _before(near, bundle.manifest.step))),
        ("Checkpoints near the incident", value(named or None)),
    ]
    touched = mapping(mapping(state.findings).get("contamination"))
    if not touched:
        rows.append(("Bad values", esc("Not known: not diagnosed here yet.")))
    reasons = mapping(touched.get("reasons"))
    for key, label in HOLDERS.items():
        if touched.get(key) is not None:
            rows.append((f"Bad values {label}", value(touched[key])))
        elif touched:
            rows.append(
                (f"Bad values {label}", esc(f"not known: {reasons.get(key) or 'no reason'}"))
            )
    return facts_table(rows)


def files_section(bundle: Any, state: State) -> str:
    """The file table; digests are computed only on request."""
    checks: dict[str, str] = {}
    if "verify" in state.look.open:
        checks = {check.rel: check.status for check in bundle.verify()}
    rows = [
        (
            name(rel),
            number(entry.size),
            f"<code>{esc(entry.sha256[:16])}…</code>",
            said(checks.get(rel, "")),
        )
        for rel, entry in bundle.manifest.files.items()
    ]
    head = facts_table(
        (
            ("Bundle", name(str(bundle.path), 120)),
            ("Digest", f"<code>{esc(bundle.digest)}</code> {link('copy_digest', 'Copy')}"),
            ("Sealed", "yes" if bundle.sealed else "no: writing was cut short"),
            *(
                (f"Replay of {goal.replace('_', ' and ')}", esc(said_of_goal(what)))
                for goal, what in bundle.completeness.items()
            ),
        )
    )
    offer = "" if checks else "<p>" + link("verify", "Check every digest") + "</p>"
    return head + offer + table(("File", "Bytes", "sha256", "Checked"), rows)


def said_of_goal(what: str) -> str:
    """Whether what a replay needs is there."""
    return "complete" if what == "complete" else f"not possible: {lacking(what)}"


def said(status: str) -> str:
    """A file's check in words."""
    words = {
        "": '<span class="wb-dim">not yet</span>',
        "ok": "matches",
        "missing": '<b class="wb-bad">✕ missing</b>',
        "size": '<b class="wb-bad">✕ size differs</b>',
        "digest": '<b class="wb-bad">✕ digest differs</b>',
    }
    return words.get(status, esc(status))


def value(what: Any) -> str:
    """Any recorded value as markup."""
    if what is None:
        return '<span class="wb-dim">not recorded</span>'
    if isinstance(what, bool):
        return "yes" if what else "no"
    if isinstance(what, dict):
        return facts_table((str(key), value(one)) for key, one in what.items())
    if isinstance(what, list | tuple):
        return ", ".join(value(one) for one in what[:20]) or '<span class="wb-dim">none</span>'
    if isinstance(what, int | float):
        return esc(number(what))
    return name(str(what), 100)
