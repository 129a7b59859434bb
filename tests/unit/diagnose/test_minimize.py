"""Minimising: smallest failing samples, and a script that needs torch only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from workbench.diagnose.minimize import Minimized, minimize
from workbench.diagnose.zoo_run import record
from workbench.diagnose.zoo_step import incident_step
from workbench.errors import CannotRunError
from workbench.evidence import open_bundle

TEXT = """
import torch, torch.nn as nn, torch.nn.functional as F
def build():
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    x = torch.ones(8, 4)
    {edit}
    return model, torch.optim.{optimizer}, None, [{{"x": x}}]
def forward(model, b): return model(b["x"])
def loss(out, b): return {loss}
"""


def made(
    tmp_path: Path, loss: str, edit: str = "", optimizer: str = "SGD(model.parameters(), 1e-3)"
) -> Minimized:
    path = tmp_path / "incident.py"
    path.write_text(TEXT.format(edit=edit, loss=loss, optimizer=optimizer))
    recorded = record(path, tmp_path / "out", None)
    assert recorded.bundle is not None
    return minimize(open_bundle(recorded.bundle), tmp_path / "repro", step=incident_step(path))


def test_the_failing_sample_is_found_and_the_script_fails_alone(tmp_path: Path) -> None:
    found = made(tmp_path, "-out.softmax(-1).log().mean()", "x[5] *= 1e4")
    assert found.samples == (5,)
    assert found.op == "aten.log.default"
    assert "-Inf" in found.printed
    assert sorted(p.name for p in (tmp_path / "repro").iterdir()) == [
        "inputs.safetensors",
        "repro.py",
    ]
    text = found.script.read_text()
    assert "import workbench" not in text and "safetensors import" not in text


@pytest.mark.parametrize(
    ("loss", "edit", "op"),
    [
        ("(out * 1e3).exp().mean()", "x *= 1e3", "aten.exp.default"),
        ("(out * 0).pow(2).sum().sqrt()", "", "aten.div.Tensor"),
        ("(out.half() * 3e4).float().mean()", "x *= 1e2", "aten.mul.Tensor"),
    ],
)
def test_births_of_several_kinds_repeat_alone(
    tmp_path: Path, loss: str, edit: str, op: str
) -> None:
    assert made(tmp_path, loss, edit).op == op


def test_an_in_place_op_shows_what_it_wrote(tmp_path: Path) -> None:
    found = made(tmp_path, "out.mean() * 1e30", optimizer="Adam(model.parameters(), 1e-2)")
    assert found.op == "aten.addcmul_.default"


def test_a_bad_batch_has_no_computation_to_minimise(tmp_path: Path) -> None:
    with pytest.raises(CannotRunError, match="bad before any op ran"):
        made(tmp_path, "out.mean()", "x[1, 2] = float('nan')")


def test_the_script_says_when_it_is_finite(tmp_path: Path) -> None:
    found = made(tmp_path, "(out * 1e3).exp().mean()", "x *= 1e3")
    text = found.script.read_text().replace("aten.exp.default", "aten.tanh.default")
    found.script.write_text(text)
    done = subprocess.run(
        [sys.executable, "-I", str(found.script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "finite here" in done.stderr
