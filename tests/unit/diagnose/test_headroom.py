"""Headroom to the dtype's limit, and the step at which values left their usual envelope."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from workbench.diagnose import diagnose
from workbench.evidence import open_bundle
from workbench.record import Recorder
from workbench.record.policy import Policy
from workbench.step import TrainingStep


class Residual(nn.Module):
    """A residual stream in float16 that every block makes larger."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(4))
        for block in self.blocks:
            nn.init.eye_(block.weight)
            with torch.no_grad():
                block.weight.mul_(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x.half().float()).half()
        return x


class Grows(TrainingStep):
    def build_model(self) -> nn.Module:
        return Residual()

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.0)

    def forward(self, model: nn.Module, batch: Any) -> Any:
        return model(batch)

    def loss(self, outputs: Any, batch: Any) -> Any:
        return outputs.float().mean()


def test_layers_are_listed_by_their_distance_to_the_limit(tmp_path: Any) -> None:
    step = Grows()
    model = step.build_model()
    policy = Policy(on_nonfinite="skip", recovery_every=1)
    recorder = Recorder(step, model, step.build_optimizer(model), directory=tmp_path, policy=policy)
    found = None
    for size in (1.0, 1.1, 1.0, 1.2, 1.0, 2000.0):
        found = recorder.train_step(torch.full((2, 4), size)).incident
    bundle = open_bundle(found)
    findings = diagnose(bundle, step=Grows())
    assert findings.origins[0]["range"] == "overflow"
    rows = findings.data["growth"]["headroom"]
    shares = [row["share"] for row in rows]
    assert shares == sorted(shares, reverse=True)
    assert all(0 < row["share"] <= 1 for row in rows)
    assert rows[0]["module"] == "blocks.3"
    assert "of the largest float" in rows[0]["sentence"]


def test_a_finite_range_has_no_headroom_to_tell_of(tmp_path: Any) -> None:
    step = Grows()
    model = step.build_model()
    recorder = Recorder(
        step,
        model,
        step.build_optimizer(model),
        directory=tmp_path,
        policy=Policy(on_nonfinite="skip"),
    )
    batch = torch.full((2, 4), float("nan"))
    findings = diagnose(open_bundle(recorder.train_step(batch).incident), step=Grows())
    assert findings.origins[0]["kind"] == "poisoned_batch"
    assert "growth" not in findings.data
