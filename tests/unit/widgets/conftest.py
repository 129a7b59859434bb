from __future__ import annotations

import pytest
import torch

from tests.unit.widgets.fakes import FakeWorker
from workbench.evidence import BundleWriter, Conditions, FirstBad, StepReference, open_bundle
from workbench.widgets import Workbench

SOURCE = "class Step:\n    def forward(self, model, batch):\n        return model(batch)\n"


@pytest.fixture(autouse=True)
def raising(monkeypatch):
    monkeypatch.setenv("WORKBENCH_RAISE", "1")


def make_bundle(
    directory,
    *,
    name="run7-step00018342",
    run_id="run7",
    stage="loss",
    tensor="loss",
    completeness=None,
    reference="train:Step",
    kind="nonfinite",
    message="",
    conditions=None,
):
    writer = BundleWriter(directory, name)
    loss = 2.4
    records = []
    for step in range(18242, 18343):
        loss = 2.2 + 0.3 * ((step * 7919) % 100) / 100
        records.append(
            {
                "run_id": run_id,
                "step": step,
                "rank": 0,
                "time": 100.0 + step,
                "loss": loss,
                "grad_norm": loss / 2,
                "loss_scale": 65536.0,
                "learning_rates": [[3e-4]],
                "optimizers": [{"attempted": True, "updated": True, "skipped_by": "none"}],
            }
        )
    alert = kind == "alert"
    records[-1]["loss"] = 9.1 if alert else float("nan")
    writer.add_lines("ledger.jsonl", records)
    writer.add_tensors("batch.safetensors", {"x": torch.zeros(8, 128, dtype=torch.int64)})
    writer.add_tensors("state/model.safetensors", {"head.weight": torch.zeros(4, 4)})
    writer.add_text("source/train.py", SOURCE)
    writer.add_json("environment.json", {"torch": "2.13.0", "devices": []})
    bad = FirstBad(
        run_id=run_id,
        step=18342,
        stage=stage,
        tensor=tensor,
        sink=tensor,
        kind="alert" if alert else "nan",
        message=message,
        counts={} if alert else {"nan": 1, "pos_inf": 0, "neg_inf": 0, "finite": 0},
    )
    writer.update(
        run_id=run_id,
        step=18342,
        kind=kind,
        first_bad=bad,
        conditions=conditions or Conditions(autocast="float16", device="cpu"),
        completeness=completeness
        or dict.fromkeys(("forward_loss", "backward", "update"), "complete"),
        step_reference=StepReference(reference=reference, kind="module", source="source/train.py"),
    )
    writer.publish()
    return writer.seal()


@pytest.fixture
def bundle(tmp_path):
    return open_bundle(make_bundle(tmp_path))


@pytest.fixture
def workers():
    return []


@pytest.fixture
def panel(bundle, workers):
    def start():
        workers.append(FakeWorker())
        return workers[-1]

    made = Workbench(bundle, step="train:Step", worker=start)
    yield made
    made.close()
