"""Labels that are finite and wrong: the domain a step declares says so, and a replay shows it."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from workbench.diagnose import diagnose
from workbench.record import Recorder
from workbench.record.policy import Policy
from workbench.step import TrainingStep
from workbench.step.domains import illegal
from workbench.step.protocol import Domain


class LogOfTarget(TrainingStep):
    domains: ClassVar = {"y": Domain(minimum=0.0, above_minimum=True)}

    def build_model(self):
        torch.manual_seed(0)
        return nn.Linear(2, 1)

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def forward(self, model, batch):
        return model(batch["x"])[:, 0]

    def loss(self, outputs, batch):
        return (outputs - batch["y"].log()).square().mean()


def test_labels_outside_their_domain_are_repaired_and_legal_ones_are_the_placebo(tmp_path):
    step = LogOfTarget()
    model = step.build_model()
    recorder = Recorder(
        step, model, step.build_optimizer(model), directory=tmp_path, run_id="run",
        policy=Policy(on_nonfinite="skip"),
    )  # fmt: skip
    batch = {"x": torch.ones(4, 2), "y": torch.tensor([1.0, -1.0, 2.0, 3.0])}
    bundle = recorder.train_step(batch).incident
    rows = diagnose(bundle, step=LogOfTarget()).data["counterfactuals"]
    row = next(r for r in rows if r["intervention"] == "the illegal elements of y as legal ones")
    assert (row["result"], row["placebo"]) == ("gone", "unchanged")


def test_what_is_illegal_is_what_the_domain_says():
    values = torch.tensor([-100, -1, 0, 9, 10])
    assert illegal(values, Domain.labels(10)).tolist() == [False, True, False, False, True]
    odd = torch.tensor([float("nan"), 0.0, 1.0])
    assert illegal(odd, Domain.positive()).tolist() == [True, True, False]
