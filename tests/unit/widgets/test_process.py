"""The panel over a real replay in a real child process."""

from __future__ import annotations

import sys
import time

import psutil
import pytest

from tests.browser import train_step
from workbench.widgets import Workbench


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return train_step.record(tmp_path_factory.mktemp("incidents"))


@pytest.fixture
def panel(recorded):
    made = Workbench(recorded, step="tests.browser.train_step:Step")
    yield made
    made.close()


def test_it_steps_goes_back_diagnoses_and_stops_for_real(panel):
    panel.run_to_first_bad()
    panel.wait()
    original = panel.state.run("Original")
    assert original.bad.name == "loss"
    assert (original.verdict, original.probes) == ("bitwise", True)
    assert len(original.layers.columns["module"]) > 3
    panel.back()
    panel.wait()
    assert panel.state.shown.bad is None
    loaded = "workbench.replay.worker_main" in sys.modules  # by another test of this process
    panel.step()
    panel.wait()
    assert panel.state.shown.bad.name == "loss"
    panel.set_condition("dtype", "float64")
    panel.replay()
    panel.wait()
    assert panel.state.run("A").finished
    process = psutil.Process(panel._jobs._worker.pid)
    panel.run_to_first_bad()
    panel.stop()
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    assert panel.state.activity is None
    assert loaded or "workbench.replay.worker_main" not in sys.modules


def test_a_step_that_another_process_cannot_find_is_refused_in_words(recorded, monkeypatch):
    monkeypatch.delenv("WORKBENCH_RAISE")
    step = type("Step", (train_step.Step,), {"__module__": "__main__"})()
    panel = Workbench(recorded, step=step)
    panel.rail._controls["step"].click()
    panel.wait()
    problem = panel.state.problem("rail")
    assert problem is not None and "Step" in problem.text and not problem.trace
    assert panel.state.activity is None


def test_a_killed_process_is_reported_as_died(panel):
    panel.step()
    panel.wait()
    panel.run_to_first_bad()
    psutil.Process(panel._jobs._worker.pid).kill()
    deadline = time.monotonic() + 180  # a busy machine takes its time
    while panel.state.activity is not None and time.monotonic() < deadline:
        panel._jobs.pump(0.1)
    assert "died" in panel.state.says
