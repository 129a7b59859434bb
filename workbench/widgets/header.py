"""The header: what is known, in sentences, and the buttons that take it elsewhere."""

from __future__ import annotations

from workbench.widgets import parts
from workbench.widgets.findings import BORN, born_at, diagnosed, headline, places, summary
from workbench.widgets.markup import esc, link, middle
from workbench.widgets.parts import Act
from workbench.widgets.state import Line, State
from workbench.widgets.store import Store
from workbench.widgets.words import diagnosis_takes, seconds

LONG = 220
MOST_DAMAGED = 3


class Header:
    """Region: title, headline with *caught at* and *born at*, and the four summary lines."""

    name = "header"

    def __init__(self, store: Store, act: Act) -> None:
        wrap = store.guard.wrap
        self._title = parts.html("", "wb-title")
        self._lines = parts.html("", "wb-lines")
        self._copy = parts.button("Copy summary", wrap(self.name, lambda: act("copy_summary")))
        self._code = parts.button("Show code", wrap(self.name, lambda: act("code")))
        self._help = parts.button(
            "?", wrap(self.name, lambda: act("keys")), title="Keys of this panel"
        )
        self._report = parts.button(
            "Report…",
            wrap(self.name, lambda: act("report")),
            title="Write one HTML file to share",
        )
        buttons = parts.row([self._copy, self._report, self._code, self._help], "wb-buttons")
        top = parts.row([self._title, buttons], "wb-top")
        self.widget = parts.column([top, self._lines], "wb-header")

    def part(self, state: State) -> object:
        """The facts, the findings and the verdict of Original."""
        original = state.run("Original")
        verdict = (original.verdict, original.probes, original.sentence) if original else None
        opened = state.look.open & {"code", "keys", "report"}
        takes = diagnosis_takes(state)
        return (state.facts, id(state.findings), verdict, opened, takes, state.problem(self.name))

    def draw(self, state: State) -> None:
        """Write title and lines."""
        pieces = middle(state.facts.title, 120).split(" · ")
        self._title.value = " · ".join(
            f'<span class="wb-piece">{esc(one)}</span>' for one in pieces
        )
        self._lines.value = (
            lines_markup(state)
            + damaged_markup(state.facts.damaged)
            + parts.problem(state.problem(self.name))
        )
        parts.set_class(self._code, "wb-on", "code" in state.look.open)
        parts.set_class(self._report, "wb-on", "report" in state.look.open)
        parts.set_class(self._help, "wb-on", "keys" in state.look.open)


def lines_markup(state: State) -> str:
    """The headline and the four lines."""
    colour = "wb-bad" if state.facts.kind == "nonfinite" else "wb-strong"
    ask = link("diagnose", f"Diagnose, {seconds(diagnosis_takes(state))}")
    ask = "" if state.no_replay or diagnosed(state) else ask
    born = born_at(state)
    pairs = []
    for label, text in places(state):
        dim = ' class="wb-dim"' if label == BORN and not born else ""
        said = f"<span{dim}>{esc(middle(text, 150))}</span>"
        pairs.append(f'<span class="wb-pair"><b>{label}</b> {said}</span>')
    if ask:
        pairs.append(f'<span class="wb-ask">{ask}</span>')
    head = (
        f'<div class="wb-headline"><span class="{colour}">{_glyph(state)}</span> '
        f"<strong>{esc(headline(state))}</strong>{' '.join(pairs)}</div>"
    )
    return head + "".join(_line(line) for line in summary(state))


def damaged_markup(damaged: tuple[str, ...]) -> str:
    """What cannot be read, and the way to what can."""
    if not damaged:
        return ""
    said = " ".join(damaged[:MOST_DAMAGED])
    more = len(damaged) - MOST_DAMAGED
    said += f" And {more} more." if more > 0 else ""
    other = link("show_files", "Show the other files")
    return f'<div class="wb-problem" role="alert">{esc(said)} {other}</div>'


def _glyph(state: State) -> str:
    return {"nonfinite": "✕", "alert": "!"}.get(state.facts.kind, "·")


def _line(line: Line) -> str:
    text = line.text if len(line.text) <= LONG else line.text[: LONG - 1] + "…"
    title = f' title="{esc(line.text)}"' if text != line.text else ""
    return (
        f'<div class="wb-line"><span class="wb-label">{esc(line.label)}</span>'
        f"<span{title}>{esc(text)}</span></div>"
    )


def static_card(state: State) -> str:
    """The header as plain HTML with its own styles, for a notebook read without a kernel."""
    facts = state.facts
    rows = [
        *places(state),
        *((line.label, line.text) for line in summary(state)),
    ]
    body = "".join(
        f'<tr style="background:none"><th scope="row" style="{_HEAD}">{esc(label)}</th>'
        f'<td style="text-align:left">{esc(text)}</td></tr>'
        for label, text in rows
    )
    where = f"{facts.name} · {facts.digest[:20]}… · run this cell again for the live panel."
    return (
        f'<div class="wb-static" style="{_CARD}">'
        f"<div>{esc(facts.title)}</div>"
        f'<div style="font-size:15px"><strong>{_glyph(state)} {esc(headline(state))}</strong></div>'
        f"<table>{body}</table><small>{esc(where)}</small></div>"
    )


def card_output(state: State) -> str:
    """The card as an output of its own, before that of the live panel."""
    return f"<style>{_WITHOUT_KERNEL}</style>{static_card(state)}"


_CARD = "border:1px solid #bbb;border-radius:4px;padding:8px 12px;max-width:1200px;font-size:13px"
_WITHOUT_KERNEL = (
    ".jp-OutputArea-child:has(.wb-static):has(+ .jp-OutputArea-child .wb-root),"
    ".jp-OutputArea-child:has(.wb-static) + .jp-OutputArea-child "
    ".jp-OutputArea-output.jupyter-widgets:not(:has(*)){display:none}"
)
"""The card gives way to a live panel, and covers for one that has no kernel any more."""
_HEAD = "text-align:left;vertical-align:top;white-space:nowrap"
