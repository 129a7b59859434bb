"""Random sources beside the global ones, and what a loop without a step cannot give."""

import logging

import pytest
import torch
from recorded_steps import Cnn
from recorder_helpers import make
from torch import nn

from workbench import Policy, Recorder, Replay, TrainingStep, open_bundle
from workbench.errors import UsageError
from workbench.step.storage import read_state


class Noisy(Cnn):
    """Draws from a generator of its own, which no global seed sets."""

    def __init__(self):
        self.noise = torch.Generator().manual_seed(3)

    def build_model(self):
        return nn.Linear(4, 2)

    def forward(self, model, batch):
        x = batch["x"]
        return model(x + torch.randn(x.shape, generator=self.noise))

    def batch(self, k, bad=False):
        return {"x": torch.ones(3, 4) * k, "w": torch.full((2,), -1.0 if bad else 1.0)}


def test_a_generator_of_the_step_is_recorded_and_replayed(tmp_path):
    step, recorder = make(Noisy, tmp_path, Policy(on_nonfinite="skip"))
    for k in range(3):
        recorder.train_step(step.batch(k))
    state = step.noise.get_state()
    path = recorder.train_step(step.batch(3, bad=True)).incident
    bundle = open_bundle(path)
    assert torch.equal(read_state(bundle).rng.generators["noise"], state)
    assert Replay(bundle, step=Noisy()).verdict().verdict == "bitwise"


class Plain(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.ones(4) * i


def test_seeds_of_loader_workers_are_recorded_and_change_nothing(tmp_path):
    def train(watched, directory):
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        loader = torch.utils.data.DataLoader(Plain(), 4, shuffle=True, num_workers=2)
        recorder = Recorder(None, model, optimizer, None, directory, "r")
        if watched:
            recorder.loaders.watch(loader)
        iterator, seen = iter(loader), []
        for k, x in enumerate(iterator):
            optimizer.zero_grad()
            with recorder.step({"x": x}, capture="look" if k == 1 else None) as s:
                loss = model(x).mean()
                s.loss(loss)
                loss.backward()
                if s.gradients():
                    s.update()
            seen.append(x)
        assert recorder.failures == []
        recorder.close()
        return torch.cat(seen), iterator._base_seed, model.weight.detach(), s.result.incident

    bare, _, weight, _ = train(False, tmp_path / "bare")
    seen, seed, same, path = train(True, tmp_path / "watched")
    assert torch.equal(bare, seen)
    assert torch.equal(weight, same)
    loaders = read_state(open_bundle(path)).rng.loaders
    assert loaders == {"train": {"base_seed": seed, "worker_seeds": [seed, seed + 1]}}
    recorder = Recorder(None, nn.Linear(1, 1), torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1),
                        directory=tmp_path)  # fmt: skip
    with pytest.raises(UsageError, match="worker seeds"):
        recorder.loaders.watch([1, 2])


class LossOnly(TrainingStep):
    def loss(self, outputs, batch):
        return outputs.mean()


@pytest.mark.parametrize(("step", "told"), [(None, True), (LossOnly(), True), (Cnn(), False)])
def test_a_loop_whose_bundles_will_not_replay_is_told_while_recording(tmp_path, caplog, step, told):
    caplog.set_level(logging.INFO, logger="workbench")
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recorder = Recorder(step, model, optimizer, None, tmp_path, "r")
    for k in range(2):
        optimizer.zero_grad()
        with recorder.step({"x": torch.ones(1, 2)}, capture="look" if k else None) as s:
            loss = model(torch.ones(1, 2)).mean()
            s.loss(loss)
            loss.backward()
            if s.gradients():
                s.update()
    assert caplog.text.count("cannot be replayed until such a step is passed") == int(told)
    notes = " ".join(open_bundle(s.result.incident).manifest.notes)
    assert ("a replay needs one" in notes) is told
