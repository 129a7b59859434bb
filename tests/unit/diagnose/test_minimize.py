"""Minimising: smallest failing samples, and a script that needs torch only."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from workbench.diagnose.analysis import analyse
from workbench.diagnose.computation import Computation
from workbench.diagnose.minimize import Minimized, minimize, smallest_samples
from workbench.diagnose.repro import write_repro
from workbench.diagnose.shown import first_that_fails
from workbench.diagnose.shrink import shrink
from workbench.diagnose.zoo_run import record
from workbench.diagnose.zoo_step import incident_step
from workbench.errors import CannotRunError
from workbench.evidence import open_bundle
from workbench.replay import Replay

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


def bundle_of(
    tmp_path: Path, loss: str, edit: str = "", optimizer: str = "SGD(model.parameters(), 1e-3)"
) -> tuple[Path, Path]:
    path = tmp_path / "incident.py"
    path.write_text(TEXT.format(edit=edit, loss=loss, optimizer=optimizer))
    recorded = record(path, tmp_path / "out", None)
    assert recorded.bundle is not None
    return recorded.bundle, path


def made(tmp_path: Path, *args: str, **kwargs: str) -> Minimized:
    """All of it, with the script checked in a process of its own."""
    bundle, path = bundle_of(tmp_path, *args, **kwargs)
    return minimize(open_bundle(bundle), tmp_path / "repro", step=incident_step(path))


@dataclass
class Small:
    """The smallest computation, run here."""

    op: str
    shows: str
    computation: Computation
    whole: int
    text: str

    @property
    def kept(self) -> int:
        return sum(t.numel() for t in self.computation.tensors.values())


def small(tmp_path: Path, *args: str, **kwargs: str) -> Small:
    bundle, path = bundle_of(tmp_path, *args, **kwargs)
    replay = Replay(open_bundle(bundle), step=incident_step(path))
    trace = replay.trace()
    analysis = analyse(trace, replay.kept)
    shown = first_that_fails(replay, analysis)
    smaller = shrink(shown.computation, shown.still)
    whole = sum(t.numel() for t in shown.computation.tensors.values())
    script = write_repro(smaller, tmp_path / "repro", "title")
    return Small(shown.op, shown.shows, smaller, whole, script.read_text())


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
    assert found.inputs == {"t0": (1, 1)} and found.whole == (24, 1)
    assert "import workbench" not in text and "safetensors import" not in text


@pytest.mark.parametrize(
    ("loss", "edit", "op"),
    [
        ("(out * 1e3).exp().mean()", "x *= 1e3", "aten.exp.default"),
        ("(out.half() * 3e4).float().mean()", "x *= 1e2", "aten.mul.Tensor"),
    ],
)
def test_births_of_several_kinds_repeat_alone(
    tmp_path: Path, loss: str, edit: str, op: str
) -> None:
    found = small(tmp_path, loss, edit)
    assert found.op == op and found.kept == 1 < found.whole
    assert found.computation.run().kinds


def test_an_in_place_op_shows_what_it_wrote(tmp_path: Path) -> None:
    found = small(tmp_path, "out.mean() * 1e30", optimizer="Adam(model.parameters(), 1e-2)")
    assert found.op == "aten.addcmul_.default"
    assert found.computation.calls[0].written and found.computation.run().kinds == {"+inf"}


def test_a_list_op_is_cut_to_one_element(tmp_path: Path) -> None:
    found = small(
        tmp_path, "out.mean() * 1e30", optimizer="Adam(model.parameters(), 1e-2, foreach=True)"
    )
    assert found.op.startswith("aten._foreach_") and found.kept <= 4
    assert found.computation.run().kinds


def test_a_bad_batch_is_shown_through_the_op_that_read_it(tmp_path: Path) -> None:
    found = small(tmp_path, "out.mean()", "x[1, 2] = float('nan')")
    assert "bad before it" in found.shows
    assert found.computation.run().kinds == {"nan"}


def test_what_is_born_in_backward_is_shown_through_its_forward_function(tmp_path: Path) -> None:
    found = small(tmp_path, "(out * 0).pow(2).sum().sqrt()")
    assert "torch.autograd.grad(" in found.text and ".sqrt(" in found.text
    assert found.computation.run().kinds == {"+inf"}


def test_a_reduction_is_not_cut_until_it_fails_for_another_reason(tmp_path: Path) -> None:
    # two terms overflow together, one alone does not
    found = small(tmp_path, "(out * 0 + 2e38).sum()")
    assert found.op == "aten.sum.default" and found.kept == 2


def test_a_variance_is_not_cut_to_a_single_element(tmp_path: Path) -> None:
    # over one element it would be NaN, which is another failure
    found = small(tmp_path, "(out * 0 + 2e20 * b['x'][:, :3]).var()", "x[0] = -1")
    assert found.op == "aten.var.correction" and found.kept == 2
    assert found.computation.run().kinds == {"+inf"}


def test_an_exception_is_raised_again(tmp_path: Path) -> None:
    found = small(tmp_path, "out.half().masked_fill(out > 0, -1e9).float().mean()")
    assert "raised" in found.text
    error = found.computation.run().error
    assert error is not None and "cannot be converted" in error[1]


def test_an_exception_of_torchs_python_code_is_raised_again(tmp_path: Path) -> None:
    found = small(tmp_path, "F.batch_norm(out[:1], None, None, training=True).mean()")
    assert "torch.nn.functional.batch_norm(" in found.text
    error = found.computation.run().error
    assert error is not None and "Expected more than 1 value per channel" in error[1]


def test_an_exception_outside_of_torch_has_no_computation(tmp_path: Path) -> None:
    with pytest.raises(CannotRunError, match="outside of any torch call"):
        small(tmp_path, "dict()['missing']")


def test_random_numbers_come_from_the_recorded_generator(tmp_path: Path) -> None:
    found = small(tmp_path, "(torch.empty(4000).log_normal_(0, 30).sum() + out.sum())")
    assert found.op == "aten.log_normal_.default"
    assert "set_rng_state" in found.text and found.computation.run().kinds


def test_an_absorbed_inf_is_shown_with_what_made_a_finite_number_of_it(tmp_path: Path) -> None:
    loss = "(((out * 0 + 300).half() ** 2).mean(-1, keepdim=True).rsqrt() * out).sum()"
    found = small(tmp_path, loss)
    paths = [call.path for call in found.computation.calls]
    assert paths[0].endswith("aten.pow.Tensor_Scalar") and paths[-1].endswith("rsqrt.default")
    ran = found.computation.run()
    assert ran.kinds == {"+inf"} and not ran.last
    assert len(found.computation.tensors) == 1  # one chain, not two ops side by side


def test_samples_that_fail_for_another_reason_do_not_count(tmp_path: Path) -> None:
    # any single sample gives NaN by a std of one; only sample 2 has the recorded log of zero
    loss = "(b['x'].std(0).mean() + b['x'].prod().log() + out.sum())"
    bundle, path = bundle_of(tmp_path, loss, "x[2] = 0")
    replay = Replay(open_bundle(bundle), step=incident_step(path))
    analysis = analyse(replay.trace(), replay.kept)
    samples, of, _ = smallest_samples(replay, analysis, lambda sentence: None)
    assert (samples, of) == ((2,), 8)


def test_the_script_says_when_it_is_finite(tmp_path: Path) -> None:
    small(tmp_path, "(out * 1e3).exp().mean()", "x *= 1e3")
    script = tmp_path / "repro" / "repro.py"
    script.write_text(script.read_text().replace("aten.exp.default", "aten.tanh.default"))
    done = subprocess.run(
        [sys.executable, "-I", str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "finite here" in done.stderr
