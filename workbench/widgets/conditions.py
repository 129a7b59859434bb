"""The conditions: recorded and current value of each switch. Changing one runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import ipywidgets as w

from workbench.widgets import parts
from workbench.widgets.actions import ConditionSet
from workbench.widgets.markup import esc
from workbench.widgets.parts import Act
from workbench.widgets.presets import GROUPS, PRESETS, why_no_preset
from workbench.widgets.reducer import pending_conditions
from workbench.widgets.state import State, Switch
from workbench.widgets.store import Store
from workbench.widgets.words import changed_words, seconds

SECOND = frozenset({"deterministic", "matmul_tf32"})
"""Quick switches that a narrow panel shows among all switches."""
WIDTHS = {"cudnn": "62px", "matmul_tf32": "62px", "deterministic": "68px"}
"""Of quick switches whose values are short, so that the row stays one row."""

READING = "What can be changed here is being read …"


class Conditions:
    """Region: quick switches, all switches, and the row that offers to replay with them."""

    name = "conditions"

    def __init__(self, store: Store, act: Act) -> None:
        self._store = store
        wrap = store.guard.wrap
        self._fields: dict[str, Any] = {}
        self._notes: dict[str, w.HTML] = {}
        self._whose = parts.html("", "wb-whose")
        self._all = parts.button(
            "All switches ▸", wrap(self.name, partial(act, "all_switches")), title="c"
        )
        self._act = act
        self._rows: dict[str, w.HBox] = {}
        self._laid: tuple[bool, bool] | None = None
        self._preset = w.Dropdown(options=[("Preset …", "")], layout=w.Layout(width="92px"))
        self._preset.observe(wrap(self.name, self._preset_chosen), names="value")
        self._rest = parts.row([], "wb-all-switches")
        self._pending = parts.html("", "wb-pending")
        self._replay = parts.button(
            "Replay", wrap(self.name, partial(act, "replay")), classes=("wb-primary",)
        )
        self._undo = parts.button("Undo", wrap(self.name, partial(act, "undo")))
        self._offer = parts.row([self._pending, self._replay, self._undo], "wb-offer")
        self._problem = parts.html()
        self._bar = parts.row([self._whose, self._all], "wb-switches")
        self._why = parts.html("", "wb-dim")
        inside = [self._bar, self._why, self._rest, self._offer, self._problem]
        self.widget = parts.column(inside, "wb-conditions")

    def _make(self, switch: Switch) -> w.HBox:
        width = WIDTHS.get(switch.key, "84px") if switch.quick else "116px"
        how: dict[str, Any] = {
            "value": switch.recorded,
            "tooltip": switch.why_not or f"{switch.label}: recorded {switch.recorded}",
            "disabled": bool(switch.why_not),
            "layout": parts.shared(w.Layout, width=width),
        }
        if switch.choices:
            field = w.Dropdown(options=list(switch.choices), **how)
        else:
            field = w.Text(continuous_update=False, **how)
        field.observe(
            self._store.guard.wrap(self.name, partial(self._chosen, switch.key)), names="value"
        )
        label = parts.html(
            f'<span title="{esc(switch.why_not or switch.key)}">{esc(switch.label)}</span>'
        )
        self._fields[switch.key] = field
        self._notes[switch.key] = parts.html("", "wb-switch-note")
        classes = ["wb-switch", f"wb-switch-{switch.key.replace('_', '-')}"]
        classes += ["wb-off"] if switch.why_not else []
        made = parts.row([label, field, self._notes[switch.key]], *classes)
        self._rows[switch.key] = made
        return made

    def _preset_chosen(self) -> None:
        name = self._preset.value
        if name:
            self._preset.value = ""
            self._act(f"preset:{name}")

    def _chosen(self, key: str) -> None:
        self._store.dispatch(ConditionSet(key, str(self._fields[key].value)))

    def part(self, state: State) -> object:
        """What is wanted, whether something runs, and what the last run said."""
        run = state.shown
        return (
            state.wanted,
            state.activity is not None,
            state.look.open & {"all_switches"},
            run,
            state.problem(self.name),
            state.takes,
            state.facts.switches,
            state.look.width < parts.NARROW,
        )

    def draw(self, state: State) -> None:
        """Show each switch's value, its recorded value where it differs, and the offer."""
        wanted = dict(state.wanted)
        opened = "all_switches" in state.look.open
        self._lay_out(state, opened)
        for switch in state.facts.switches:
            if switch.key not in self._fields:
                continue
            self._draw_switch(switch, wanted.get(switch.key, switch.recorded), state)
        self._whose.value = "<b>◇ Diagnostic</b>" if wanted else "<b>● Original</b>"
        parts.set_display(self._rest, "flex" if opened else "none")
        self._all.description = "All switches " + ("▾" if opened else "▸")
        self._preset.disabled = bool(state.no_replay)
        self._draw_offer(state)
        self._problem.value = parts.problem(state.problem(self.name))

    def _lay_out(self, state: State, opened: bool) -> None:
        """Make the switches where they are first looked at, and put each into its place."""
        switches, narrow = state.facts.switches, state.look.width < parts.NARROW
        if not switches:
            self._why.value = READING
        full = opened or len(self._fields) == len(switches)
        if not switches or self._laid == (narrow, full):
            return
        self._laid = (narrow, full)
        for switch in switches:
            if switch.key not in self._fields and (switch.quick or full):
                self._make(switch)
        quick = [s.key for s in switches if s.quick and not (narrow and s.key in SECOND)]
        beside = [self._whose, *(self._rows[key] for key in quick), self._preset, self._all]
        self._bar.children = beside
        said = without_effect_line(switches, state.facts.device_note)
        self._why.value = "" if state.no_replay else said
        names = [
            (f"{n}, no effect here" if why_no_preset(state.facts, p) else n, n)
            for n, p in PRESETS.items()
        ]
        self._preset.options = [("Preset …", ""), *names]
        if full:
            self._rest.children = self._groups(set(quick))

    def _groups(self, beside: set[str]) -> list[w.VBox]:
        """All switches that are not in the row, in groups."""
        left = [key for key in self._rows if key not in beside]
        placed = [key for keys in GROUPS.values() for key in keys]
        groups = {name: [k for k in keys if k in left] for name, keys in GROUPS.items()}
        rest = [key for key in left if key not in placed]
        return [
            parts.column(
                [parts.html(f"<b>{esc(name)}</b>"), *(self._rows[key] for key in keys)],
                "wb-switch-group",
            )
            for name, keys in {**groups, "Further": rest}.items()
            if keys
        ]

    def _draw_switch(self, switch: Switch, value: str, state: State) -> None:
        field = self._fields[switch.key]
        if field.value != value:
            field.value = value
        field.disabled = bool(switch.why_not or state.no_replay) or state.activity is not None
        changed = value != switch.recorded
        note = f"◇ {esc(recorded_words(switch.recorded))}" if changed else ""
        if switch.why_not and not switch.quick:
            note = f'<span class="wb-dim">{esc(short_reason(switch))}</span>'
        self._notes[switch.key].value = note

    def _draw_offer(self, state: State) -> None:
        changed = pending_conditions(state)
        run = state.shown
        if changed:
            recorded = {s.key: s.recorded for s in state.facts.switches}
            said = ", ".join(
                f"{key.replace('_', ' ')} {value} ({recorded_words(recorded[key])})"
                for key, value in changed
            )
            text = f"◇ Diagnostic: {said}. Not run yet."
            if any(set(one.changed) == set(changed) for one in state.runs):
                text = f"◇ Diagnostic: {said}. Run before; a new run is kept beside it."
        elif run is not None and run.diagnostic:
            text = self._said_of(run)
        else:
            text = ""
        self._pending.value = esc(text)
        parts.show(self._offer, bool(text))
        # one line less while there is an offer; a switch without effect says why on hover, too
        parts.show(self._why, bool(self._why.value) and not text)
        takes = seconds(state.takes)
        self._replay.description = f"Replay, {takes}" if takes else "Replay"
        for made in (self._replay, self._undo):
            parts.show(made, bool(changed))
            made.disabled = state.activity is not None

    def _said_of(self, run: Any) -> str:
        said = f"◇ {run.name}: {changed_words(run.changed)}."
        if run.after:
            said += f" {run.after}"
        effect = "; ".join(run.without_effect)
        return said + (f" No effect here: {effect}" if effect else "")


def without_effect_line(switches: Sequence[Switch], device_note: str) -> str:
    """Why quick switches are disabled: one line, those of one reason together."""
    reasons: dict[str, list[str]] = {}
    for switch in switches:
        if switch.quick and switch.why_not:
            reasons.setdefault(short_reason(switch), []).append(switch.label)
    said = "; ".join(f"{', '.join(labels)}: {why}" for why, labels in reasons.items())
    text = f"No effect here. {said}." if said else ""
    return esc(f"{device_note} {text}".strip())


def short_reason(switch: Switch) -> str:
    """Why a switch cannot act here, without what all reasons begin with."""
    why = switch.why_not
    for start in (
        "No effect on this device: ",
        "No effect on the stage that failed: ",
        "No effect: ",
    ):
        why = why.removeprefix(start)
    why = why.removeprefix(f"{switch.label} ").rstrip(".")
    if why.endswith("needs a CUDA GPU"):
        return "needs a CUDA GPU"
    return why[:1].lower() + why[1:]


def recorded_words(value: str) -> str:
    """The recorded value of a condition; some are simply called as recorded."""
    return "not as recorded" if value == "recorded" else f"recorded {value or 'none'}"
