from __future__ import annotations

from dataclasses import replace

import pytest

from workbench.widgets import actions as a
from workbench.widgets.reducer import next_run_name, pending_conditions, reduce
from workbench.widgets.state import (
    ORIGINAL,
    RECORDED,
    STAGE_NAMES,
    Facts,
    Problem,
    Run,
    StageView,
    State,
    Switch,
    fresh_stages,
)

SWITCHES = (
    Switch("autocast", "Autocast", "float16", ("off", "float16"), True),
    Switch("cudnn", "cuDNN", "on", ("on", "off"), True, "needs a CUDA GPU"),
    Switch("deterministic", "Deterministic", "off", ("on", "off"), True),
)


@pytest.fixture
def state():
    return State(
        facts=Facts(
            path="b", name="b", digest="sha256:0", title="", headline="", caught_at="loss",
            lines=(), switches=SWITCHES, stages=fresh_stages(), stage="loss", tensor="loss",
        )
    )  # fmt: skip


def after(state, *actions):
    for action in actions:
        state = reduce(state, action)
    return state


def test_setting_a_switch_runs_nothing_and_setting_it_back_leaves_no_trace(state):
    changed = after(state, a.ConditionSet("autocast", "off"))
    assert pending_conditions(changed) == (("autocast", "off"),)
    assert changed.runs == () and changed.activity is None
    assert after(changed, a.ConditionSet("autocast", "float16")) == state


def test_a_switch_without_effect_cannot_be_set(state):
    assert reduce(state, a.ConditionSet("cudnn", "off")) is state


def test_an_action_that_changes_nothing_gives_the_same_object(state):
    assert reduce(state, a.TabChosen("timeline")) is state
    assert reduce(state, a.RunShown("no such run")) is state


def test_starting_a_run_makes_it_and_shows_it(state):
    state = after(state, a.Started("Step", ORIGINAL, at=1.0))
    assert state.look.shown == ORIGINAL
    assert [stage.name for stage in state.stages] == list(STAGE_NAMES)
    assert state.activity is not None and state.activity.verb == "Step"


def test_original_stands_first_however_late_it_is_made(state):
    changed = (("autocast", "off"),)
    state = after(state, a.Started("Replay", "A", changed), a.Started("Original again", ORIGINAL))
    assert [run.name for run in state.runs] == [ORIGINAL, "A"]


def test_stages_follow_the_events(state):
    bad = StageView("loss", "bad", "loss")
    state = after(
        state,
        a.Started("Step", ORIGINAL),
        a.StageStarted(ORIGINAL, "input"),
        a.StageReported(ORIGINAL, StageView("input", "clean")),
        a.StageStarted(ORIGINAL, "loss"),
    )
    assert state.stages[0].status == "clean"
    assert state.stages[2].status == "running"
    state = after(state, a.StageReported(ORIGINAL, bad), a.Ended(ORIGINAL))
    assert state.shown.bad == bad
    assert state.activity is None


def test_stopping_keeps_the_stages_before_and_says_where(state):
    state = after(
        state,
        a.Started("Run to", ORIGINAL),
        a.StageReported(ORIGINAL, StageView("input", "clean")),
        a.StageStarted(ORIGINAL, "after_update"),
        a.Stopped(),
    )
    assert state.says == "Stopped by you in after update. Stages before it are kept."
    assert state.stages[0].status == "clean"
    assert all(stage.status != "running" for stage in state.stages)
    assert state.activity is None
    assert reduce(state, a.Stopped()) is state


def test_a_dead_worker_ends_the_activity_with_its_own_words(state):
    state = after(state, a.Started("Step", ORIGINAL), a.WorkerDied("The replay process died."))
    assert (state.activity, state.says) == (None, "The replay process died.")


def test_the_switches_show_the_conditions_of_the_run_on_screen(state):
    changed = (("autocast", "off"),)
    state = replace(state, runs=(Run(ORIGINAL), Run("A", changed)))
    shown = after(state, a.RunShown("A"))
    assert dict(shown.wanted) == {"autocast": "off"}
    assert pending_conditions(shown) == ()
    assert after(shown, a.RunShown(RECORDED)).wanted == ()


def test_run_names_go_on_after_z(state):
    names = []
    for number in range(28):
        name = next_run_name(state)
        names.append(name)
        state = after(state, a.Started("Replay", name, (("rng", str(number)),)))
    assert names[:2] == ["A", "B"] and names[25:] == ["Z", "A2", "B2"]


def test_a_problem_stays_in_its_region_until_it_is_dealt_with(state):
    state = after(state, a.Failed("conditions", Problem("no")))
    assert state.problem("conditions") == Problem("no")
    assert state.problem("rail") is None
    assert after(state, a.ConditionSet("autocast", "off")).problem("conditions") is None


def test_a_new_table_always_counts_as_a_change(state):
    state = after(state, a.Started("Trace", ORIGINAL))
    first = reduce(state, a.LayersCame(ORIGINAL, object()))
    assert reduce(first, a.LayersCame(ORIGINAL, object())) is not first


def test_unavailable_stages_are_never_stepped_into(state):
    missing = (("update", "no optimizer state"), ("after_update", "x"), ("logging", "x"))
    run = Run(ORIGINAL, stages=fresh_stages(missing))
    done = tuple(StageView(s.name, "clean") if s.status == "not_run" else s for s in run.stages)
    assert run.next_stage == "input"
    assert replace(run, stages=done).next_stage == ""
