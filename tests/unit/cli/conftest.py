"""A real bundle, and the command line run as a process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.cli.main import main

STEP = '''
import sys

import torch
import workbench
from torch import nn


class LogOfZero(workbench.TrainingStep):
    """The third batch drives one probability to zero, and the loss takes its logarithm."""

    def build_model(self):
        print("building the model")  # users' code prints; facts on stdout must survive it
        return nn.Linear(4, 3)

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def forward(self, model, batch):
        return torch.softmax(model(batch["x"]), -1)

    def loss(self, outputs, batch):
        return -(batch["y"] * outputs.log()).sum(-1).mean()


if __name__ == "__main__":
    torch.manual_seed(0)
    step = LogOfZero()
    model = step.build_model()
    kept = {"policy": workbench.Policy(recovery_every=5), "run_id": "kept"}
    recorder = workbench.Recorder(
        step, model, step.build_optimizer(model), directory="incidents",
        **(kept if "kept" in sys.argv else {"run_id": "tiny"})
    )
    for scale in (1.0, 1.0, 1000.0):
        x = torch.randn(2, 4) * scale
        y = torch.eye(3)[[0, 1]]
        try:
            recorder.train_step({"x": x, "y": y})
        except workbench.NonFiniteError as error:
            print(error.bundle)
'''


class Result:
    """What a run of the command line left."""

    def __init__(self, code, out, err):
        self.code = code
        self.out = out
        self.err = err

    @property
    def json(self):
        """Stdout as strict JSON."""
        return json.loads(self.out, parse_constant=_refuse)


def _refuse(word):
    raise AssertionError(word)


def run_process(*words, cwd):
    """Run the command line as a process of its own: real, but each one loads torch anew."""
    done = subprocess.run(
        [sys.executable, "-m", "workbench", *map(str, words)],
        cwd=cwd,
        env=os.environ | {"COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """A folder with ``tiny.py`` and the bundle that running it left; not to be changed."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "tiny.py").write_text(STEP, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "tiny.py"], cwd=folder, capture_output=True, text=True, check=True
    )
    bundle = Path(done.stdout.splitlines()[-1])
    return folder, (folder / bundle).relative_to(folder)


@pytest.fixture
def here(recorded, tmp_path):
    """A copy of that folder for one test; returns the folder and the bundle's path in it."""
    folder, bundle = recorded
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return tmp_path, bundle


@pytest.fixture
def kept(here):
    """The same run recorded once more with its earlier steps; the folder and the bundle's path."""
    folder, _ = here
    done = subprocess.run(
        [sys.executable, "tiny.py", "kept"], cwd=folder, capture_output=True, text=True, check=True
    )
    return folder, Path(done.stdout.splitlines()[-1])


@pytest.fixture
def cli(here, monkeypatch, capfd):
    """Run the command line in that folder, in this process."""
    monkeypatch.chdir(here[0])

    def run(*words):
        capfd.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main([str(word) for word in words])
        out, err = capfd.readouterr()
        return Result(stopped.value.code, out, err)

    return run
