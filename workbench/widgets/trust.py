"""The card that asks before the step's code runs. Opening a bundle runs nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

import ipywidgets as w

from workbench.widgets import parts
from workbench.widgets.actions import TrustEdited
from workbench.widgets.code_text import Code, CodeReader
from workbench.widgets.markup import esc, link, middle
from workbench.widgets.parts import Act
from workbench.widgets.state import State, Trust
from workbench.widgets.store import Store

DIGITS = 8
NOTHING = Code("", "", 0, 0)


class TrustCard:
    """Region: takes the place of the replay buttons while the question is open.

    Args:
        store: The panel's state.
        act: Asks the panel to go on.
        reader: Reads the step's code as text, here and in the bundle.
    """

    name = "trust"

    def __init__(self, store: Store, act: Act, reader: CodeReader) -> None:
        self._store, self._act, self._reader = store, act, reader
        self.widget = parts.column([], "wb-trust")

    def _fill(self) -> None:
        """Make the fields, once, when the question is first asked."""
        act, wrap = self._act, self._store.guard.wrap
        facts = self._store.state.facts
        self._title = parts.html("", "wb-strong")
        self._choice = w.RadioButtons(
            options=[("Use my code", "own"), ("Use the copy in the bundle", "source")],
            value="own",
            layout=w.Layout(width="max-content"),
        )
        self._reference = w.Text(
            value=facts.step_reference,
            placeholder="package.module:Name or path/to/file.py:Name",
            continuous_update=False,
            layout=w.Layout(width="420px"),
        )
        self._found = parts.html("", "wb-dim")
        self._copy_note = parts.html("", "wb-dim")
        self._typed = w.Text(
            placeholder=f"first {DIGITS} characters of the digest",
            continuous_update=True,
            layout=w.Layout(width="260px"),
        )
        self._text = parts.html("", "wb-code")
        self._go = parts.button(
            "Replay", wrap(self.name, partial(act, "trust_replay")), classes=("wb-primary",)
        )
        self._stay = parts.button(
            "Stay with recorded evidence", wrap(self.name, partial(act, "trust_decline"))
        )
        self._digest = parts.html("", "wb-dim")
        self._problem = parts.html()
        self._watch(wrap)
        own = parts.row([self._reference, self._found], "wb-trust-own")
        copy = parts.row([self._typed, self._copy_note], "wb-trust-copy")
        fields = parts.column([own, copy], "wb-trust-fields")
        body = parts.row([self._choice, fields], "wb-trust-body")
        foot = parts.row([self._go, self._stay, self._digest], "wb-trust-foot")
        self.widget.children = (self._title, body, self._text, foot, self._problem)

    def _watch(self, wrap: Any) -> None:
        def edited(field: str, widget: Any) -> Any:
            return wrap(self.name, lambda: self._edit(field, widget.value))

        self._choice.observe(edited("choice", self._choice), names="value")
        self._reference.observe(edited("reference", self._reference), names="value")
        self._typed.observe(edited("typed", self._typed), names="value")

    def _edit(self, field: str, value: Any) -> None:
        self._store.dispatch(TrustEdited(((field, value),)))

    def part(self, state: State) -> object:
        """The answer so far."""
        return (state.trust, state.problem(self.name))

    def draw(self, state: State) -> None:
        """Show the question; nothing is read while it is not asked."""
        if not state.trust.asked:
            return
        if not self.widget.children:
            self._fill()
        trust, facts = state.trust, state.facts
        named = facts.step_reference or "a step whose place was not recorded"
        self._title.value = (
            "<strong>To replay, the step's code must run.</strong> The bundle was recorded with "
            f"<code>{esc(middle(named))}</code>. Opening it has run nothing."
        )
        self._choice.value = trust.choice
        own = trust.choice == "own"
        self._reference.disabled = not own
        if trust.reference and self._reference.value != trust.reference:
            self._reference.value = trust.reference
        code = self._reader.read(trust.reference or facts.step_reference)
        self._found.value = self._found_text(code) if own else ""
        self._copy_note.value = self._copy_text(code, trust)
        self._typed.disabled = own
        self._text.value = self._code_text(code, trust)
        digest = facts.digest.removeprefix("sha256:")
        self._digest.value = (
            f"bundle sha256 <code>{esc(digest[:4])} {esc(digest[4:8])}</code> … "
            + (link("copy_digest", "Copy"))
        )
        reference = trust.reference or facts.step_reference
        self._go.disabled = not may_run(trust, reference, facts.digest, bool(code.bundled))
        self._problem.value = parts.problem(state.problem(self.name))

    def _found_text(self, code: Code) -> str:
        if not code.here:
            return "Not found here as text; it is looked for when you press Replay."
        if not code.bundled:
            return "Found here. The bundle has no copy to compare with."
        if code.differing == 0:
            return "Found here; same text as in the bundle."
        lines = "line differs" if code.differing == 1 else "lines differ"
        return f"Found here; {code.differing} {lines}. " + link("diff", "Show diff")

    def _copy_text(self, code: Code, trust: Trust) -> str:
        if not code.bundled:
            return "The bundle has no copy of the source."
        read = link("source", "Read it")
        seen = " (opened)" if trust.source_read else ""
        return f"source, {code.lines} lines. {read}{seen} Runs code that came with the bundle."

    def _code_text(self, code: Code, trust: Trust) -> str:
        if trust.diff_open and code.here and code.bundled:
            return f"<pre>{esc(code.diff)}</pre>"
        if trust.source_open and code.bundled:
            return f"<pre>{esc(code.bundled)}</pre>"
        return ""


def may_run(trust: Trust, reference: str, digest: str, has_copy: bool) -> bool:
    """Whether the answer is complete: the copy in the bundle must have been read, or named."""
    if trust.choice == "own":
        return bool(reference)
    start = digest.removeprefix("sha256:")[:DIGITS]
    named = len(trust.typed) >= DIGITS and trust.typed.strip().lower()[:DIGITS] == start
    return has_copy and (trust.source_read or named)
