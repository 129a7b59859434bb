"""The panel over a recorded bundle and a replay process that answers at once."""

from __future__ import annotations

import pytest

from tests.unit.widgets.fakes import FakeWorker
from workbench.errors import UsageError
from workbench.widgets import Workbench
from workbench.widgets.state import RECORDED


def statuses(panel):
    return {stage.name: stage.status for stage in panel.state.stages}


def sent(worker):
    return [command for command, _ in worker.sent]


def test_opening_starts_no_process_and_shows_what_was_recorded(panel, workers):
    assert workers == []
    assert panel.state.look.shown == RECORDED
    assert statuses(panel)["loss"] == "bad"
    assert "Caught at loss (1 NaN of 1)" in panel.summary()
    assert "Born at not known yet" in panel.summary()


def test_stepping_goes_stage_by_stage_in_one_process(panel, workers):
    for expected in ("input", "forward", "loss"):
        panel.step()
        panel.wait()
        assert panel.state.shown.stages[panel.state.shown.reached - 1].name == expected
    assert statuses(panel)["loss"] == "bad"
    assert len(workers) == 1
    assert sent(workers[0]) == ["run", "step", "step"]


def test_back_runs_again_to_the_stage_before(panel):
    panel.run_to("loss")
    panel.wait()
    panel.back()
    panel.wait()
    assert statuses(panel)["forward"] == "clean"
    assert statuses(panel)["loss"] == "not_run"


def test_run_to_first_bad_compares_and_traces(panel, workers):
    panel.run_to_first_bad()
    panel.wait()
    assert sent(workers[0]) == ["run", "verdict", "trace"]
    assert "Replayed exactly" in panel.summary()
    assert panel.state.shown.layers is not None


def test_reset_forgets_the_stages(panel):
    panel.run_to("forward")
    panel.wait()
    panel.reset()
    panel.wait()
    assert panel.state.shown.reached == 0


def test_a_finite_diagnostic_run_is_followed_by_original_at_once(panel, workers):
    panel.set_condition("autocast", "off")
    assert workers == []
    panel.replay()
    panel.wait()
    runs = {run.name: run for run in panel.state.runs}
    assert list(runs) == ["Original", "A"]
    assert [arguments["conditions"] for _, arguments in workers[0].sent] == [
        {"autocast": "off"},
        {},
        {"autocast": "off"},
    ]
    assert "Original, run again after it: still NaN at loss." in runs["A"].after
    assert "does not show that it is the cause" in runs["A"].after
    assert panel.state.look.shown == "A"


def test_a_diagnostic_run_that_fails_the_same_way_says_so(panel):
    panel.set_condition("deterministic", "on")
    panel.replay()
    panel.wait()
    assert panel.state.run("A").after == "It fails the same way."
    assert panel.state.run("Original") is None


def test_runs_are_kept_and_named_in_order(panel):
    for key, value in (("autocast", "off"), ("deterministic", "on")):
        panel.set_condition(key, value)
        panel.replay()
        panel.wait()
    assert [run.name for run in panel.state.runs] == ["Original", "A", "B"]
    assert dict(panel.state.run("B").changed) == {"autocast": "off", "deterministic": "on"}


def test_a_condition_without_effect_is_refused_with_its_reason(panel):
    with pytest.raises(UsageError, match="needs a CUDA GPU"):
        panel.set_condition("cudnn", "off")
    with pytest.raises(UsageError, match="no condition 'autocats'"):
        panel.set_condition("autocats", "off")


def test_an_unknown_stage_is_refused(panel):
    with pytest.raises(UsageError, match="no stage 'lossy'"):
        panel.run_to("lossy")


def test_stop_ends_the_process_and_the_next_step_starts_another(bundle):
    made = []

    def slow():
        made.append(FakeWorker(slow=True))
        return made[-1]

    panel = Workbench(bundle, step="train:Step", worker=slow)
    panel.run_to("backward")
    panel._jobs.pump()
    assert panel.state.activity.stage == "input"
    with pytest.raises(UsageError, match="A replay is running"):
        panel.step()
    panel.stop()
    assert made[0].alive is False
    assert panel.state.says.startswith("Stopped by you in input")
    made_slow = made[:]
    panel.step()
    assert len(made) == len(made_slow) + 1
    panel.close()


def test_a_process_that_died_is_reported_and_nothing_is_lost(panel, workers):
    panel.run_to("forward")
    panel.wait()
    workers[0].slow = True
    panel.step()
    workers[0].die("The replay process died in loss: it was killed (SIGKILL).")
    panel.wait()
    assert "SIGKILL" in panel.state.says
    assert statuses(panel)["forward"] == "clean"
    panel.step()
    panel.wait()
    assert len(workers) == 2
    assert statuses(panel)["loss"] == "bad"


def test_an_error_of_the_process_stands_in_the_rail(panel, workers, monkeypatch):
    def broken(self, **_):
        yield {"event": "error", "kind": "CannotRunError", "message": "The step's code is gone."}

    monkeypatch.setattr(FakeWorker, "_run", broken)
    panel.step()
    panel.wait()
    assert panel.state.problem("rail").text == "The step's code is gone."
    assert "The step&#x27;s code is gone." in panel.rail._line.value
    assert panel.state.activity is None


def test_a_diagnosis_fills_the_header_and_never_mixes_caught_and_born(panel):
    panel.diagnose()
    panel.wait()
    summary = panel.summary()
    assert "Caught at loss (1 NaN of 1)." in summary
    assert "Born at aten.log.default in loss, train.py:31." in summary
    assert "Why     Log of zero" in summary
    assert [run.name for run in panel.state.runs] == []


def test_the_mimebundle_holds_the_header_for_readers_without_a_kernel(panel):
    shown = panel._repr_mimebundle_()
    assert set(shown) >= {"text/plain", "text/html", "application/vnd.jupyter.widget-view+json"}
    assert "The loss became NaN." in shown["text/html"]
    assert "data-wb" not in shown["text/html"]
    assert "<script" not in shown["text/html"]


def test_a_dead_process_offers_ways_on_and_runs_again_what_it_was_doing(panel, workers):
    panel.step()
    panel.wait()
    workers[0].slow = True
    panel.step()
    workers[0].die("The replay process died in forward: it was killed (SIGKILL).")
    panel.wait()
    assert dict(panel.state.offers) == {
        "again": "Step again",
        "fewer_samples": "Replay with 1 of 8 samples",
    }
    assert 'data-wb="again"' in panel.rail._line.value
    panel._commands.act("again")
    panel.wait()
    assert len(workers) == 2, "a new process"
    assert workers[1].sent == [("run", {"until": "forward", "conditions": {}})]
    assert panel.state.shown.reached == 2
    assert panel.state.offers == ()


def test_fewer_samples_is_a_diagnostic_run(panel, workers):
    panel._commands.act("fewer_samples")
    panel.wait()
    run = panel.state.run("A")
    assert run.changed == (("keep_samples", "0"),)


def test_staying_with_recorded_evidence_says_that_replay_is_off(bundle):
    panel = Workbench(bundle)
    panel.step()
    panel.decline()
    assert panel.state.says.startswith("Replay is off: the bundle names train:Step")
    assert "Choose code…" in panel.rail._line.value
    panel._commands.act("choose_code")
    assert panel.state.trust.asked and panel.state.says == ""
    panel.close()
