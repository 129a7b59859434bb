"""Growth is an origin only on look-back from a range overflow."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.diagnose.zoo_run import run_incident

DIVERGES = """
import torch, torch.nn as nn
def build():
    g = torch.Generator().manual_seed(1)
    model = nn.Linear(4, 1)
    x = torch.randn(8, 4, generator=g) * 3
    return model, torch.optim.SGD(model.parameters(), {rate}), None, [{{"x": x}}] * {steps}
def forward(model, b): return model(b["x"])
def loss(out, b): return (out - 1).pow(2).mean()
"""

LOADED = """
import torch, torch.nn as nn
def build():
    model = nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, [{"x": torch.ones(2, 4)}] * 4
def PRE_STEP(k, model, opt, scaler):
    if k == 2:
        with torch.no_grad(): model.weight.fill_(1e30)
def forward(model, b): return model(b["x"])
def loss(out, b): return out.pow(2).mean()
"""

EXPLODES = """
import torch, torch.nn as nn
def build():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    xs = [torch.ones(2, 4)] * 3 + [torch.full((2, 4), 1e6)] + [torch.full((2, 4), 1e20)] * 3
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, [{"x": x} for x in xs]
def forward(model, b): return model(b["x"])
def loss(out, b): return (out - 1).pow(2).mean()
"""

CALM = """
import torch, torch.nn as nn
def build():
    model = nn.Linear(4, 1)
    xs = [torch.ones(2, 4)] * 3 + [torch.full((2, 4), 1e25)]
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, [{"x": x} for x in xs]
def forward(model, b): return model(b["x"])
def loss(out, b): return out.pow(2).mean()
"""


def run(tmp_path: Path, text: str) -> dict:
    path = tmp_path / "incident.py"
    path.write_text(text)
    row = run_incident(path, tmp_path / "out", None)
    assert row["error"] is None, row["error"]
    return row


def test_growth_names_the_first_step_out_of_proportion_before_the_overflow(tmp_path: Path) -> None:
    row = run(tmp_path, DIVERGES.format(rate=1e3, steps=30))
    growth, overflow = row["origins"][:2]
    assert growth["kind"] == "growth"
    assert (growth["step"], growth["stage"], growth["where"]) == (0, "update", "optimizer")
    assert growth["cause"] == "learning_rate"
    assert growth["tensor"]["name"] in ("weight", "bias")
    assert overflow["range"] == "overflow" and overflow["step"] > 0
    assert row["verdict"] == "bitwise"


def test_a_gradient_out_of_proportion_is_told_from_a_learning_rate(tmp_path: Path) -> None:
    growth = run(tmp_path, EXPLODES)["origins"][0]
    assert (growth["kind"], growth["step"]) == ("growth", 3)
    assert growth["cause"] == "exploding_gradient"


@pytest.mark.parametrize("text", [LOADED, CALM], ids=["loaded from outside", "one huge batch"])
def test_without_an_update_out_of_proportion_the_overflow_is_the_origin(
    tmp_path: Path, text: str
) -> None:
    row = run(tmp_path, text)
    assert [o["kind"] for o in row["origins"]] == ["birth"]
    assert row["origins"][0]["range"] == "overflow"


def test_a_calm_run_has_no_origin(tmp_path: Path) -> None:
    row = run(tmp_path, DIVERGES.format(rate=1e-3, steps=3))
    assert row["tripped"] is False
    assert row["origins"] == [] and row["absorbed"] == []
