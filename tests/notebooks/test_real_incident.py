"""A report of a step that the recorder caught, replayed and explained in the report's own run."""

from __future__ import annotations

import sys
import textwrap

import pytest
import torch

from workbench.reports import extract_findings, report

STEP = """
    import torch
    from torch import nn
    from workbench import TrainingStep

    class TinyStep(TrainingStep):
        def build_model(self):
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

        def build_optimizer(self, model):
            return torch.optim.SGD(model.parameters(), lr=1e-4)

        def forward(self, model, batch):
            return model(batch["x"])

        def loss(self, outputs, batch):
            return torch.log(outputs * batch["sign"]).mean()
"""


@pytest.fixture(scope="module")
def incident(tmp_path_factory):
    """A step whose third batch asks for the logarithm of negative numbers."""
    from workbench import NonFiniteError, Recorder

    folder = tmp_path_factory.mktemp("incident")
    (folder / "tiny_step.py").write_text(textwrap.dedent(STEP))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        from tiny_step import TinyStep

        step = TinyStep()
        model = step.build_model()
        recorder = Recorder(step, model, step.build_optimizer(model), directory=folder, run_id="t")
        x = torch.ones(3, 4)
        sign = torch.sign(model(x)).detach()
        for _ in range(2):
            recorder.train_step({"x": x, "sign": sign})
        with pytest.raises(NonFiniteError) as caught:
            recorder.train_step({"x": x, "sign": -sign})
        sys.modules.pop("tiny_step", None)
    return caught.value.bundle, folder


def test_report_replays_names_the_op_and_draws_the_loss(incident, tmp_path):
    bundle, folder = incident
    path = report(bundle, output=tmp_path / "r.html", step=f"{folder / 'tiny_step.py'}:TinyStep")
    found = extract_findings(path)
    assert found["reproduction"]["verdict"] == "bitwise"
    assert found["origins"][0]["op"] == "aten.log.default"
    html = path.read_text(encoding="utf-8")
    assert "Findings made for this report, by a replay on this machine." in html
    assert "loss log" in html
    assert "Born at aten.log.default in loss" in html


def test_report_without_code_shows_the_record_and_says_what_needs_a_replay(incident, tmp_path):
    bundle, folder = incident
    path = report(bundle, output=tmp_path / "r.html")
    html = path.read_text(encoding="utf-8")
    assert extract_findings(path)["origins"] == []
    assert "that needs a replay (see Origin)" in html
    assert "Caught at loss: step" in html
    assert str(folder) not in html
