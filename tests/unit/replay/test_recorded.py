"""What the recorder sealed, replayed: the two drive the same runner and must agree bit for bit."""

import pytest
import torch

from tests.unit.replay import steps
from tests.unit.replay.steps import batch
from workbench.errors import NonFiniteError
from workbench.evidence import find_bundles
from workbench.record import Policy, Recorder
from workbench.replay import Replay
from workbench.step.protocol import Autocast


def recorded(step, directory, batches, policy=None, capture=None):
    """Train over batches under the recorder and return the bundle of the last step."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = step.build_model()
        optimizer = step.build_optimizer(model)
        recorder = Recorder(
            step, model, optimizer, scaler=step.build_scaler(), directory=directory,
            run_id="run", policy=policy or Policy(),
        )  # fmt: skip
        try:
            for number, one in enumerate(batches):
                last = number == len(batches) - 1
                recorder.train_step(one, capture=capture if last else None)
        except NonFiniteError:
            pass
    return find_bundles(directory)[0]


def tame():
    return batch() | {"sharpness": torch.tensor(1.0)}


class Mixed(steps.Scaled):
    autocast = Autocast(torch.bfloat16, device_type="cpu")


@pytest.mark.parametrize("policy", ["raise", "skip", "continue"])
def test_a_loss_under_every_policy(tmp_path, policy):
    path = recorded(steps.LogOfSoftmax(), tmp_path, [tame(), batch()], Policy(on_nonfinite=policy))
    replay = Replay(path, step=steps.LogOfSoftmax)
    assert replay.run().until == "loss"
    assert replay.verdict().verdict == "bitwise"


def test_gradients(tmp_path):
    path = recorded(steps.SqrtAtZero(), tmp_path, [batch()])
    replay = Replay(path, step=steps.SqrtAtZero)
    assert replay.verdict().verdict == "bitwise"
    assert replay.source.gradients().keys() == replay.run().gradients.keys()


@pytest.mark.parametrize("kind", [steps.Plain, steps.Scaled, Mixed])
def test_a_captured_step_replays_whole(tmp_path, kind):
    path = recorded(kind(), tmp_path, [batch(), batch(3), batch()], capture="a look")
    replay = Replay(path, step=kind)
    result = replay.run()
    assert (result.until, result.verdict) == ("logging", "bitwise")
    assert len(result.gradients) == 4


def test_after_the_update_with_a_recovery_point(tmp_path):
    class Diverges(steps.Plain):
        def build_optimizer(self, model):
            return torch.optim.SGD(model.parameters(), lr=float("inf"))

    path = recorded(Diverges(), tmp_path, [batch()], Policy(recovery_every=1))
    replay = Replay(path, step=Diverges)
    assert replay.run().first_bad["stage"] == "after_update"
    assert replay.verdict().verdict == "bitwise"


def test_after_the_update_without_one_it_cannot_be_checked(tmp_path):
    class Diverges(steps.Plain):
        def build_optimizer(self, model):
            return torch.optim.SGD(model.parameters(), lr=float("inf"))

    path = recorded(Diverges(), tmp_path, [batch()])
    replay = Replay(path, step=Diverges)
    assert replay.verdict().verdict == "unverifiable"
    assert {state.status for state in replay.stages} == {"unavailable"}
