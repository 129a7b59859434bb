"""Evidence is written beside training where training goes on, and before the process ends."""

import subprocess
import sys
import threading

import torch
from recorded_steps import Cnn
from recorder_helpers import make

from workbench import Policy, open_bundle
from workbench.evidence.presence import MARK
from workbench.step.digests import state_fingerprint
from workbench.step.storage import read_state

SCRIPT = """
import resource, sys, torch, workbench
from torch import nn

class Step(workbench.TrainingStep):
    def forward(self, model, batch): return model(batch["x"])
    def loss(self, outputs, batch): return outputs.square().mean()

def main(directory, how, most):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 40000), nn.Linear(40000, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    policy = workbench.Policy(on_nonfinite=how)
    recorder = workbench.Recorder(Step(), model, optimizer, None, directory, "r", policy)
    if most:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    for bad in (False, True):
        recorder.train_step({"x": torch.full((2, 16), float("nan") if bad else 1.0)})
    if most:
        recorder.background.wait()
        recorder.train_step({"x": torch.ones(2, 16)})
        print(len([f for f in recorder.failures if "bundle failed" in f]))
        print(all(bool(p.isfinite().all()) for p in model.parameters()))

main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
"""


def run(directory, how, most=0):
    arguments = [sys.executable, "-c", SCRIPT, str(directory), how, str(most)]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)


def test_a_process_that_ends_at_once_leaves_whole_evidence(tmp_path):
    for how in ("skip", "raise"):
        done = run(tmp_path / how, how)
        assert (done.returncode != 0) is (how == "raise"), done.stderr
        bundle = open_bundle(tmp_path / how / "r-step00000001.bundle")
        assert bundle.sealed
        assert bundle.has("state/model.safetensors")
        assert {check.status for check in bundle.verify()} == {"ok"}


def test_a_full_disk_is_told_and_counted_and_half_a_bundle_says_so(tmp_path):
    """Files may grow to 1 MB, which the parameters (5 MB) do not fit into: a disk that fills up."""
    done = run(tmp_path, "skip", 1 << 20)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", "True"]
    assert "the recorder's bundle failed: OSError" in done.stderr
    bundle = open_bundle(tmp_path / "r-step00000001.bundle")
    assert not bundle.sealed
    assert {check.status for check in bundle.verify()} == {"ok"}
    assert not bundle.has("state/model.safetensors")
    assert "parameters" in bundle.manifest.completeness["forward_loss"]
    left = {path.name for path in bundle.path.rglob("*.safetensors*")}
    assert left == {"batch.safetensors", "rng.safetensors"}
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".")] == [tmp_path / MARK]


def test_training_goes_on_meanwhile_and_the_evidence_is_of_before(tmp_path):
    step, recorder = make(Cnn, tmp_path, Policy(on_nonfinite="skip"))
    model, optimizers = recorder.model, recorder.optimizers
    recorder.train_step(step.batch(0))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    held = threading.Event()
    recorder.background.run(tmp_path / "none", held.wait)  # nothing is written before this is over
    path = recorder.train_step(step.batch(1, bad=True)).incident
    for k in range(2, 5):
        assert recorder.train_step(step.batch(k)).updated
    assert not (path / "state" / "model.safetensors").exists()
    assert b'"sealed":false' in (path / "manifest.json").read_bytes().replace(b" ", b"")
    threading.Timer(0.2, held.set).start()
    bundle = open_bundle(path)  # waits for the whole of it
    assert bundle.sealed
    state = read_state(bundle)
    assert all(torch.equal(state.model.tensors[name], value) for name, value in before.items())
    assert recorder.failures == []
    bare, other = make(Cnn, tmp_path / "calm", Policy(on_nonfinite="skip"))
    for k in (0, 1, 2, 3, 4):
        other.train_step(bare.batch(k, bad=k == 1))
    assert state_fingerprint(other.model, other.optimizers) == state_fingerprint(model, optimizers)
