"""What opens and closes: the code of the state on screen, and the list of keys."""

from __future__ import annotations

from workbench.widgets import parts
from workbench.widgets.code import to_code
from workbench.widgets.markup import esc, link
from workbench.widgets.parts import Act
from workbench.widgets.state import Problem, State
from workbench.widgets.store import Store

KEYS = (
    ("n p", "step, back one stage"),
    ("f", "run to first bad"),
    ("r", "reset"),
    (".", "stop"),
    ("o", "show Original or the last diagnostic run"),
    ("c", "open or close all switches"),
    ("1 … 5", "tabs"),
    ("/", "search layers"),
    ("↑ ↓", "layer above, below"),
    ("j k", "next, previous suspicious layer"),
    ("m", "pin this view with a note"),
    ("?", "this list"),
    ("Esc", "give the keys back to the notebook"),
)


def bugs(state: State) -> tuple[Problem, ...]:
    """Failures of regions themselves: such a region cannot show its own."""
    return tuple(problem for _, problem in state.problems if problem.trace)


class Drawers:
    """Region: code and keys, closed at first, and failures of other regions."""

    name = "drawers"

    def __init__(self, store: Store, act: Act) -> None:
        del store, act
        self._body = parts.html("", "wb-drawer")
        self.widget = self._body

    def part(self, state: State) -> object:
        """What is open, and everything the code depends on."""
        opened = (state.look.open & {"code", "keys"}, bugs(state))
        if "code" not in state.look.open:
            return opened
        runs = tuple((run.name, run.changed, run.reached, run.finished) for run in state.runs)
        return (opened, runs, state.wanted, state.trust, id(state.findings))

    def draw(self, state: State) -> None:
        """Write what is open."""
        blocks = [parts.problem(one) for one in bugs(state)]
        if "code" in state.look.open:
            copy = link("copy_code", "Copy")
            blocks.append(
                f'<div class="wb-drawer-head">Python for what is on screen {copy}</div>'
                f"<pre>{esc(to_code(state))}</pre>"
            )
        if "keys" in state.look.open:
            said = "".join(
                f"<span><kbd>{esc(keys)}</kbd> {esc(does)}</span>" for keys, does in KEYS
            )
            head = '<div class="wb-drawer-head">Keys, while focus is inside this panel</div>'
            blocks.append(f'{head}<div class="wb-keys">{said}</div>')
        self._body.value = "".join(blocks)
        parts.show(self._body, bool(blocks))
