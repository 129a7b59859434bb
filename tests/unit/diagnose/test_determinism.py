"""The same bundle on the same machine gives the same findings, byte for byte."""

from __future__ import annotations

import torch
from torch import nn

import workbench
from workbench.evidence import find_bundles, open_bundle


class LogOfZero(workbench.TrainingStep):
    def build_model(self):
        return nn.Linear(4, 3)

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def forward(self, model, batch):
        return torch.softmax(model(batch["x"]), -1)

    def loss(self, outputs, batch):
        return -(batch["y"] * outputs.log()).sum(-1).mean()


def test_findings_are_equal_to_the_byte_and_other_threads_are_named(tmp_path):
    torch.manual_seed(0)
    step = LogOfZero()
    model = step.build_model()
    policy = workbench.Policy(on_nonfinite="skip")
    optimizer = step.build_optimizer(model)
    recorder = workbench.Recorder(step, model, optimizer, directory=tmp_path, policy=policy)
    recorder.train_step({"x": torch.randn(2, 4) * 1000, "y": torch.eye(3)[[0, 1]]})
    recorder.close()
    (path,) = find_bundles(tmp_path)
    bundle = open_bundle(path)

    first, second = (workbench.diagnose(path, step=LogOfZero()) for _ in range(2))
    assert first.to_json() == second.to_json()
    saved = []
    for found, name in ((first, "a"), (second, "b")):
        found.save(tmp_path / name)
        files = sorted(p for p in (tmp_path / name).rglob("*") if p.is_file())
        saved.append({str(p.relative_to(tmp_path / name)): p.read_bytes() for p in files})
        saved[-1].pop("made.json", None)  # says when
    assert saved[0] == saved[1]
    assert len(saved[0]) >= 3

    threads = bundle.conditions.threads + 1
    conditions = bundle.conditions.replace(threads=threads)
    result = workbench.Replay(path, step=LogOfZero()).run(conditions=conditions)
    assert result.to_data()["changed"] == {"threads": threads}
    assert result.to_data()["diagnostic"] is True
