import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest
import torch

from workbench import TrainingStep
from workbench.errors import CannotRunError, UsageError
from workbench.evidence.schema import StepReference
from workbench.step import load_step, step_reference

SCRIPT = '''
"""A script without a main guard."""
from __future__ import annotations
import torch
from torch import nn
from workbench import TrainingStep

WIDTH = 3
SIZES = {"hidden": (4, -2)}
DTYPE = torch.float32
model = nn.Linear(2, 2)
open("trained.txt", "w").write("training started")

@model.register_forward_hook
def hook(module, inputs, outputs):
    return None

class Mine(TrainingStep):
    width: int = WIDTH
    def build_model(self):
        return nn.Linear(SIZES["hidden"][0], WIDTH, dtype=DTYPE)
    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), 0.1)
    def forward(self, model, batch):
        return model(batch)
    def loss(self, outputs, batch):
        return outputs.sum()

class Needs(Mine):
    def __init__(self, size):
        self.size = size

class NoStep:
    pass

raise SystemExit("the script ran")
'''


class HereStep(TrainingStep):
    pass


def bundle(tmp_path, **reference):
    text = textwrap.dedent(SCRIPT)
    known = StepReference(**reference)
    return SimpleNamespace(
        path=tmp_path / "r.bundle",
        manifest=SimpleNamespace(step_reference=known),
        has=lambda rel: rel == "source/train.py",
        text=lambda rel: text,
    )


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_a_file_does_not_train_again(script, tmp_path):
    step = load_step(None, f"{script}:Mine")
    assert step.build_model().weight.shape == (3, 4)
    assert step.build_model().weight.dtype is torch.float32
    assert not (tmp_path / "trained.txt").exists()
    assert type(load_step(None, "train.py:Mine")).__name__ == "Mine"


def test_objects_classes_and_names(script):
    step = load_step(None, f"{script}:Mine")
    assert load_step(None, step) is step
    assert type(load_step(None, type(step))) is type(step)
    assert isinstance(load_step(None, "workbench.step.protocol:TrainingStep"), TrainingStep)


@pytest.mark.parametrize(
    ("reference", "error", "words"),
    [
        ("train.py", UsageError, "package.module:Name"),
        ("gone.py:Mine", CannotRunError, "is not here"),
        ("train.py:Other", CannotRunError, "has no 'Other'"),
        ("train.py:Needs", CannotRunError, "without arguments"),
        ("train.py:NoStep", CannotRunError, "no build_model, build_optimizer, forward, loss"),
        ("no_such_module:Mine", CannotRunError, "cannot be imported"),
    ],
)
def test_what_cannot_be_found_says_why(script, reference, error, words):
    with pytest.raises(error) as raised:
        load_step(None, reference)
    assert words in str(raised.value)


def test_a_bundle_is_not_trusted_by_itself(script, tmp_path):
    known = bundle(
        tmp_path, reference=f"{script}:Mine", kind="file", digest="sha256:ab",
        source="source/train.py",
    )  # fmt: skip
    with pytest.raises(CannotRunError) as raised:
        load_step(known)
    message = str(raised.value)
    for command in (
        f"workbench replay {known.path} --trust import",
        f"workbench replay {known.path} --trust source",
        f"workbench replay {known.path} --step",
    ):
        assert command in message
    assert type(load_step(known, trust="import")).__name__ == "Mine"
    assert type(load_step(known, trust="source")).__name__ == "Mine"
    assert not (tmp_path / "trained.txt").exists()
    with pytest.raises(UsageError, match="'anything'"):
        load_step(known, trust="anything")


def test_a_notebook_step_needs_a_file(tmp_path):
    for trust in (None, "import"):
        with pytest.raises(CannotRunError, match="typed into a notebook cell"):
            load_step(bundle(tmp_path, kind="notebook"), trust=trust)


def test_a_loop_without_a_step_says_so(tmp_path):
    with pytest.raises(CannotRunError, match="recorded without a training step"):
        load_step(bundle(tmp_path), trust="import")


def test_our_own_integrations_need_no_trust(tmp_path, monkeypatch):
    known = bundle(tmp_path, reference="workbench.integrations.fake:Step", kind="integration")
    module = SimpleNamespace(Step=TrainingStep)
    monkeypatch.setitem(sys.modules, "workbench.integrations.fake", module)
    assert isinstance(load_step(known), TrainingStep)
    # the kind in a bundle is a claim: elsewhere it needs trust all the same
    other = bundle(tmp_path, reference="os:system", kind="integration")
    with pytest.raises(CannotRunError, match="not trusted"):
        load_step(other)


def test_references():
    here = step_reference(HereStep())
    assert here["reference"].endswith(":HereStep")
    assert here["digest"].startswith("sha256:")
    assert "class HereStep" in here["text"]
    assert here["line"] > 0
    assert step_reference(None)["kind"] == "none"


def test_a_step_of_main_is_stored_as_a_file(tmp_path):
    path = tmp_path / "main.py"
    path.write_text(
        "from workbench import TrainingStep\n"
        "from workbench.step import step_reference\n"
        "class Mine(TrainingStep): pass\n"
        "r = step_reference(Mine())\n"
        "print(r['kind'], r['reference'])\n"
    )
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=True, cwd="."
    )
    assert done.stdout.split() == ["file", f"{path}:Mine"]
