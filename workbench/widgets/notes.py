"""The notes drawer: pin a view or a claim with a sentence; what is pinned goes into the report."""

from __future__ import annotations

import ipywidgets as w

from workbench.evidence.notes import LONGEST, Note
from workbench.widgets import parts
from workbench.widgets.claims import THIS_VIEW, claims, run_words, view_words
from workbench.widgets.markup import esc, link, middle
from workbench.widgets.parts import Act
from workbench.widgets.state import State
from workbench.widgets.store import Store

SHORT = 110
EMPTY = "Nothing is pinned yet. Pinned notes go into the report, word for word."


class Notes:
    """Region: what to pin, a sentence about it, and the notes so far; closed at first.

    Args:
        store: The panel's state.
        act: Asks the panel to do something by one action name.
    """

    name = "notes"

    def __init__(self, store: Store, act: Act) -> None:
        self._store, self._act = store, act
        wrap = store.guard.wrap
        self.button = parts.button(
            "Notes ▸",
            wrap(self.name, lambda: act("notes")),
            title="m",
            classes=("wb-notes-button",),
        )
        self.widget = parts.column([], "wb-notes")
        parts.show(self.widget, False)

    def _fill(self) -> None:
        """Make the fields, once, when they are first needed."""
        if self.widget.children:
            return
        wrap = self._store.guard.wrap
        self._claim = w.Dropdown(
            options=[("This view", THIS_VIEW)], _dom_classes=("wb-note-claim",)
        )
        self._sentence = w.Textarea(
            placeholder="A sentence for whoever reads this (optional)",
            rows=2,
            continuous_update=False,  # sent whole when it is left: Pin must not overtake the rest
            _dom_classes=("wb-note-sentence",),
        )
        self._pin = parts.button("Pin", wrap(self.name, self._pinned), classes=("wb-primary",))
        self._where = parts.html("", "wb-dim")
        self._list = parts.html("", "wb-note-list")
        self._problem = parts.html()
        row = parts.row([self._claim, self._pin, self._where], "wb-note-row")
        self.widget.children = (row, self._sentence, self._problem, self._list)

    def _pinned(self) -> None:
        self._act("pin")

    @property
    def chosen(self) -> str:
        """The claim to pin; empty for the view alone."""
        self._fill()
        return str(self._claim.value or THIS_VIEW)

    @property
    def sentence(self) -> str:
        """What was written."""
        self._fill()
        return str(self._sentence.value).strip()[:LONGEST]

    def clear(self) -> None:
        """The sentence was pinned."""
        self._fill()
        self._sentence.value = ""
        self._claim.value = THIS_VIEW

    def part(self, state: State) -> object:
        """The notes, and while the drawer is open what could be pinned."""
        opened = "notes" in state.look.open
        now = (claims(state), view_words(state), run_words(state)) if opened else ()
        return (opened, state.notes, state.notes_said, now, state.problem(self.name))

    def draw(self, state: State) -> None:
        """Show the drawer, if it is open."""
        opened = "notes" in state.look.open
        many = f" ({len(state.notes)})" if state.notes else ""
        self.button.description = f"Notes{many} " + ("▾" if opened else "▸")
        parts.set_class(self.button, "wb-on", opened)
        parts.show(self.widget, opened)
        if not opened:
            return
        self._fill()
        kept = self._claim.value
        options = [(f"This view: {middle(view_words(state), SHORT)}", THIS_VIEW)]
        options += [(middle(one, SHORT), one) for one in claims(state)]
        if list(self._claim.options) != options:
            self._claim.options = options
            self._claim.value = kept if kept in {value for _, value in options} else THIS_VIEW
        self._where.value = esc(f"as seen in {run_words(state)}")
        rows = "".join(note_markup(i, note) for i, note in enumerate(state.notes))
        body = rows or f'<div class="wb-dim">{esc(EMPTY)}</div>'
        self._list.value = body + (f'<div class="wb-dim">{esc(state.notes_said)}</div>')
        self._problem.value = parts.problem(state.problem(self.name))


def note_markup(number: int, note: Note) -> str:
    """One note: what was said, what it is about, and how to go there or take it away."""
    about = note.claim or note.view
    said = f"<b>{esc(note.sentence)}</b> " if note.sentence else ""
    title = f"{note.view} · {note.run} · {note.time}"
    return (
        f'<div class="wb-note-one" title="{esc(title)}">{said}'
        f'<span class="wb-dim">{esc(middle(about, 200))} · {esc(middle(note.run, 60))}</span> '
        f"{link(f'note_show:{number}', 'Show')} {link(f'note_remove:{number}', 'Remove')}</div>"
    )
