"""Small training steps and their sealed states, built without a bundle."""

import torch
from torch import nn

from workbench.evidence import BundleWriter, StepReference, environment
from workbench.evidence.conditions import Conditions
from workbench.evidence.schema import FirstBad
from workbench.replay.source import Source
from workbench.step.digests import gradient_digests, loss_bits
from workbench.step.protocol import TrainingStep
from workbench.step.rng import capture_rng
from workbench.step.runner import StepRunner
from workbench.step.state import capture_state
from workbench.step.storage import write_state

COMPLETE = {"forward_loss": "complete", "backward": "complete", "update": "complete"}


class Plain(TrainingStep):
    """Finite: a small network with dropout and Adam."""

    def build_model(self):
        return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))

    def build_optimizer(self, model):
        return torch.optim.Adam(model.parameters(), lr=0.01)

    def forward(self, model, batch):
        return model(batch["x"])

    def loss(self, outputs, batch):
        return nn.functional.cross_entropy(outputs, batch["y"])


class LogOfSoftmax(Plain):
    """Non-finite at the loss: a probability underflows to zero and its log is −Inf."""

    def loss(self, outputs, batch):
        probabilities = torch.softmax(outputs * batch["sharpness"], dim=-1)
        return -(torch.log(probabilities) * batch["soft"]).sum(-1).mean()


class Scaled(Plain):
    """A loss scaler and clipping."""

    max_grad_norm = 1.0

    def build_scaler(self):
        return torch.amp.GradScaler("cpu", init_scale=1024.0)


class SqrtAtZero(Plain):
    """Finite loss, non-finite gradient: the derivative of sqrt at 0."""

    def loss(self, outputs, batch):
        return super().loss(outputs, batch) + torch.sqrt((outputs * 0.0).square().sum())


def batch(samples=4):
    generator = torch.Generator().manual_seed(7)
    return {
        "x": torch.randn(samples, 4, generator=generator),
        "y": torch.arange(samples) % 3,
        "sharpness": torch.tensor(1e4),
        "soft": torch.nn.functional.one_hot(torch.arange(samples) % 3, 3).float(),
    }


def record(step, batches=None, until=None, step_index=3, **conditions):
    """Run a step once as a recorder would and return what a replay starts from.

    ``until`` is the number of units to run; None stops at the first gate that trips.
    """
    with torch.random.fork_rng():
        return _record(step, batches or [batch()], until, step_index, conditions)


def _record(step, batches, until, step_index, conditions):
    torch.manual_seed(0)
    model = step.build_model()
    built = step.build_optimizer(model)
    optimizers = list(built) if isinstance(built, list) else [built]
    scaler = step.build_scaler()
    state = capture_state(model, optimizers, scaler, (), batches, step_index)
    runner = StepRunner(step, model, optimizers, scaler)
    runner.begin(batches, step_index)
    gradients, bad = {}, None
    while runner.next_unit is not None:
        outcome = runner.advance()
        if runner.plan[runner.position - 1].stage == ("unscale" if scaler else "reduce"):
            gradients = gradient_digests(model)
        if outcome.status == "bad" and bad is None:
            bad = outcome
            if until is None:
                break
        if until is not None and runner.position >= until:
            break
    recorded = Conditions(threads=torch.get_num_threads()).replace(
        **{"scale": 1024.0 if scaler else None, "max_grad_norm": step.max_grad_norm} | conditions
    )
    first_bad = None
    if bad is not None:
        counts = bad.bad[0].counts.as_dict() if bad.bad else {}
        first_bad = FirstBad(
            run_id="r",
            step=step_index,
            micro_step=bad.unit.micro_step,
            stage=bad.unit.stage,
            tensor=bad.tensor,
            sink=bad.bad[0].kind if bad.bad else "exception",
            counts=counts,
        )
    evidence = {
        "loss": None if runner.loss_value is None else float(runner.loss_value),
        "digests": {
            "loss_bits": None if runner.loss_value is None else loss_bits(runner.loss_value),
            "gradients": gradients,
            "masks": {} if bad is None else {b.name: b.mask for b in bad.bad},
            "rng": capture_rng().digest(),
        },
        "stopped_at": None if bad is None else bad.unit.stage,
    }
    return Source(
        step=step,
        state=state,
        recorded=recorded,
        first_bad=first_bad,
        kind="captured" if bad is None else "nonfinite",
        completeness=COMPLETE,
        evidence=evidence,
        path="memory",
    )


def write_bundle(directory, source, reference="", kind="file"):
    """Write a recorded step as a bundle, without a recorder."""
    writer = BundleWriter(directory, "run-step00000003")
    writer.add_json("evidence.json", dict(source.evidence))
    writer.add_json("environment.json", environment())
    writer.publish(
        run_id="run",
        kind=source.kind,
        step=source.step_index,
        first_bad=source.first_bad,
        conditions=source.recorded,
        completeness=dict(source.completeness),
        step_reference=StepReference(reference=reference, kind=kind),
    )
    write_state(writer, source.state)
    return writer.seal()
