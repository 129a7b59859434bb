"""Ends of a run that are no crash: ``os._exit``, signals, workers, the clock, one name twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import workbench
from workbench.evidence import find_bundles, open_bundle

ROOT = Path(__file__).resolve().parent.parent.parent

SCRIPT = """
import os, signal, sys, threading, torch, workbench

class Step(workbench.TrainingStep):
    def build_model(self): return torch.nn.Linear(4, 1)
    def build_optimizer(self, model): return torch.optim.SGD(model.parameters(), lr=0.1)
    def forward(self, model, batch): return model(batch)
    def loss(self, outputs, batch): return outputs.square().mean()

class Data(torch.utils.data.Dataset):
    def __len__(self): return 6
    def __getitem__(self, index):
        x = torch.ones(4) * index
        return x / 0 if index == 5 else x

def main(directory, end):
    step = Step(); model = step.build_model()
    recorder = workbench.Recorder(step, model, step.build_optimizer(model), directory=directory,
                                  run_id=end, policy=workbench.Policy(on_nonfinite="skip"))
    kinds = {"fork": "fork", "spawn": "spawn"}
    workers = dict(num_workers=1, multiprocessing_context=kinds[end]) if end in kinds else {}
    for batch in torch.utils.data.DataLoader(Data(), **workers):
        recorder.train_step(batch)
    if end == "exit":
        os._exit(7)
    if end == "term":
        os.kill(os.getpid(), signal.SIGTERM)
    if end == "abort":
        os.abort()

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
"""
CODES = {"exit": 7, "term": -signal.SIGTERM, "abort": -signal.SIGABRT, "fork": 0, "spawn": 0}


def test_every_end_leaves_its_records_and_its_bundle(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    running = {
        end: subprocess.Popen(
            [sys.executable, "train.py", "runs", end],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE,
        )
        for end in CODES
    }  # fmt: skip
    for end, process in running.items():
        _, said = process.communicate(timeout=300)
        assert process.returncode == CODES[end], said.decode()[-1500:]
        lines = (tmp_path / "runs" / f"{end}.ledger.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == list(range(6))
        bundle = open_bundle(tmp_path / "runs" / f"{end}-step00000005.bundle")
        # a process that is ended while it writes leaves a smaller bundle that says so
        assert bundle.sealed or CODES[end] != 0
        assert {check.status for check in bundle.verify()} == {"ok"}


SLOW_SCRIPT = """
import os, sys, torch, workbench

class Step(workbench.TrainingStep):
    def forward(self, model, batch): return model(batch)
    def loss(self, outputs, batch): return outputs.square().mean()

model = torch.nn.Linear(400, 400)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
policy = workbench.Policy(on_nonfinite="skip", recovery_every=1, recovery_bytes=3 * 2**20,
                          ledger_bytes=30_000)
recorder = workbench.Recorder(Step(), model, optimizer, directory=sys.argv[1], run_id="r",
                              policy=policy)
for k in range(20):
    recorder.train_step(torch.ones(2, 400))
os.fsync(int(os.environ["SLOW_TOLD"]))
os.write(int(os.environ["SLOW_TOLD"]), b"|")
recorder.train_step(torch.full((2, 400), float("nan")))
if sys.argv[2] == "exit":
    os._exit(7)
