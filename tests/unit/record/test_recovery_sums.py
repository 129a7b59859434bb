"""Between recovery points a large model is compared with its replay a share in turn."""

import torch
from torch import nn

from workbench import Policy, Recorder, TrainingStep, open_bundle
from workbench.replay.source import Source
from workbench.replay.trajectory import replay_trajectory


class Wide(TrainingStep):
    def build_model(self):
        return nn.Sequential(*[nn.Linear(400, 400) for _ in range(4)])

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), 1e-3)

    def forward(self, model, batch):
        return model(batch["x"])

    def loss(self, outputs, batch):
        return outputs.square().mean()


def kept(bundle):
    return {one["step"]: one["sums"] for one in bundle.json("trajectory/index.json")["steps"]}


def train(directory, spoil=None):
    torch.manual_seed(0)
    step = Wide()
    model = step.build_model()
    optimizer = step.build_optimizer(model)
    policy = Policy(recovery_every=8)
    recorder = Recorder(step, model, optimizer, None, directory, "r", policy)
    for k in range(7):
        if k == spoil:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.01)
        path = recorder.train_step({"x": torch.randn(2, 400)}, capture="x" if k == 6 else None)
    assert recorder.failures == []
    return open_bundle(path.incident)


def test_each_step_has_a_share_and_all_of_them_have_everything(tmp_path):
    bundle = train(tmp_path)
    sums = kept(bundle)
    names = {name for name, _ in Wide().build_model().named_parameters()}
    shares = [set(sums[k]) for k in range(1, 6)]
    assert all(share and share < names for share in shares)
    assert set.union(*shares) == names
    found = replay_trajectory(bundle, Source.from_bundle(bundle, Wide()))
    assert found.departure is None


def test_what_was_written_between_steps_is_still_seen(tmp_path):
    bundle = train(tmp_path, spoil=3)
    found = replay_trajectory(bundle, Source.from_bundle(bundle, Wide()))
    assert found.departure is not None
    assert found.departure.step == 3
