"""The Lightning integration against the real Trainer, on the CPU."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.precision import MixedPrecision

import workbench
from tests.unit.integrations.lightning_modules import Net, Step
from workbench.checkpoints import Registry
from workbench.errors import CannotRunError, NonFiniteError, UsageError
from workbench.integrations import lightning as integration
from workbench.replay import Replay

warnings.filterwarnings("ignore", module="lightning")
STEP = f"{Path(__file__).with_name('lightning_modules.py')}:Step"


def _data(batches=8, bad=None):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batches * 2, 3, generator=generator)
    y = x.sum(1, keepdim=True)
    if bad is not None:
        x[bad * 2, 0] = math.nan
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=2)


def _trainer(directory, **settings):
    quiet = {
        "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
        "enable_model_summary": False, "accelerator": "cpu", "devices": 1, "max_steps": 4,
        "log_every_n_steps": 1, "gradient_clip_val": 1.0,
    }  # fmt: skip
    return lightning.Trainer(default_root_dir=directory, **(quiet | settings))


def _net(kind=Net):
    torch.manual_seed(0)
    return kind()


def _records(directory):
    return [json.loads(line) for line in (directory / "r.ledger.jsonl").read_text().splitlines()]


def _parameters(net):
    return [parameter.detach().clone() for parameter in net.parameters()]


class _PoisonsBefore(lightning.Callback):
    def __init__(self, at):
        self.at = at

    def on_train_batch_start(self, trainer, net, batch, batch_idx):
        if batch_idx == self.at:
            with torch.no_grad():
                net.body[0].weight[0, 0] = math.nan


def _half(scale=1024.0):
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)
    return {"plugins": [MixedPrecision("16-mixed", "cpu", scaler)]}


@pytest.mark.parametrize(
    "settings",
    [
        {"accumulate_grad_batches": 2, "max_steps": 3},
        {"precision": "bf16-mixed"},
        {"gradient_clip_algorithm": "value"},
    ],
)
def test_a_bad_step_is_sealed_and_replays_with_the_modules_class(tmp_path, settings):
    trainer = _trainer(tmp_path, callbacks=[_PoisonsBefore(2)], **settings)
    integration.attach(trainer, directory=tmp_path, run_id="r", step=Step())
    with pytest.raises(NonFiniteError) as raised:
        trainer.fit(_net(), _data())
    bundle = workbench.open_bundle(raised.value.bundle)
    assert bundle.first_bad.stage == "loss"
    assert bundle.first_bad.step == 2 // settings.get("accumulate_grad_batches", 1)
    precision = "bfloat16" if "precision" in settings else "off"
    assert _records(tmp_path)[-1]["precision"] == precision
    with pytest.raises(CannotRunError):  # the user's code needs the user's trust
        Replay(bundle).verdict()
    assert Replay(bundle, step=STEP).verdict().verdict == "bitwise"


@pytest.mark.parametrize("settings", [{"accumulate_grad_batches": 2}, _half])
def test_training_is_what_it_is_without_the_recorder(tmp_path, settings):
    made = settings if callable(settings) else lambda: settings
    plain, watched = _net(), _net()
    _trainer(tmp_path, **made()).fit(plain, _data())
    trainer = _trainer(tmp_path, **made())
    attachment = integration.attach(trainer, watched, tmp_path, run_id="r")
    trainer.fit(watched, _data())
    assert all(map(torch.equal, _parameters(plain), _parameters(watched)))
    assert attachment.recorder.failures == []
    records = _records(tmp_path)
    assert [record["step"] for record in records] == [0, 1, 2, 3]
    assert all(record["optimizers"][0]["updated"] == "yes" for record in records)
    assert all(record["grad_norm"] > 0 for record in records)
    assert all(record["order"] == [] for record in records)


@pytest.mark.parametrize("settings", [dict, _half])
def test_a_step_that_is_skipped_is_skipped_in_the_trainer_too(tmp_path, settings):
    class Watches(lightning.Callback):
        def on_train_batch_start(self, trainer, net, batch, batch_idx):
            self.before = _parameters(net)

        def on_train_batch_end(self, trainer, net, *_):
            moved.append(not all(map(torch.equal, self.before, _parameters(net))))

    moved = []
    net = _net()
    trainer = _trainer(tmp_path, callbacks=[Watches()], **settings())
    integration.attach(
        trainer, net, tmp_path, workbench.Policy(on_nonfinite="skip"), run_id="r"
    )  # fmt: skip
    trainer.fit(net, _data(4, bad=1))
    assert moved == [True, False, True, True]
    assert [r["first_bad_stage"] for r in _records(tmp_path)] == [None, "loss", None, None]


def test_a_skip_of_the_scaler_is_no_incident(tmp_path):
    net = _net()
    trainer = _trainer(tmp_path, **_half(2.0**40))
    integration.attach(trainer, net, tmp_path, run_id="r")
    trainer.fit(net, _data())
    first = _records(tmp_path)[0]
    assert first["optimizers"][0]["skipped_by"] == "scaler"
    assert first["first_bad_stage"] is None


def test_an_exception_in_training_step_is_evidence(tmp_path):
    net = _net()
    net.before_step = lambda index: {}["missing"] if index == 1 else None
    trainer = _trainer(tmp_path)
    integration.attach(trainer, net, tmp_path, run_id="r")
    with pytest.raises(KeyError) as raised:
        trainer.fit(net, _data())
    assert "evidence of this step" in raised.value.__notes__[0]
    assert _records(tmp_path)[-1]["first_bad_stage"] == "forward"


def test_resuming_takes_committed_checkpoints_only(tmp_path):
    saved = tmp_path / "saved"

    def trainer(steps):
        keep = ModelCheckpoint(saved, every_n_train_steps=1, save_top_k=-1, save_last=True)
        made = _trainer(tmp_path, callbacks=[keep], enable_checkpointing=True, max_steps=steps)
        integration.attach(made, directory=tmp_path / "incidents", run_id="r")
        return made

    trainer(2).fit(_net(), _data())
    with pytest.raises(CannotRunError, match="committed"):
        trainer(3).fit(_net(), _data(), ckpt_path="last")
    registry = Registry(saved, clean_steps=1)
    assert {one.entry.step for one in registry.known() if one.checkpoint.name != "last.ckpt"} == {
        0, 1,
    }  # fmt: skip
    registry.clean(10)
    registry.scan()
    resumed = trainer(3)
    resumed.fit(_net(), _data(), ckpt_path="last")
    assert resumed.global_step == 3
    assert _records(tmp_path / "incidents")[-1]["step"] == 2
    bad = saved / "epoch=0-step=1.ckpt"
    registry.quarantine(bad.name, "me", "a test")
    with pytest.raises(CannotRunError, match="quarantined"):
        trainer(4).fit(_net(), _data(), ckpt_path=str(bad))


def test_manual_optimization_is_said_not_to_be_gated(tmp_path, capsys):
    class Manual(Net):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(self.body(batch[0]).sum())
            optimizer.step()

    trainer = _trainer(tmp_path, gradient_clip_val=None, max_steps=2)
    attachment = integration.attach(trainer, directory=tmp_path, run_id="r")
    trainer.fit(_net(Manual), _data())
    assert "manual optimization" in capsys.readouterr().err
    assert not attachment.loop.started


def test_the_drill_catches_what_applies_and_leaves_everything_as_it_was(tmp_path, capsys):
    net = _net()
    trainer = _trainer(tmp_path, **_half())
    attachment = integration.attach(trainer, net, tmp_path, run_id="r", step=Step())
    before, rng = _parameters(net), torch.get_rng_state()
    drill = attachment.drill(steps=3, train_dataloaders=_data())
    assert drill.missed == []
    caught = {row.fault: row.boundary for row in drill.rows if row.result == "caught"}
    assert caught["batch_nan"] == "input"
    assert caught["inf_gradient"] == "scaler_skip"
    assert caught["consecutive_skips"] == "alert"
    assert caught["logger_throws"] == "logging"
    assert "put into step 1: caught" in capsys.readouterr().err
    assert all(map(torch.equal, before, _parameters(net)))
    assert torch.equal(rng, torch.get_rng_state())
    trainer.fit(net, _data())
    assert len(_records(tmp_path)) == 4


def test_what_is_no_trainer_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no Lightning"):
        integration.attach(object(), directory=tmp_path)