recorder.train_step(torch.ones(2, 400))
recorder.close()
print(recorder.failures)
"""


def test_a_slow_disk_and_a_jumping_clock_hold_no_clean_step_up_and_lose_nothing(tmp_path):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("no C compiler to make a disk slow with")
    library = tmp_path / "slow.so"
    source = Path(__file__).parent / "slow_disk.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    (tmp_path / "train.py").write_text(SLOW_SCRIPT)
    running = {}
    for end in ("close", "exit"):
        told = os.open(tmp_path / f"{end}.told", os.O_CREAT | os.O_RDWR)
        environment = {
            "PYTHONPATH": str(ROOT), "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1",
            "SLOW_UNDER": str(tmp_path / end), "SLOW_TOLD": str(told),
        }  # fmt: skip
        running[end] = subprocess.Popen(
            [sys.executable, "train.py", str(tmp_path / end), end], cwd=tmp_path, text=True,
            env=os.environ | environment, pass_fds=[told], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        os.close(told)
    for end, process in running.items():
        out, said = process.communicate(timeout=300)
        assert process.returncode == (7 if end == "exit" else 0), said[-1500:]
        waited, _, bad = (tmp_path / f"{end}.told").read_text().partition("|")
        assert 1 <= len(waited) < 10, "of 20 clean steps the first alone waits for the slow disk"
        assert len(bad) < 25, "the files of a bundle's light part are written several at a time"
        steps = [
            json.loads(line)["step"]
            for name in ("r.ledger.1.jsonl", "r.ledger.jsonl")
            if (tmp_path / end / name).exists()
            for line in (tmp_path / end / name).read_text().splitlines()
        ]
        assert steps == list(range(steps[0], 21 if end == "exit" else 22))
        bundle = open_bundle(tmp_path / end / "r-step00000020.bundle")
        assert bundle.sealed == (end == "close")
        assert {check.status for check in bundle.verify()} == {"ok"}
        assert end == "exit" or out.strip() == "[]"
    again = recorder_in(tmp_path / "exit")  # a restart works, and nothing half-written stays
    again.train_step(torch.full((2, 4), float("nan")))
    again.close()
    assert again.failures == []
    assert [p.name for p in (tmp_path / "exit").glob(".r-*")] == []


class Step(workbench.TrainingStep):
    def build_model(self):
        return torch.nn.Linear(4, 1)

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def forward(self, model, batch):
        return model(batch)

    def loss(self, outputs, batch):
        return outputs.square().mean()


def recorder_in(directory):
    step = Step()
    model = step.build_model()
    policy = workbench.Policy(on_nonfinite="skip")
    optimizer = step.build_optimizer(model)
    return workbench.Recorder(
        step, model, optimizer, directory=directory, run_id="r", policy=policy
    )


def test_two_runs_of_one_name_keep_each_others_records_and_bundles(tmp_path):
    one, two = recorder_in(tmp_path), recorder_in(tmp_path)
    bad = torch.full((2, 4), float("nan"))
    for batch in (torch.ones(2, 4), bad):
        for recorder in (one, two):
            recorder.train_step(batch)
    lines = (tmp_path / "r.ledger.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 0, 1, 1]
    found = find_bundles(tmp_path)
    assert len(found) == 2, "neither replaced the other's"
    assert all({c.status for c in open_bundle(path).verify()} == {"ok"} for path in found)


def test_a_clock_that_jumps_back_changes_nothing_but_the_times(tmp_path, monkeypatch):
    import time

    recorder = recorder_in(tmp_path)
    recorder.train_step(torch.ones(2, 4))
    monkeypatch.setattr(time, "time", lambda: 12.0)  # 1970
    result = recorder.train_step(torch.full((2, 4), float("nan")))
    assert recorder.failures == []
    assert [r["step"] for r in open_bundle(result.incident).ledger()] == [0, 1]


def test_a_directory_that_cannot_be_written_never_stops_training(tmp_path):
    (tmp_path / "file").write_text("no directory")
    recorder = recorder_in(tmp_path / "file" / "runs")
    for batch in (torch.ones(2, 4), torch.full((2, 4), float("nan")), torch.ones(2, 4)):
        result = recorder.train_step(batch)
    assert (result.skipped_by, result.optimizers[0].attempted) == ("none", True)
    assert recorder.failures
    assert any("Not a directory" in failure for failure in recorder.failures)


def test_a_pipe_in_place_of_the_ledger_holds_nothing_up(tmp_path):
    os.mkfifo(tmp_path / "r.ledger.jsonl")
    recorder = recorder_in(tmp_path)
    recorder.train_step(torch.ones(2, 4))
    path = recorder.train_step(torch.full((2, 4), float("nan"))).incident
    assert {check.status for check in open_bundle(path).verify()} == {"ok"}
    assert any("no regular file" in failure for failure in recorder.failures)
    recorder.close()
