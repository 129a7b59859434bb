"""A replay whose model lacks hooks of the recorded one says so, and believes no flag of theirs."""

import functools

import torch
from torch import nn

from workbench import Policy, Recorder, TrainingStep
from workbench.replay import Replay
from workbench.step.hooks import hooks_of


class Capturing(nn.Module):
    """Hooks its child at its first call, as libraries do that collect outputs."""

    def __init__(self):
        super().__init__()
        self.body, self.seen = nn.Linear(4, 4), None

    def forward(self, x):
        if not getattr(self, "_capture_hooks_installed", False):
            self.body.register_forward_hook(functools.partial(type(self).collect, self))
            self._capture_hooks_installed = True
        self.body(x)
        return self.seen * 2

    def collect(self, module, args, output):
        self.seen = output


class Step(TrainingStep):
    def build_model(self):
        return Capturing()

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), 0.1)

    def forward(self, model, batch):
        return model(batch)

    def loss(self, outputs, batch):
        return outputs.square().mean()


def halve(module, args, output):
    return output / 2


def double(gradient):
    return gradient * 2


def recorded(tmp_path, prepare=lambda model: None):
    step = Step()
    model = step.build_model()
    prepare(model)
    recorder = Recorder(step, model, step.build_optimizer(model), None, tmp_path, "r", Policy())
    for k in range(3):
        recorder.train_step(torch.randn(3, 4), capture="a look" if k == 2 else None)
    recorder.close()
    assert recorder.failures == []
    return Replay(recorder.bundles[0], step=step).verdict()


def test_hooks_that_a_library_installs_at_the_first_call_are_installed_in_a_replay(tmp_path):
    found = recorded(tmp_path)
    assert (found.verdict, found.differences) == ("bitwise", [])


def test_hooks_of_the_recorded_model_that_are_lacking_are_named(tmp_path):
    def prepare(model):
        model.body.register_forward_hook(halve)
        model.body.weight.register_hook(double)

    found = recorded(tmp_path, prepare)
    assert found.verdict == "same_mask"
    said = (
        "The model built here lacks 2 hooks of the recorded one: "
        f"{__name__}.double on 'body', {__name__}.halve on 'body'"
    )
    assert said in found.differences
    assert found.sentence.endswith(f"{said}.")


def test_hooks_are_named_by_their_functions():
    module = nn.Linear(2, 2)
    module.register_forward_pre_hook(lambda module, args: None)
    module.register_full_backward_hook(functools.partial(halve))
    module.bias.register_post_accumulate_grad_hook(double)
    name = "test_hooks_are_named_by_their_functions.<locals>.<lambda>"
    assert hooks_of(module) == [f"{__name__}.{one}" for one in ("double", "halve", name)]
    nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    assert hooks_of(nn.utils.spectral_norm(nn.Linear(2, 2))) == []  # torch's own, built with it
