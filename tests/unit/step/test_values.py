"""What a step's loss gives: its total, and its components by name."""

import pytest
import torch

from workbench import Policy, Recorder, TrainingStep
from workbench.errors import UsageError
from workbench.replay import Replay
from workbench.step.values import split_loss


def test_numbers_among_components_leave_the_sum_as_it_is():
    half = torch.tensor(1.5, dtype=torch.float16, requires_grad=True)
    total, parts = split_loss({"main": half, "kl": 0.25, "count": 2})
    assert total.dtype == torch.float16 and total.item() == 3.75
    assert parts["main"] is half
    assert {name: part.item() for name, part in parts.items()} == {
        "main": 1.5,
        "kl": 0.25,
        "count": 2,
    }


@pytest.mark.parametrize("result", [None, 1.5, {"a": 1.0}, {"a": torch.ones(()), "b": "1"}, {}])
def test_what_is_no_loss_is_refused(result):
    with pytest.raises(UsageError, match="Return a scalar tensor"):
        split_loss(result)


class Warming(TrainingStep):
    """One component is a number until the third step."""

    def build_model(self):
        return torch.nn.Linear(3, 1)

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), 0.1)

    def forward(self, model, batch):
        return model(batch)

    def loss(self, outputs, batch):
        return {"main": outputs.square().mean(), "kl": self.step_index > 2 and outputs.abs().mean()}


def test_a_component_that_is_a_number_at_first_is_recorded_and_replayed(tmp_path):
    step = Warming()
    model = step.build_model()
    recorder = Recorder(step, model, step.build_optimizer(model), None, tmp_path, "r", Policy())
    results = [
        recorder.train_step(torch.randn(4, 3), capture="a look" if k == 1 else None)
        for k in range(5)
    ]
    recorder.close()
    assert recorder.failures == []
    assert [one.loss_components["kl"] for one in results[:3]] == [0.0, 0.0, 0.0]
    assert results[4].loss_components["kl"] > 0
    assert Replay(recorder.bundles[0], step=step).verdict().verdict == "bitwise"
