"""The drill: every fault is caught where it should be, and a hole in the net is told."""

from __future__ import annotations

import json

import pytest
import recorded_steps as steps
import torch
from torch import nn

from workbench import Domain
from workbench.cli.main import main
from workbench.errors import CannotRunError, UsageError
from workbench.record.drill import faults, run_drill
from workbench.step import load_step


class Classifier(steps.Cnn):
    """Labels with a declared domain, and a loss scaler."""

    domains = {"y": Domain.labels(3)}  # noqa: RUF012 - as users write it

    def build_model(self):
        return nn.Linear(4, 3)

    def build_scaler(self):
        return torch.amp.GradScaler("cpu", init_scale=8.0)

    def forward(self, model, batch):
        return model(batch["x"])

    def loss(self, outputs, batch):
        return nn.functional.cross_entropy(outputs, batch["y"])

    def example_batch(self, k):
        g = torch.Generator().manual_seed(k)
        x = torch.randn(5, 4, generator=g)
        return {"x": x, "y": torch.randint(0, 3, (5,), generator=g)}


def test_every_fault_is_caught_at_its_boundary():
    step = Classifier()
    drill = run_drill(step, step.example_batch)
    assert {row.fault: row.boundary for row in drill.rows} == {
        "batch_nan": "input",
        "consecutive_skips": "alert",
        "evidence_unwritable": "recorder",
        "inf_gradient": "scaler_skip",
        "inf_parameter": "after_update",
        "label_out_of_range": "input",
        "logger_throws": "logging",
        "single_rank_nan": None,
    }
    *rows, alone = drill.rows
    assert {row.result for row in rows} == {"caught"}
    assert {row.caught_at for row in rows} == {2}
    assert (alone.result, alone.fault) == ("not_applicable", "single_rank_nan")
    assert "--ranks 2" in alone.why
    assert drill.missed == []


def test_what_does_not_apply_is_said_and_not_counted():
    step = steps.Cnn()
    drill = run_drill(step, step.batch)
    rows = {row.fault: row for row in drill.rows}
    assert rows["consecutive_skips"].result == "not_applicable"
    assert "no loss scaler" in rows["consecutive_skips"].why
    assert rows["label_out_of_range"].result == "not_applicable"
    assert rows["inf_gradient"].boundary == "backward"
    assert drill.missed == []


def test_a_hole_is_missed():
    """A step that hides bad gradients before any gate sees them."""

    class Hides(Classifier):
        def unscale(self, optimizers, scaler):
            for group in optimizers[0].param_groups:
                for p in group["params"]:
                    torch.nan_to_num_(p.grad, 0.0, 0.0, 0.0)
            super().unscale(optimizers, scaler)

    step = Hides()
    (fault,) = [one for one in faults() if one.name == "inf_gradient"]
    drill = run_drill(step, step.example_batch, chosen=[fault])
    assert drill.missed == ["inf_gradient"]
    assert drill.rows[0].why == "nothing was caught"


class FailsByItself(Classifier):
    """The batch of the third step is too much for it, without any fault."""

    def build_scaler(self):
        return None

    def loss(self, outputs, batch):
        return torch.log(batch["w"]).sum() + super().loss(outputs, batch)

    def example_batch(self, k):
        return super().example_batch(k) | {"w": torch.tensor([1.0 if k != 2 else -1.0])}


class FailsOnRanks(Classifier):
    """Fails where several processes train, and in one alone it does not."""

    def loss(self, outputs, batch):
        loss = super().loss(outputs, batch)
        return loss * torch.nan if torch.distributed.is_initialized() else loss


class Refuses(Classifier):
    def example_batch(self, k):
        raise KeyError(f"batch {k} of this data set is not there")


def test_a_step_that_fails_by_itself_is_said_and_no_fault_is_blamed():
    step = FailsByItself()
    with pytest.raises(CannotRunError, match="without a fault") as met:
        run_drill(step, step.example_batch)
    assert "The loss became NaN. Caught at loss, step 2." in str(met.value)
    with pytest.raises(CannotRunError, match="batch 0 of this data set"):
        run_drill(Refuses(), Refuses().example_batch)


def test_what_the_step_shows_without_a_fault_is_not_taken_for_one():
    """A field that always holds NaN, as of a missing label, hides no fault and shows none."""

    class Hides(Classifier):
        def example_batch(self, k):
            return super().example_batch(k) | {"note": torch.tensor([float("nan"), 0.0])}

        def unscale(self, optimizers, scaler):
            for group in optimizers[0].param_groups:
                for p in group["params"]:
                    torch.nan_to_num_(p.grad, 0.0, 0.0, 0.0)
            super().unscale(optimizers, scaler)

    step = Hides()
    wanted = [one for one in faults() if one.name in ("inf_gradient", "batch_nan")]
    before = torch.get_rng_state()
    drill = run_drill(step, step.example_batch, chosen=wanted)
    assert {row.fault: row.result for row in drill.rows} == {
        "batch_nan": "caught",
        "inf_gradient": "missed",
    }
    assert torch.equal(torch.get_rng_state(), before)


def test_ranks_that_fail_by_themselves_are_said():
    (fault,) = [one for one in faults() if one.several_ranks]
    step = load_step(None, step=f"{__file__}:FailsOnRanks")
    with pytest.raises(CannotRunError, match=r"on 2 ranks.*without a fault"):
        run_drill(step, step.example_batch, chosen=[fault], ranks=2)


def test_too_few_steps_are_refused():
    with pytest.raises(UsageError, match="calm step"):
        run_drill(Classifier(), Classifier().example_batch, steps=2)


def _run(arguments, capfd):
    with pytest.raises(SystemExit) as left:
        main(arguments)
    out, err = capfd.readouterr()
    return left.value.code, out, err


def test_the_command_prints_a_table_and_needs_batches(capfd):
    reference = f"{__file__}:Classifier"
    code, out, _ = _run(["drill", reference, "--ranks", "2", "--json"], capfd)
    assert code == 0
    assert [row["result"] for row in json.loads(out)["faults"]] == ["caught"] * 8
    code, out, err = _run(["drill", f"{__file__}:FailsByItself"], capfd)
    assert (code, out) == (4, "")
    assert "Caught at loss, step 2" in err
    code, out, err = _run(["drill", f"{steps.__file__}:Cnn"], capfd)
    assert code == 2
    assert "example_batch" in err
