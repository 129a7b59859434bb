"""zoo: a folder of incident files, with and without labels."""

from __future__ import annotations

import json

INCIDENT = """
import torch
from torch import nn


def build():
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    batches = [{"x": torch.randn(2, 4) * scale} for scale in (1.0, 1000.0)]
    print("noise on stdout")
    return model, torch.optim.SGD(model.parameters(), lr=0.1), None, batches


def forward(model, batch):
    return torch.softmax(model(batch["x"]), -1)


def loss(outputs, batch):
    return -(torch.eye(3)[[0, 1]] * outputs.log()).sum(-1).mean()
"""
LABEL = {
    "step": 1,
    "stage": "loss",
    "op": "aten.log.default",
    "module": "loss",
    "cause": "log_of_zero",
    "accept": [],
    "negative": False,
}


def test_the_zoo_answers_and_compares(cli, here):
    folder, _ = here
    zoo = folder / "zoo"
    zoo.mkdir()
    (zoo / "zz01_log.py").write_text(INCIDENT)
    plain = cli("zoo", "zoo", "--json").json
    assert plain["schema"] == "workbench.zoo/1"
    row = plain["incidents"]["zz01_log"]
    assert row["error"] is None
    assert (row["op"], row["cause"]) == ("aten.log.default", "log_of_zero")
    assert row["agrees"] is None

    (zoo / "labels.json").write_text(json.dumps({"zz01_log": LABEL}))
    done = cli("zoo", "zoo")
    assert done.code == 0
    assert "agrees" in done.out
    assert "noise" not in done.out


def test_an_empty_folder_is_wrong_use(cli, here):
    folder, _ = here
    (folder / "empty").mkdir()
    assert cli("zoo", "empty").code == 2
