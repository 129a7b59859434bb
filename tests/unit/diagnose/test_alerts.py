"""Finite incidents: what left the envelope of calm steps, with no origin invented."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from workbench.diagnose import diagnose
from workbench.diagnose.envelope import from_ledger, outside
from workbench.evidence import open_bundle
from workbench.record import Recorder
from workbench.record.policy import Alerts, Policy
from workbench.step import Autocast, TrainingStep


class Classify(TrainingStep):
    """A small classifier whose loss is a mean of per-sample losses."""

    def build_model(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        first, second = list(model.parameters())[:2], list(model.parameters())[2:]
        return torch.optim.SGD([{"params": first}, {"params": second}], lr=0.5)

    def forward(self, model: nn.Module, batch: Any) -> Any:
        return model(batch["x"])

    def loss(self, outputs: Any, batch: Any) -> Any:
        return functional.cross_entropy(outputs, batch["y"])


def batches(count: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    made = []
    for _ in range(count):
        x = torch.randn(8, 4, generator=generator)
        made.append({"x": x * 3, "y": x[:, :3].argmax(1)})
    return made


def train(tmp_path: Any, policy: Policy, change: Any, steps: int = 60, spoil: int = 50) -> Any:
    step = Classify()
    model = step.build_model()
    optimizer = step.build_optimizer(model)
    recorder = Recorder(step, model, optimizer, directory=tmp_path, run_id="run", policy=policy)
    for index, batch in enumerate(batches(steps)):
        if index == spoil:
            change(batch, optimizer)
        result = recorder.train_step(batch)
        if result.incident is not None:
            return open_bundle(result.incident)
    raise AssertionError("no alert")


def mislabel(batch: Any, optimizer: Any) -> None:
    del optimizer
    batch["x"][5] *= 30
    batch["y"][5] = (batch["x"][5, :3].argmax() + 1) % 3


def faster(batch: Any, optimizer: Any) -> None:
    del batch
    for group in optimizer.param_groups:
        group["lr"] = 400.0


@pytest.mark.parametrize("recovery", [0, 1])
def test_a_mislabelled_sample_is_named(tmp_path: Any, recovery: int) -> None:
    policy = Policy(alerts=Alerts(loss_factor=5.0), recovery_every=recovery)
    bundle = train(tmp_path, policy, mislabel)
    assert (bundle.kind, bundle.manifest.step) == ("alert", 50)
    assert bundle.has("calm/index.json") == (recovery == 0)
    findings = diagnose(bundle, step=Classify())
    assert findings.origins == [] and findings.data["absorbed"] == []
    left = findings.data["envelope"]["left"]
    samples = [one for one in left if one["what"] == "sample"]
    assert samples[0]["name"] == "5"  # worst first; others of this batch are hard as well
    assert samples[0]["value"] > 2 * max((one["value"] for one in samples[1:]), default=0.0)
    order = [one["what"] for one in left]
    assert order.index("sample") < order.index("loss")
    later = order[order.index("loss") :]
    assert "activation" not in later
    assert recovery or "gradient" in later
    assert {one["name"] for one in left if one["what"] == "gradient"} <= {
        "parameter group 0",
        "parameter group 1",
    }
    assert "sample 5" in findings.summary[1]
    assert "Nothing non-finite. Alert:" in findings.summary[0]
    where = findings.data["answers"][0]["sentence"]
    assert "sample 5" in where and "Born" not in where


def test_a_learning_rate_that_jumped_comes_before_the_loss_it_spoilt(tmp_path: Any) -> None:
    policy = Policy(alerts=Alerts(loss_factor=20.0), recovery_every=1)
    bundle = train(tmp_path, policy, faster)
    assert bundle.manifest.step == 51
    findings = diagnose(bundle, step=Classify())
    assert findings.origins == []
    first, *later = findings.data["envelope"]["left"]
    assert (first["what"], first["step"], first["value"]) == ("learning rate", 50, 400.0)
    assert next(one["what"] for one in later if one["step"] == 51) == "parameter"
    assert "At step 50, 1 step before this one, the learning rate was 400" in findings.summary[1]


def test_without_code_the_ledger_answers(tmp_path: Any) -> None:
    bundle = train(tmp_path, Policy(alerts=Alerts(loss_factor=20.0)), faster)
    findings = diagnose(bundle)
    assert findings.origins == []
    assert findings.data["step_order"][0]["what"] == "learning rate"
    assert findings.summary[1].startswith("Why     Not replayed yet.")
    assert "learning rate" in findings.data["answers"][0]["sentence"]


class Halves(Classify):
    """The same, scaled, with a gradient that float16 cannot hold from the second step on."""

    autocast = Autocast(torch.float16)

    def build_scaler(self) -> Any:
        return torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=10_000)

    def loss(self, outputs: Any, batch: Any) -> Any:
        return super().loss(outputs, batch) * batch["weight"]


def test_a_falling_scale_is_not_said_to_be_finite(tmp_path: Any) -> None:
    step = Halves()
    model = step.build_model()
    recorder = Recorder(
        step,
        model,
        step.build_optimizer(model),
        step.build_scaler(),
        directory=tmp_path,
        run_id="run",
        policy=Policy(alerts=Alerts(consecutive_skips=4)),
    )
    found = None
    for index, batch in enumerate(batches(20)):
        batch["weight"] = torch.tensor(1.0 if index < 8 else 3000.0)
        found = found or recorder.train_step(batch).incident
    bundle = open_bundle(found)
    findings = diagnose(bundle, step=Halves())
    assert findings.origins == []
    assert "Nothing non-finite" not in findings.summary[0]
    series = [one["what"] for one in findings.data["envelope"]["left"]]
    assert "loss" in series or "loss scale" in series
    assert any(t["result"] == "benign_skip" for t in findings.data["counterfactuals"])


@pytest.mark.parametrize(("weight", "result"), [(3000.0, "benign_skip"), (1e38, "unchanged")])
def test_a_captured_skip_is_replayed_without_the_scale(
    tmp_path: Any, weight: float, result: str
) -> None:
    step = Halves()
    model = step.build_model()
    recorder = Recorder(
        step,
        model,
        step.build_optimizer(model),
        step.build_scaler(),
        directory=tmp_path,
        run_id="run",
        policy=Policy(on_nonfinite="continue"),
    )
    batch = batches(1)[0] | {"weight": torch.tensor(weight)}
    bundle = open_bundle(recorder.train_step(batch, capture="why").incident)
    assert bundle.kind == "captured"
    findings = diagnose(bundle, step=Halves())
    (tried,) = findings.data["counterfactuals"]
    assert (tried["intervention"], tried["result"]) == ("a loss scale of 1", result)
    assert tried["placebo"] == "unchanged"
    if result == "benign_skip":
        assert findings.origins == []
        assert "Only a scaler skip" in findings.summary[1]
    else:
        assert findings.origins != []


def test_a_calm_series_leaves_nothing() -> None:
    records = [
        {"step": i, "loss": 1.0 + 0.1 * math.sin(i), "grad_norm": 2.0, "learning_rates": [[0.1]]}
        for i in range(50)
    ]
    assert from_ledger(records, 49) == []
    records[40]["loss"] = 9.0
    (left,) = from_ledger(records, 40)
    assert (left.step, left.what, left.stage) == (40, "loss", "loss")
    assert from_ledger(records, 49) == []  # it came back
    for record in records[45:]:
        record["learning_rates"] = [[40.0]]
    assert [(one.step, one.what) for one in from_ledger(records, 49)] == [(45, "learning rate")]


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (3.0, 1.0, 2.0, False),
        (9.0, 1.0, 2.0, True),
        (0.2, 1.0, 2.0, True),
        (-1.0, -2.0, 2.0, False),
        (9.0, -2.0, 2.0, True),
        (math.inf, 1.0, 2.0, True),
    ],
)
def test_ranges_have_a_margin(value: float, low: float, high: float, expected: bool) -> None:
    assert outside(value, low, high) is expected
