"""State and action in, next state out. Pure: no widget, no process, no clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from workbench.widgets import actions as a
from workbench.widgets.state import (
    ORIGINAL,
    RECORDED,
    Activity,
    Result,
    Run,
    StageView,
    State,
    Trust,
    fresh_stages,
)

REGIONS_OF_ACTIVITY = ("rail", "conditions", "main")


def reduce(state: State, action: a.Action) -> State:
    """The state after an action. An action that changes nothing gives the same object back."""
    handler = _HANDLERS.get(type(action))
    if handler is None:
        return state
    after = handler(state, action)
    return state if after == state and not isinstance(action, _CARRIERS) else after


def changed_conditions(state: State) -> tuple[tuple[str, str], ...]:
    """The switches that are set to something else than was recorded, in the order of the panel."""
    wanted = dict(state.wanted)
    return tuple((s.key, wanted[s.key]) for s in state.facts.switches if s.key in wanted)


def pending_conditions(state: State) -> tuple[tuple[str, str], ...]:
    """The changed switches, where the run on screen is not under just these conditions."""
    changed = changed_conditions(state)
    run = state.shown
    shown = set(run.changed) if run is not None else set()
    return changed if set(changed) != shown else ()


def next_run_name(state: State) -> str:
    """Name of the next diagnostic run: A to Z, then A2 to Z2, and so on."""
    number = sum(1 for run in state.runs if run.diagnostic)
    letter, turn = chr(ord("A") + number % 26), number // 26
    return letter if turn == 0 else f"{letter}{turn + 1}"


# -- looking ----------------------------------------------------------------------------------


def _tab(state: State, action: a.TabChosen) -> State:
    return state.looking(tab=action.tab)


def _run_shown(state: State, action: a.RunShown) -> State:
    run = state.run(action.name)
    if action.name != RECORDED and run is None:
        return state
    # the switches always show the conditions of what is on screen
    wanted = run.changed if run is not None else ()
    return replace(state, wanted=wanted).looking(shown=action.name, stage="")


def _stage_chosen(state: State, action: a.StageChosen) -> State:
    return state.looking(stage=action.stage)


def _toggled(state: State, action: a.Toggled) -> State:
    return state.looking(open=state.look.open ^ {action.what})


def _looked(state: State, action: a.Looked) -> State:
    return state.looking(**dict(action.changes))


# -- the recorded facts -----------------------------------------------------------------------


def _switches(state: State, action: a.SwitchesCame) -> State:
    facts = replace(state.facts, switches=action.switches, device_note=action.device_note)
    return replace(state, facts=replace(facts, differing=action.differing))


def _charts(state: State, action: a.ChartsLoaded) -> State:
    return replace(state, charts=action.charts)


# -- conditions -------------------------------------------------------------------------------


def _condition_set(state: State, action: a.ConditionSet) -> State:
    switch = state.facts.switch(action.key)
    if switch is None or switch.why_not:
        return state
    wanted = dict(state.wanted)
    wanted.pop(action.key, None)
    if action.value != switch.recorded:
        wanted[action.key] = action.value
    return _without_problem(replace(state, wanted=tuple(wanted.items())), "conditions")


def _preset(state: State, action: a.PresetChosen) -> State:
    switches = {s.key: s for s in state.facts.switches if not s.why_not}
    wanted = tuple(
        (key, value)
        for key, value in action.settings.items()
        if key in switches and value != switches[key].recorded
    )
    return _without_problem(replace(state, wanted=wanted), "conditions")


def _conditions_undone(state: State, action: a.ConditionsUndone) -> State:
    del action
    return _without_problem(replace(state, wanted=()), "conditions")


# -- trust ------------------------------------------------------------------------------------


def _trust_asked(state: State, action: a.TrustAsked) -> State:
    trust = replace(state.trust, asked=True, pending=action.pending)
    return replace(state, trust=trust, says="", offers=())


def _trust_edited(state: State, action: a.TrustEdited) -> State:
    return replace(state, trust=replace(state.trust, **dict(action.changes)))


def _trust_given(state: State, action: a.TrustGiven) -> State:
    trust = replace(state.trust, asked=False, given=action.how, source_open=False, diff_open=False)
    return _without_problem(replace(state, trust=trust), "trust")


def _trust_declined(state: State, action: a.TrustDeclined) -> State:
    del action
    named = state.facts.step_reference or "a step whose place was not recorded"
    says = (
        f"Replay is off: the bundle names {named}, which has not been loaded. "
        "Recorded evidence is shown."
    )
    state = replace(state, trust=Trust(reference=state.trust.reference))
    state = replace(state, says=says, offers=(("choose_code", "Choose code…"),))
    return _without_problem(state, "trust")


# -- the child process ------------------------------------------------------------------------


def _started(state: State, action: a.Started) -> State:
    activity = Activity(action.verb, action.run, "", "", action.at, action.expected)
    for region in REGIONS_OF_ACTIVITY:
        state = _without_problem(state, region)
    state = replace(state, activity=activity, says="", offers=())
    if not action.run:
        return state
    fresh = fresh_stages(state.facts.missing)
    run = state.run(action.run) or Run(action.run, action.changed, fresh)
    if action.restart:
        run = replace(run, stages=fresh, finished=False)
    return _with_run(state, run).looking(shown=action.run, stage="")


def _stage_started(state: State, action: a.StageStarted) -> State:
    if state.activity is not None:
        state = replace(state, activity=replace(state.activity, stage=action.stage, doing=""))
    return _update_stage(state, action.run, StageView(action.stage, "running"))


def _progressed(state: State, action: a.Progressed) -> State:
    if state.activity is None:
        return state
    return replace(state, activity=replace(state.activity, doing=action.text))


def _stage_reported(state: State, action: a.StageReported) -> State:
    return _update_stage(state, action.run, action.stage)


def _update_stage(state: State, name: str, view: StageView) -> State:
    run = state.run(name)
    if run is None:
        return state
    stages = tuple(view if stage.name == view.name else stage for stage in run.stages)
    return _with_run(state, replace(run, stages=stages))


def _stages_reported(state: State, action: a.StagesReported) -> State:
    run = state.run(action.run)
    if run is None:
        return state
    return _with_run(state, replace(run, stages=action.stages, finished=False))


def _ended(state: State, action: a.Ended) -> State:
    run = state.run(action.run)
    if run is not None:
        effect = action.without_effect or run.without_effect
        run = replace(run, finished=action.finished or run.finished, without_effect=effect)
        state = _with_run(state, _settled(run))
    return state if action.more else replace(state, activity=None)


def _verdict(state: State, action: a.VerdictCame) -> State:
    run = state.run(action.run)
    if run is None:
        return state
    run = replace(run, verdict=action.verdict, sentence=action.sentence, probes=action.probes)
    return _with_run(state, run)


def _repeated(state: State, action: a.OriginalRepeated) -> State:
    run = state.run(action.run)
    return state if run is None else _with_run(state, replace(run, after=action.text))


def _layers(state: State, action: a.LayersCame) -> State:
    run = state.run(action.run)
    if run is None:
        return state
    run = replace(run, layers=action.layers, layers_version=run.layers_version + 1)
    return _without_problem(_with_run(state, run), "main").looking(layer=-1)


def _findings(state: State, action: a.FindingsCame) -> State:
    return replace(state, findings=action.data, findings_from=action.source)


def _saved_layers(state: State, action: a.SavedLayersCame) -> State:
    return replace(state, saved_layers=action.layers, saved_from=action.source)


def _result(state: State, action: a.ResultCame) -> State:
    before = state.result(action.name)
    version = before.version + 1 if before is not None else 1
    made = Result(action.name, action.data, action.source, version)
    others = tuple(one for one in state.results if one.name != action.name)
    return replace(state, results=(*others, made))


def _notes(state: State, action: a.NotesChanged) -> State:
    return replace(state, notes=action.notes, notes_said=action.said)


def _report(state: State, action: a.ReportChanged) -> State:
    return replace(state, report=action.report)


def _estimated(state: State, action: a.Estimated) -> State:
    return replace(state, takes=action.seconds)


def _stopped(state: State, action: a.Stopped) -> State:
    del action
    if state.activity is None:
        return state
    where = state.activity.stage
    text = "Stopped by you" + (f" in {words(where)}" if where else "") + "."
    if where:
        text += " Stages before it are kept."
    return replace(_interrupted(state), says=text, offers=(("step", "Step ▶"),))


def _died(state: State, action: a.WorkerDied) -> State:
    return replace(_interrupted(state), says=action.text, offers=action.offers)


def _interrupted(state: State) -> State:
    """The run as far as it got; nothing is running any more."""
    if state.activity is not None and (run := state.run(state.activity.run)) is not None:
        state = _with_run(state, _settled(run))
    return replace(state, activity=None)


def _failed(state: State, action: a.Failed) -> State:
    problems = dict(state.problems)
    problems[action.region] = action.problem
    state = replace(state, problems=tuple(problems.items()))
    return _interrupted(state) if action.region == "rail" else state


def _cleared(state: State, action: a.Cleared) -> State:
    return _without_problem(state, action.region)


# -- helpers ----------------------------------------------------------------------------------


def words(stage: str) -> str:
    """A stage's name as it is read: ``after_update`` becomes ``after update``."""
    return stage.replace("_", " ")


