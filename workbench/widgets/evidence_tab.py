"""The Evidence tab: what was recorded, read from the bundle piece by piece as it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets as w

from workbench.charts.words import number
from workbench.errors import WorkbenchError
from workbench.evidence.wording import counted
from workbench.widgets import parts
from workbench.widgets.actions import Looked
from workbench.widgets.batch import Batch
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


STATE_FILES = ("state/model.safetensors", "state/optimizer.safetensors", "gradients.safetensors")


def tensors_section(bundle: Any, files: tuple[str, ...]) -> str:
    """Names, dtypes and shapes; no value of the training data is shown."""
    blocks = []
    for rel in files:
        if not bundle.has(rel):
            why = bundle.manifest.dropped.get(rel, "")
            blocks.append(note(f"{name(rel)}: not in the bundle. {esc(why)}"))
            continue
        found = bundle.tensor_index(rel)
        rows = [
            (name(one), esc(str(facts["dtype"]).removeprefix("torch.")), esc(facts["shape"]))
            for one, facts in list(found.items())[:MAX_ROWS]
        ]
        more = len(found) - MAX_ROWS
        tail = note(f"{counted(more, 'more tensor')} in this file.") if more > 0 else ""
        blocks.append(f"<h4>{name(rel)}</h4>" + table(("Tensor", "dtype", "Shape"), rows) + tail)
    return "".join(blocks)


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


def _near(bundle: Any) -> str | None:
    """The last checkpoints with their states, where the run kept track of them."""
    evidence = bundle.evidence() if bundle.has("evidence.json") else {}
    kept = evidence.get("checkpoints") if isinstance(evidence, dict) else None
    near = kept.get("near") if isinstance(kept, dict) else None
    rows = [one for one in near if isinstance(one, dict)] if isinstance(near, list) else []
    return ", ".join(f"{one.get('name')}: {one.get('state')}" for one in rows) or None


def checkpoints_section(bundle: Any, state: State) -> str:
    """Which checkpoint came before, and which ones a diagnosis calls touched."""
    ledger = bundle.ledger() if bundle.has("ledger.jsonl") else []
    parent = ledger[-1].get("checkpoint_parent") if ledger else None
    rows = [
        ("Last checkpoint before the step", value(parent)),
        ("Checkpoints near the incident", value(_near(bundle))),
    ]
    touched = (state.findings or {}).get("contamination") if state.findings else None
    if isinstance(touched, dict):
        rows += [(str(key).replace("_", " "), value(one)) for key, one in touched.items()]
    else:
        rows.append(("Contamination", esc("Not known: not diagnosed here yet.")))
    rows += [(f"Replay of {g.replace('_', ' ')}", esc(s)) for g, s in bundle.completeness.items()]
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
        )
    )
    offer = "" if checks else "<p>" + link("verify", "Check every digest") + "</p>"
    return head + offer + table(("File", "Bytes", "sha256", "Checked"), rows)


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
