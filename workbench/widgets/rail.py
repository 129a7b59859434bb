"""The stage rail: ten stages, one line about the chosen one, and the buttons that replay."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import ipywidgets as w

from workbench.widgets import parts
from workbench.widgets.markup import GLYPH, esc, link
from workbench.widgets.parts import Act
from workbench.widgets.state import RECORDED, STAGE_NAMES, Activity, StageView, State
from workbench.widgets.store import Store
from workbench.widgets.words import establishes, seconds, stage_line, stage_words

NBSP = "\u00a0"
SAID_FROM = 2.0
"""A button that takes longer than this, in seconds, says so beforehand."""


class Rail:
    """Region: the stages and the replay buttons."""

    name = "rail"

    def __init__(self, store: Store, act: Act) -> None:
        self._act = act
        wrap = store.guard.wrap
        self._whose = parts.html("", "wb-whose")
        self._buttons = {
            name: parts.button(
                stage_words(name),
                wrap(self.name, partial(act, f"stage:{name}")),
                classes=("wb-stage",),
            )
            for name in STAGE_NAMES
        }
        self._line = parts.html("", "wb-stage-line")
        self._progress = w.IntProgress(
            min=0, max=100, layout=w.Layout(width="180px"), _dom_classes=("wb-progress",)
        )
        self._controls = self._make_controls(wrap)
        self._run_to = w.Dropdown(
            options=[("Run to …", ""), *((stage_words(name), name) for name in STAGE_NAMES)],
            layout=w.Layout(width="130px"),
        )
        self._run_to.observe(wrap(self.name, self._run_to_chosen), names="value")
        order = ("back", "step", "run_to_first_bad")
        self.row = parts.row(
            [
                *(self._controls[key] for key in order),
                self._run_to,
                self._controls["reset"],
                self._controls["stop"],
            ],
            "wb-controls",
        )
        self.slot = parts.column([self.row], "wb-controls-slot")
        stages = parts.row([self._whose, *self._buttons.values()], "wb-stages")
        line = parts.row([self._progress, self._line], "wb-line-row")
        self.widget = parts.column([stages, line, self.slot], "wb-rail")

    def _make_controls(self, wrap: Any) -> dict[str, w.Button]:
        labels = {
            "back": ("◀ Back", "Run again from the start, to the stage before (p)"),
            "step": ("Step ▶", "Run the next stage (n)"),
            "run_to_first_bad": ("Run to first bad", "Run until something goes bad (f)"),
            "reset": ("Reset", "Forget where this run stands (r)"),
            "stop": ("■ Stop", "End the replay process (.)"),
        }
        return {
            key: parts.button(label, wrap(self.name, partial(self._act, key)), title=title)
            for key, (label, title) in labels.items()
        }

    def _run_to_chosen(self) -> None:
        stage = self._run_to.value
        if stage:
            self._run_to.value = ""
            self._act(f"run_to:{stage}")

    def part(self, state: State) -> object:
        """The stages shown, what runs, and what is said about it."""
        return (
            state.stages,
            state.activity,
            state.look.shown,
            state.look.stage,
            state.look.open & {"establishes"},
            state.says,
            state.offers,
            state.problem(self.name),
            state.takes,
        )

    def draw(self, state: State) -> None:
        """Draw stages, line and buttons."""
        chosen = chosen_stage(state)
        whose = RECORDED if state.shown is None else state.look.shown
        running = state.activity is not None and state.activity.run == state.look.shown
        ran = state.shown is not None and state.shown.reached > 0
        note = "replaying" if running else "replayed" if ran else "not replayed"
        self._whose.value = f'<b>{esc(whose)}</b><br><span class="wb-dim">{esc(note)}</span>'
        for stage in state.stages:
            self._draw_stage(stage, chosen is not None and stage.name == chosen.name)
        self._draw_line(state, chosen)
        self._draw_controls(state)

    def _draw_stage(self, stage: StageView, chosen: bool) -> None:
        made = self._buttons[stage.name]
        classes = {f"wb-{status}": status == stage.status for status in GLYPH}
        with made.hold_sync():  # one message a stage
            # where there is little room the glyph stands above the name, which is not broken
            made.description = f"{GLYPH[stage.status]} {stage_words(stage.name).replace(' ', NBSP)}"
            made.tooltip = f"{stage_words(stage.name)}: {stage_line(stage)}"
            parts.set_classes(made, {**classes, "wb-chosen": chosen})

    def _draw_line(self, state: State, chosen: StageView | None) -> None:
        activity = state.activity
        parts.show(self._progress, activity is not None)
        if activity is not None:
            self.tick(activity)
            return
        text = esc(state.says) + " " if state.says else ""
        if state.no_replay and not state.says:
            text = esc(f"Replay is off: {state.no_replay[:1].lower()}{state.no_replay[1:]}") + " "
            text += "Recorded evidence is shown. "
        text += " ".join(link(action, label) for action, label in state.offers)
        if chosen is not None and not state.says:
            text += f"<b>{esc(stage_words(chosen.name))}</b> {esc(stage_line(chosen))}"
            opened = "establishes" in state.look.open
            text += " " + link("establishes", "What this shows " + ("▾" if opened else "▸"))
            if opened:
                text += f'<div class="wb-note">{esc(establishes(chosen.name))}</div>'
        self._line.value = text + parts.problem(state.problem(self.name))

    def tick(self, activity: Activity) -> None:
        """Show how long the activity has taken; called while it runs."""
        spent = max(time.monotonic() - activity.started, 0.0)
        where = activity.doing or stage_words(activity.stage) or "starting"
        expected = f" of {seconds(activity.expected)}" if activity.expected else ""
        whose = f" · {activity.run}" if activity.run else ""
        self._line.value = esc(f"{activity.verb}{whose} · {where} … {spent:.1f} s{expected}")
        share = spent / activity.expected if activity.expected else 0.0
        self._progress.bar_style = "" if activity.expected else "info"
        self._progress.value = min(int(share * 100), 99) if activity.expected else 100

    def _draw_controls(self, state: State) -> None:
        busy = state.activity is not None
        run = state.shown
        reached = run.reached if run is not None else 0
        done = run is not None and not run.next_stage
        off = {
            "back": busy or reached == 0,
            "step": busy or done or bool(state.no_replay),
            "run_to_first_bad": busy or bool(state.no_replay),
            "reset": busy or reached == 0,
            "stop": not busy,
        }
        for key, disabled in off.items():
            self._controls[key].disabled = disabled
        parts.set_class(self._controls["stop"], "wb-live", busy)
        takes = f", {seconds(state.takes)}" if (state.takes or 0.0) > SAID_FROM else ""
        self._controls["run_to_first_bad"].description = f"Run to first bad{takes}"
        self._run_to.disabled = busy or bool(state.no_replay)


def chosen_stage(state: State) -> StageView | None:
    """The stage the line is about: the clicked one, else the bad one, else the last that ran."""
    by_name = {stage.name: stage for stage in state.stages}
    if state.look.stage in by_name:
        return by_name[state.look.stage]
    bad = next((stage for stage in state.stages if stage.status in ("bad", "alert")), None)
    if bad is not None:
        return bad
    done = [stage for stage in state.stages if stage.status in ("clean", "skip")]
    return done[-1] if done else None
