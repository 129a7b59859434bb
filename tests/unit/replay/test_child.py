"""A child process ends with a reason whatever it is doing, and the bundle replays again."""

import sys
import time

import pytest

from tests.unit.replay import steps
from tests.unit.replay.steps import record, write_bundle
from workbench.replay import Replay, ReplayWorker, worker_main
from workbench.replay.child import Child

FILE = """
import os, signal, subprocess, sys, time, ctypes
import torch
from tests.unit.replay.steps import LogOfSoftmax

class Native(LogOfSoftmax):
    \"\"\"Stuck in native code that holds the interpreter and has SIGTERM ignored.\"\"\"
    def forward(self, model, batch):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ctypes.PyDLL(None).sleep(60)

class Killed(LogOfSoftmax):
    def loss(self, outputs, batch):
        os.kill(os.getpid(), signal.SIGKILL)

class LeavesAChild(LogOfSoftmax):
    \"\"\"Dies while a process of its own holds its pipes.\"\"\"
    def loss(self, outputs, batch):
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        os._exit(5)

class Hungry(LogOfSoftmax):
    def forward(self, model, batch):
        torch.empty(10**15)

class Starved(LogOfSoftmax):
    def forward(self, model, batch):
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))
        return model[0](torch.empty(2**40, 4))

class Deaf(LogOfSoftmax):
    \"\"\"Stands in for a CUDA error: the device no longer answers.\"\"\"
    def forward(self, model, batch):
        class Cuda:
            is_initialized = staticmethod(lambda: True)
            def synchronize(self):
                raise RuntimeError("CUDA error: device-side assert triggered")
        class Torch:
            cuda = Cuda()
        from workbench.replay import worker_main
        sys.modules["__main__"].device_lost.__globals__["sys"] = type(
            "Sys", (), {"modules": {"torch": Torch}}
        )
        return super().forward(model, batch)
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("child")
    (folder / "mine.py").write_text(FILE)
    return write_bundle(folder, record(steps.LogOfSoftmax()))


def worker_for(bundle, name):
    return ReplayWorker(bundle, step=f"{bundle.parent / 'mine.py'}:{name}")


def replays(bundle):
    return Replay(bundle, step=steps.LogOfSoftmax()).run().verdict


def test_a_stop_ends_native_code_that_listens_to_nothing(bundle):
    worker = worker_for(bundle, "Native")
    worker.send("run")
    for event in worker.events(timeout=120):
        if event["event"] == "stage_begun" and event["stage"] == "forward":
            break
    time.sleep(0.2)  # into the native call
    worker.stop()
    assert not worker.alive
    assert [event["event"] for event in worker.events(timeout=30)] == ["stopped"]
    assert worker.result("reset")["event"] == "done"
    worker.stop()


@pytest.mark.parametrize(
    ("name", "reason"),
    [("Killed", "killed (SIGKILL)"), ("LeavesAChild", "exit code 5")],
)
def test_a_death_has_a_reason_and_the_bundle_replays_at_once(bundle, name, reason):
    with worker_for(bundle, name) as worker:
        died = worker.result("run")
    assert died["event"] == "died"
    assert reason in died["reason"]
    assert replays(bundle) == "bitwise"


@pytest.mark.parametrize("name", ["Hungry", "Starved"])
def test_memory_that_runs_out_is_an_answer_of_the_child(bundle, name):
    with worker_for(bundle, name) as worker:
        refused = worker.result("run")
        assert (refused["event"], refused["kind"]) == ("error", "CannotRunError")
        assert "ran out of memory in forward" in refused["message"]
        assert "keep_samples" in refused["message"]
        assert worker.alive


def test_a_lost_device_ends_the_process_and_the_next_command_has_a_new_one(bundle):
    with worker_for(bundle, "Deaf") as worker:
        first = worker.result("run")
        pid = worker.pid
        assert first["event"] == "done"
        assert "device-side assert" in first["device_lost"]
        assert worker.result("reset")["event"] == "done"
        assert worker.pid != pid
        assert worker.poll() == []


def test_a_device_that_works_or_was_never_used_is_not_lost():
    assert worker_main.device_lost() is None


def test_a_line_that_was_cut_off_does_not_hide_the_death():
    seen = []
    code = 'import os; os.write(1, b\'{"event": "sta\'); os._exit(4)'
    child = Child([sys.executable, "-c", code], seen.append)
    assert child.finished.wait(60)
    time.sleep(0.05)
    assert [event["event"] for event in seen] == ["died"]
    assert seen[0]["code"] == 4


def test_the_next_command_does_not_get_the_last_ones_end(bundle):
    with ReplayWorker(bundle, step=steps.LogOfSoftmax()) as worker:
        worker.send("run")
        worker.stop()
        worker.send("reset")
        assert [event["event"] for event in worker.events(timeout=120)] == ["done"]
