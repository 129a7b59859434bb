from __future__ import annotations

import ast
from dataclasses import replace

from workbench.diagnose import panel_tasks
from workbench.replay import side_by_side
from workbench.widgets.code import to_code
from workbench.widgets.code_results import TASKS
from workbench.widgets.state import MADE_HERE, Result


def test_the_code_makes_the_runs_on_screen(panel):
    panel.run_to_first_bad()
    panel.wait()
    panel.set_condition("autocast", "off")
    panel.replay()
    panel.wait()
    panel.set_condition("deterministic", "on")
    code = panel.to_code()
    ast.parse(code)
    assert "replay = workbench.Replay(bundle, step='train:Step')" in code
    assert "original = replay.run()" in code
    assert "run_a = replay.run(conditions=bundle.conditions.replace(autocast='off'))" in code
    assert "# set in the panel, not run yet" in code


def test_a_partial_run_names_its_last_stage(panel):
    panel.run_to("forward")
    panel.wait()
    assert "original = replay.run(until='forward')" in panel.to_code()


def test_names_from_a_bundle_stay_string_literals(panel):
    evil = "x')\nimport os  # "
    facts = replace(panel.state.facts, path=evil, step_reference=evil)
    tree = ast.parse(to_code(replace(panel.state, facts=facts)))
    imports = [node.names[0].name for node in ast.walk(tree) if isinstance(node, ast.Import)]
    assert imports == ["workbench"]


def test_longer_tasks_and_presets_are_in_the_code_and_saved_results_are_not(panel):
    panel.run_to_first_bad()
    panel.wait()
    panel.set_condition("autocast", "off")
    panel.replay()
    panel.wait()
    panel.preset("float32")
    state = panel.state
    made = [Result(name, {}, MADE_HERE) for name in ("comparison", "sweep", "bundles")]
    saved = Result("ladder", {}, "Saved on 12 Nov, not run here.")
    look = replace(state.look, other="it's/other.bundle", against=("Original", "A"))
    code = to_code(replace(state, results=(*made, saved), look=look))
    ast.parse(code)
    assert ", preset float32, not run yet" in code
    assert "bundle.conditions, bundle.conditions.replace(autocast='off'), print)" in code
    assert "sweep = run_task(replay, 'sweep', {}, print)" in code
    assert '"it\'s/other.bundle"' in code
    assert "ladder" not in code


def test_the_lines_of_longer_tasks_name_functions_that_exist():
    for name in ("compare_runs", "compare_paths"):
        assert callable(getattr(side_by_side, name))
    assert set(TASKS) <= set(panel_tasks._TASKS)