def _settled(run: Run) -> Run:
    stages = tuple(
        StageView(stage.name) if stage.status == "running" else stage for stage in run.stages
    )
    return replace(run, stages=stages)


def _with_run(state: State, run: Run) -> State:
    if state.run(run.name) is None:
        runs = (*state.runs, run)
        # Original comes first, whenever it was made
        runs = tuple(sorted(runs, key=lambda one: one.name != ORIGINAL))
        return replace(state, runs=runs)
    return replace(state, runs=tuple(run if r.name == run.name else r for r in state.runs))


def _without_problem(state: State, region: str) -> State:
    if state.problem(region) is None:
        return state
    return replace(state, problems=tuple(p for p in state.problems if p[0] != region))


# what an action carries is not compared, so that a new table always counts as a change
_CARRIERS = (a.LayersCame, a.FindingsCame, a.SavedLayersCame)

_HANDLERS: dict[type[a.Action], Callable[[State, Any], State]] = {
    a.TabChosen: _tab,
    a.RunShown: _run_shown,
    a.StageChosen: _stage_chosen,
    a.Toggled: _toggled,
    a.Looked: _looked,
    a.SwitchesCame: _switches,
    a.ChartsLoaded: _charts,
    a.ConditionSet: _condition_set,
    a.PresetChosen: _preset,
    a.ConditionsUndone: _conditions_undone,
    a.TrustAsked: _trust_asked,
    a.TrustEdited: _trust_edited,
    a.TrustGiven: _trust_given,
    a.TrustDeclined: _trust_declined,
    a.Started: _started,
    a.StageStarted: _stage_started,
    a.Progressed: _progressed,
    a.StageReported: _stage_reported,
    a.StagesReported: _stages_reported,
    a.Ended: _ended,
    a.VerdictCame: _verdict,
    a.OriginalRepeated: _repeated,
    a.LayersCame: _layers,
    a.FindingsCame: _findings,
    a.SavedLayersCame: _saved_layers,
    a.ResultCame: _result,
    a.NotesChanged: _notes,
    a.ReportChanged: _report,
    a.Estimated: _estimated,
    a.Stopped: _stopped,
    a.WorkerDied: _died,
    a.Failed: _failed,
    a.Cleared: _cleared,
}
