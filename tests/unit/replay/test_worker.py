import sys
import time
from types import ModuleType

import pytest

from tests.unit.replay import steps
from tests.unit.replay.steps import record, write_bundle
from workbench.errors import CannotRunError, UsageError
from workbench.replay import ReplayWorker
from workbench.replay.worker import reference_of
from workbench.replay.worker_main import ENTRIES

STEP_FILE = """
import os, time, ctypes
import torch
from tests.unit.replay.steps import LogOfSoftmax

class Chatty(LogOfSoftmax):
    def forward(self, model, batch):
        print("user code prints", flush=True)
        assert input.__name__ == "input"
        return super().forward(model, batch)

class Slow(LogOfSoftmax):
    def forward(self, model, batch):
        while True:
            time.sleep(0.05)

class Crashes(LogOfSoftmax):
    def loss(self, outputs, batch):
        ctypes.string_at(0)

class Leaves(LogOfSoftmax):
    def loss(self, outputs, batch):
        os._exit(3)
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("worker")
    (folder / "mine.py").write_text(STEP_FILE)
    return write_bundle(folder, record(steps.LogOfSoftmax()))


def worker_for(bundle, name, **options):
    return ReplayWorker(bundle, step=f"{bundle.parent / 'mine.py'}:{name}", **options)


def last(worker):
    return list(worker.events(timeout=300))[-1]


def test_a_whole_session_in_one_process(bundle):
    with worker_for(bundle, "Chatty") as worker:
        assert not worker.alive
        worker.start({"command": "run", "until": None, "conditions": {}})
        events = list(worker.events(timeout=300))
        kinds = [(e["event"], e.get("stage")) for e in events[:-1]]
        assert kinds == [
            (event, stage)
            for stage in ("input", "forward", "loss")
            for event in ("stage_begun", "stage_done")
        ]
        assert events[-2]["counts"]["nan"] == 1
        assert events[-1]["result"]["verdict"] == "bitwise"
        pid = worker.pid
        assert worker.result("step")["result"]["stages"][3]["status"] == "bad"
        assert worker.result("back")["result"]["stages"][3]["status"] == "not_run"
        assert worker.result("verdict")["result"]["deterministic_here"] is True
        traced = worker.result("trace")
        assert traced["result"]["reproduction"]["survives_instrumentation"] is True
        assert len(traced["layers"]["columns"]["module"]) > 0
        changed = worker.result("run", conditions={"autocast": "bfloat16"})
        assert changed["result"]["changed"] == {"autocast": "bfloat16"}
        stages = worker.result("reset")["result"]["stages"]
        assert {stage["status"] for stage in stages} == {"not_run"}
        refused = worker.result("diagnose", entry="os:system")
        assert (refused["event"], refused["exit_code"]) == ("error", 2)
        wrong = worker.result("run", conditions={"warp": 9})
        assert (wrong["kind"], wrong["exit_code"]) == ("UsageError", 2)
        assert worker.pid == pid
    assert not worker.alive


def test_stop_ends_a_running_step_and_the_next_command_starts_anew(bundle):
    seen = []
    worker = worker_for(bundle, "Slow", on_event=seen.append)
    worker.send("run")
    while not any(e["event"] == "stage_begun" and e["stage"] == "forward" for e in seen):
        time.sleep(0.01)
    with pytest.raises(UsageError, match="still busy"):
        worker.send("step")
    worker.stop()
    ended = last(worker)
    assert ended["event"] == "stopped"
    assert ended["stage"] == "forward"
    assert ended["message"] == "Stopped by you in forward. Stages before it are kept."
    assert not worker.alive
    assert not worker.busy
    worker.send("reset")
    assert last(worker)["event"] == "done"
    worker.stop()


def test_a_crash_becomes_an_event_with_a_reason(bundle):
    worker = worker_for(bundle, "Crashes")
    worker.send("run")
    died = last(worker)
    assert died["event"] == "died"
    assert died["stage"] == "loss"
    assert died["message"] == (
        "The replay process died in loss: a segmentation fault (SIGSEGV) in native code. "
        "The bundle is untouched."
    )
    assert "Segmentation fault" in died["stderr"]


def test_an_exit_becomes_an_event(bundle):
    worker = worker_for(bundle, "Leaves")
    worker.send("run")
    assert "exit code 3" in last(worker)["reason"]


def test_a_time_limit_ends_it(bundle):
    worker = worker_for(bundle, "Slow")
    worker.send("run", timeout_s=8.0)
    died = last(worker)
    assert died["event"] == "died"
    assert "longer than the limit of 8 s" in died["message"]


def test_a_step_that_cannot_be_found_is_an_error_of_the_child(bundle):
    with ReplayWorker(bundle) as worker:
        refused = worker.result("run")
        assert (refused["kind"], refused["exit_code"]) == ("CannotRunError", 4)
        assert worker.alive


def test_an_unknown_command_starts_nothing(bundle):
    worker = ReplayWorker(bundle)
    with pytest.raises(UsageError, match="'explode'"):
        worker.send("explode")
    assert worker.pid is None


def test_a_step_object_goes_by_its_reference():
    assert reference_of(None) is None
    assert reference_of("train:Step") == "train:Step"
    assert reference_of(steps.Plain()).endswith(":Plain")
    assert reference_of(steps.Plain) == reference_of(steps.Plain())


def test_a_step_that_only_this_process_knows_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "cell", ModuleType("cell"))
    namespace = {"Plain": steps.Plain, "__name__": "cell"}
    exec("class Typed(Plain):\n    pass", namespace)  # noqa: S102 - what a notebook cell does
    with pytest.raises(CannotRunError, match="'Typed'"):
        reference_of(namespace["Typed"])
    with pytest.raises(CannotRunError, match="'Typed' was typed into a notebook cell"):
        reference_of(namespace["Typed"]())


def test_the_allow_list_is_fixed():
    assert {"workbench.diagnose:run_in_worker", "workbench.diagnose:run_cell"} == ENTRIES
