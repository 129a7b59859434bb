from __future__ import annotations

import ast
from dataclasses import replace

from workbench.widgets.code import to_code


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
