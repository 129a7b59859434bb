"""Every action name the panel understands, and the method it calls.

Names come from buttons, links and keys; from the page only names of this list do anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from workbench.widgets import actions as a
from workbench.widgets.presets import PRESETS
from workbench.widgets.state import ORIGINAL, RECORDED, STAGE_NAMES, TABS

if TYPE_CHECKING:
    from workbench.widgets.layer_rows import LayerRows
    from workbench.widgets.panel import Workbench

TOGGLES = frozenset(
    {
        "code",
        "keys",
        "all_switches",
        "establishes",
        "all_environment",
        "verify",
        "all_tensors",
        "upstream",
        "histogram",
        "graph",
        "notes",
        "report",
    }
)
LOOKS = frozenset({"layer", "record"})
"""Whole numbers of the look that a link may set."""


class Commands:
    """Carries out action names.

    Args:
        panel: The panel.
    """

    def __init__(self, panel: Workbench) -> None:
        self._panel = panel
        self._rows: LayerRows | None = None
        plain: dict[str, Callable[[], Any]] = {
            "step": panel.step,
            "back": panel.back,
            "run_to_first_bad": panel.run_to_first_bad,
            "reset": panel.reset,
            "stop": panel.stop,
            "trace": panel.trace,
            "replay": panel.replay,
            "undo": panel.undo_conditions,
            "diagnose": panel.diagnose,
            "ask_anomaly": lambda: panel.diagnose(anomaly=True),
            "compare": panel.compare,
            "compare_bundles": panel.compare_bundles,
            "sweep": panel.sweep,
            "minimal": panel.minimal,
            "ladder": panel.ladder,
            "minimize": panel.minimize,
            "replay_samples": lambda: panel.replay_samples(panel.state.look.samples),
            "again": panel.again,
            "on_cpu": panel.replay_on_cpu,
            "fewer_samples": panel.replay_fewer,
            "choose_code": panel.choose_code,
            "trust_replay": panel.allow_as_chosen,
            "trust_decline": panel.decline,
            "copy_summary": lambda: panel.shell.copy(panel.summary()),
            "copy_digest": lambda: panel.shell.copy(panel.state.facts.digest),
            "copy_code": lambda: panel.shell.copy(panel.to_code()),
            "copy_details": self._copy_details,
            "show_files": self._show_files,
            "source": lambda: self._open_text("source_open", "diff_open"),
            "diff": lambda: self._open_text("diff_open", "source_open"),
            "toggle_original": self._toggle_original,
            "pin": panel.pin_drawn,
            "pin_view": self._pin_view,
            "make_report": lambda: panel.make_report(panel.report_drawer.path),
            "stop_report": panel.stop_report,
            "copy_report": lambda: panel.shell.copy(panel.state.report.path),
            "search": lambda: self._dispatch(a.TabChosen("ranges")),
            "layer_above": lambda: self._move_layer(-1, suspicious=False),
            "layer_below": lambda: self._move_layer(1, suspicious=False),
            "next_suspicious": lambda: self._move_layer(1, suspicious=True),
            "previous_suspicious": lambda: self._move_layer(-1, suspicious=True),
        }
        self._plain = plain

    def act(self, action: str) -> None:
        """Carry out one action name; an unknown one does nothing."""
        verb, _, argument = action.partition(":")
        if verb in TOGGLES and not argument:
            self._dispatch(a.Toggled(verb))
        elif verb in self._plain and not argument:
            self._plain[verb]()
        elif verb == "tab" and argument in TABS:
            self._dispatch(a.TabChosen(argument))
        elif verb == "stage" and argument in STAGE_NAMES:
            self._dispatch(a.StageChosen(argument))
        elif verb == "run_to" and argument in STAGE_NAMES:
            self._panel.run_to(argument)
        elif verb == "preset" and argument in PRESETS:
            self._panel.preset(argument)
        elif verb == "counterfactual" and argument.isdigit():
            self._panel.counterfactual(int(argument))
        elif verb == "note_show" and argument.isdigit():
            self._panel.show_note(int(argument))
        elif verb == "note_remove" and argument.isdigit():
            self._panel.remove_note(int(argument))
        elif verb == "event" and argument.isdigit():
            self._panel.show_event(int(argument))
        elif verb in LOOKS and argument.isdigit():
            self._dispatch(a.Looked(((verb, int(argument)),)))

    def _dispatch(self, action: a.Action) -> None:
        self._panel._store.dispatch(action)

    def _open_text(self, wanted: str, other: str) -> None:
        trust = self._panel.state.trust
        opened = not getattr(trust, wanted)
        changes: list[tuple[str, Any]] = [(wanted, opened), (other, False)]
        if wanted == "source_open" and opened:
            changes.append(("source_read", True))
        self._dispatch(a.TrustEdited(tuple(changes)))

    def _pin_view(self) -> None:
        """Open the drawer where a sentence about this view is written."""
        if "notes" not in self._panel.state.look.open:
            self._dispatch(a.Toggled("notes"))
        self._panel.shell.focus("note")

    def _show_files(self) -> None:
        self._dispatch(a.Looked((("section", "files"),)))
        self._dispatch(a.TabChosen("evidence"))

    def _copy_details(self) -> None:
        traces = [p.trace for _, p in self._panel.state.problems if p.trace]
        self._panel.shell.copy("\n".join(traces))

    def _toggle_original(self) -> None:
        state = self._panel.state
        diagnostic = [run.name for run in state.runs if run.diagnostic]
        if state.look.shown == ORIGINAL and diagnostic:
            self._dispatch(a.RunShown(diagnostic[-1]))
        else:
            self._dispatch(a.RunShown(ORIGINAL if state.run(ORIGINAL) else RECORDED))

    def _move_layer(self, by: int, *, suspicious: bool) -> None:
        from workbench.widgets.layer_rows import LayerRows, by_risk
        from workbench.widgets.ranges import shown_layers

        state = self._panel.state
        self._rows = self._rows or LayerRows()
        layers, _ = shown_layers(state)
        if layers is None:
            return
        rows = by_risk(self._rows.of(layers, state.look.tensor_kind), state.look.search)
        if suspicious:
            rows = [row for row in rows if row.mark.strip()]
        order = [row.index for row in rows]
        if not order:
            return
        now = order.index(state.look.layer) if state.look.layer in order else (0 if by < 0 else -1)
        place = min(max(now + by, 0), len(order) - 1)
        self._dispatch(a.Looked((("layer", order[place]),)))
