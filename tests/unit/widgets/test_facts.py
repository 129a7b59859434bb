from __future__ import annotations

import pytest

from tests.unit.widgets.conftest import make_bundle
from tests.unit.widgets.fakes import findings, layers
from workbench.evidence import Conditions, open_bundle, write_table
from workbench.numerics import jsonio
from workbench.widgets import Workbench
from workbench.widgets.actions import SwitchesCame
from workbench.widgets.facts import read_facts
from workbench.widgets.reducer import reduce
from workbench.widgets.state import State
from workbench.widgets.switches import device_note, read_switches


def facts_of(bundle):
    """The recorded facts with what torch adds to them."""
    came = SwitchesCame(read_switches(bundle), device_note(bundle.conditions))
    return reduce(State(facts=read_facts(bundle)), came).facts


def test_every_condition_has_a_switch_and_five_are_quick(bundle):
    facts = facts_of(bundle)
    assert {switch.key for switch in facts.switches} == set(Conditions.__struct_fields__)
    assert [s.label for s in facts.switches if s.quick] == [
        "Autocast", "cuDNN", "Deterministic", "TF32", "Device",
    ]  # fmt: skip


def test_a_clip_threshold_cannot_change_a_nan_loss(bundle):
    assert "clipping happens after backward" in facts_of(bundle).switch("max_grad_norm").why_not


def test_a_switch_that_acts_beside_another_one_is_not_disabled(bundle):
    facts = facts_of(bundle)
    for key in ("compile_dynamic", "fill_uninitialized_memory", "autocast_cache"):
        assert facts.switch(key).why_not == ""


def test_stages_that_the_bundle_cannot_replay_say_what_is_missing(tmp_path):
    path = make_bundle(
        tmp_path,
        completeness={"forward_loss": "complete", "backward": "complete",
                      "update": "missing optimizer state (kept out by max_bytes)"},
    )  # fmt: skip
    panel = Workbench(open_bundle(path), step="train:Step")
    view = {stage.name: stage for stage in panel.state.stages}["update"]
    assert view.status == "unavailable"
    assert panel.rail._buttons["update"].description == "– update"
    assert "The bundle has no optimizer state" in panel.rail._buttons["update"].tooltip
    with pytest.raises(Exception, match="The bundle has no optimizer state"):
        panel.run_to("update")


def test_a_cuda_bundle_without_a_gpu_says_under_which_rules_it_replays(tmp_path):
    conditions = Conditions(device="cuda:0", autocast="float16")
    facts = facts_of(open_bundle(make_bundle(tmp_path, conditions=conditions)))
    if "cuda:0" in facts.switch("device").choices[1:]:
        pytest.skip("a GPU is here")
    assert "under CUDA's autocast rules" in facts.device_note
    assert facts.switch("device").recorded == "cuda:0"
    assert "cpu" in facts.switch("device").choices


def save_findings(bundle, digest):
    data = findings() | {"bundle": {"id": bundle.id, "digest": digest, "kind": "nonfinite"}}
    bundle.findings_dir.mkdir()
    (bundle.findings_dir / "findings.json").write_text(jsonio.dumps(data))
    write_table(bundle.findings_dir / "trace", "layers", layers())


def test_saved_findings_are_shown_with_their_date_and_origin_comes_first(bundle):
    save_findings(bundle, bundle.digest)
    panel = Workbench(bundle)
    assert panel.state.look.tab == "origin"
    assert "saved on" in panel.state.findings_from
    assert "not run here" in panel.state.saved_from
    assert "Born at aten.log.default" in panel.summary()


def test_findings_about_other_bytes_are_not_shown(bundle):
    save_findings(bundle, "sha256:" + "0" * 64)
    panel = Workbench(bundle)
    assert panel.state.findings is None
    assert panel.state.saved_layers is None


def test_a_damaged_findings_file_does_not_keep_the_panel_from_opening(bundle):
    bundle.findings_dir.mkdir()
    (bundle.findings_dir / "findings.json").write_text('{"a": NaN}')
    assert Workbench(bundle).state.findings is None
