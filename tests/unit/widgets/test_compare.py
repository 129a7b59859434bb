"""Comparing runs and bundles, sweeps, presets, samples: asked for, kept, and said in words."""

from __future__ import annotations

import pytest
import torch

from tests.unit.widgets.conftest import make_bundle
from workbench.errors import UsageError
from workbench.evidence import open_bundle
from workbench.replay.side_by_side import compare_bundles, tensor_row
from workbench.widgets import Workbench, compare_text
from workbench.widgets import actions as a

NAN, INF = float("nan"), float("inf")


def compared(*pairs):
    rows = [tensor_row(name, one, other) for name, one, other in pairs]
    from workbench.replay.side_by_side import _parting

    return {"rows": rows, **_parting(rows)}


def test_masks_come_before_errors_and_name_the_first_index():
    x, y = torch.tensor([1.0, NAN, -INF]), torch.tensor([1.5, NAN, 2.0])
    data = compared(("same", x, x), ("head", x, y), ("loss", torch.tensor(1.0), torch.tensor(1.0)))
    said = " ".join(compare_text.sentences(data, "Original", "A"))
    assert said.startswith("Non-finite sets differ in 1 of 3 tensors, first in head")
    assert "1 NaN, equal; −Inf: 1 only in Original, first at [2]" in said
    assert "largest error where both are finite 0.5" in said


def test_equal_masks_and_equal_bits_are_told_apart():
    x = torch.tensor([1.0, NAN])
    close = compared(("head", x, torch.tensor([1.25, NAN])))
    assert "equal in the 1 tensor that" in compare_text.sentences(close, "Original", "A")[0]
    assert "bit by bit" in compare_text.sentences(compared(("h", x, x)), "Original", "A")[0]


def test_tensors_of_one_side_only_are_counted():
    data = compared(("gradient:w", None, torch.ones(2)), ("loss", torch.ones(1), torch.ones(1)))
    assert "Only in A: 1 tensor." in compare_text.sentences(data, "Original", "A")


def test_the_table_has_the_floor_of_the_denominator(panel):
    data = compared(("head", torch.tensor([1.0]), torch.tensor([2.0])))
    body = compare_text.comparison(data, "Original", "A", opened=False)
    assert "Denominator at least" in body and "1.175e-38" in body


def test_two_runs_are_compared_in_the_replay_process(panel, workers):
    panel.set_condition("autocast", "off")
    panel.replay()
    panel.wait()
    panel.compare()
    panel.wait()
    command, arguments = workers[0].sent[-1]
    assert command == "compare"
    assert arguments == {"first": {}, "second": {"autocast": "off"}}
    assert panel.state.look.tab == "compare"
    region = panel.main._made["compare"]
    assert "First place they part: head" in region._body.value


def test_one_run_alone_cannot_be_compared(panel):
    with pytest.raises(UsageError, match="nothing to compare"):
        panel.compare()
    panel._store.dispatch(a.TabChosen("compare"))
    assert panel.main._made["compare"]._run.disabled


def test_bundles_are_compared_without_asking_for_trust(tmp_path, bundle, workers):
    from tests.unit.widgets.fakes import FakeWorker

    other = open_bundle(make_bundle(tmp_path, name="run8-step00000007", run_id="run8"))

    def start():
        workers.append(FakeWorker())
        return workers[-1]

    panel = Workbench(bundle, compare=other, worker=start)
    panel.compare_bundles()
    panel.wait()
    assert not panel.state.trust.asked
    assert workers[0].sent == [("compare", {"other": str(other.path)})]
    panel.close()


def test_what_two_bundles_recorded_is_compared_by_name(tmp_path, bundle):
    other = open_bundle(make_bundle(tmp_path / "other", stage="backward", tensor="gradients"))
    data = compare_bundles(bundle, other, lambda _: None)
    assert {row["name"] for row in data["rows"]} == {"x", "head.weight"}
    assert data["bitwise"] == 2
    assert "gradients.safetensors is not in" in data["note"]
    body = compare_text.bundles(data, opened=True)
    assert "loss" in body and "backward" in body


def test_sweep_minimal_ladder_and_minimise_are_one_command_each(panel, workers):
    for name in ("sweep", "minimal", "ladder", "minimize"):
        panel._commands.act(name)
        panel.wait()
        assert workers[0].sent[-1] == ("diagnose", {"task": name} | workers[0].beside(name))
        assert panel.state.result(name) is not None


def test_a_counterfactual_runs_again_and_its_row_says_so(panel, workers):
    panel.diagnose()
    panel.wait()
    panel._commands.act("counterfactual:0")
    panel.wait()
    assert workers[0].sent[-1][1]["intervention"] == "log_softmax instead of log(softmax)"
    panel._store.dispatch(a.TabChosen("origin"))
    assert (
        "Run again here, just now: It fails the same way."
        in panel.main._made["origin"].widget.value
    )


def test_anomaly_mode_is_asked_on_request(panel, workers):
    panel.diagnose(anomaly=True)
    panel.wait()
    assert workers[0].sent[-1] == ("diagnose", {"anomaly": True})


def test_a_preset_sets_its_switches_and_runs_nothing(panel, workers):
    panel.preset("float64")
    assert dict(panel.state.wanted) == {"autocast": "off", "dtype": "float64"}
    panel.preset("original")
    assert panel.state.wanted == () and workers == []


def test_a_preset_without_effect_says_why(panel):
    with pytest.raises(UsageError, match="needs a CUDA GPU"):
        panel.preset("no cuDNN")
    labels = [label for label, _ in panel.conditions._preset.options]
    assert "no cuDNN, no effect here" in labels


def test_all_conditions_are_in_a_group(panel):
    from workbench.widgets.presets import GROUPS

    grouped = {key for keys in GROUPS.values() for key in keys}
    quick = {switch.key for switch in panel.state.facts.switches if switch.quick}
    assert grouped | quick == {switch.key for switch in panel.state.facts.switches}


def test_samples_are_chosen_and_replayed(panel, workers):
    panel._store.dispatch(a.TabChosen("evidence"))
    batch = panel.main._made["evidence"]._batch
    assert len(batch._list.options) == 8
    assert batch._run.disabled
    batch._list.value = (2, 5)
    assert panel.state.look.samples == (2, 5)
    panel._commands.act("replay_samples")
    panel.wait()
    assert ("run", {"until": None, "conditions": {"keep_samples": "2,5"}}) in workers[0].sent


def test_looking_is_a_method_too(panel):
    panel.show("evidence", section="files")
    assert panel.state.look.tab == "evidence" and panel.state.look.section == "files"
    with pytest.raises(UsageError, match="no tab 'nowhere'"):
        panel.show("nowhere")


def test_the_record_of_a_step_stands_under_the_timeline(panel):
    panel.show("timeline", record=18300)
    region = panel.main._made["timeline"]
    assert "step 18,300" in region._card.value
    assert "Back to the incident" in region._card.value
    panel._commands.act("record:18342")
    assert "(the incident)" in region._card.value
