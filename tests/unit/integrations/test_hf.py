"""The Hugging Face integration against the real Trainer, with a tiny model made from a config."""

from __future__ import annotations

import json
import math

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import workbench
from workbench.checkpoints import Registry
from workbench.errors import CannotRunError, UsageError
from workbench.integrations import hf
from workbench.replay import Replay


class _Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, 50, (8,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


class _Spoils(TrainerCallback):
    """Writes an infinity into a weight before one step."""

    def __init__(self, model, step):
        self.model, self.step = model, step

    def on_step_begin(self, args, state, control, **_):
        if state.global_step == self.step:
            with torch.no_grad():
                self.model.transformer.h[1].mlp.c_fc.weight[0, 0] = math.inf


def _trainer(directory, spoil_at=None, kind=Trainer, **arguments):
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(config)
    settings = {
        "per_device_train_batch_size": 2, "max_steps": 4, "save_strategy": "no",
        "report_to": [], "use_cpu": True, "disable_tqdm": True, "logging_steps": 1,
    }  # fmt: skip
    arguments = TrainingArguments(output_dir=str(directory / "out"), **(settings | arguments))
    trainer = kind(model=model, args=arguments, train_dataset=_Tokens())
    if spoil_at is not None:
        trainer.add_callback(_Spoils(model, spoil_at))
    return trainer


def _ledger(directory):
    return [json.loads(line) for line in (directory / "r.ledger.jsonl").read_text().splitlines()]


def _digest(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("arguments", [{"gradient_accumulation_steps": 2}, {"bf16": True}])
def test_a_bad_step_is_sealed_and_replays_without_the_users_code(tmp_path, arguments):
    trainer = _trainer(tmp_path, spoil_at=2, **arguments)
    hf.attach(trainer, tmp_path / "incidents", run_id="r")
    with pytest.raises(workbench.NonFiniteError) as raised:
        trainer.train()
    bundle = workbench.open_bundle(raised.value.bundle)
    assert (bundle.first_bad.stage, bundle.first_bad.step) == ("loss", 2)
    assert bundle.manifest.step_reference.kind == "integration"
    precision = "bfloat16" if "bf16" in arguments else "off"
    assert _ledger(tmp_path / "incidents")[-1]["precision"] == precision
    assert Replay(bundle).verdict().verdict == "bitwise"


def test_training_is_what_it_is_without_the_recorder(tmp_path):
    plain = _trainer(tmp_path / "a", gradient_accumulation_steps=2)
    plain.train()
    watched = _trainer(tmp_path / "b", gradient_accumulation_steps=2)
    attachment = hf.attach(watched, tmp_path / "incidents", run_id="r")
    watched.train()
    for a, b in zip(_digest(plain.model), _digest(watched.model), strict=True):
        assert torch.equal(a, b)
    assert attachment.recorder.failures == []
    records = _ledger(tmp_path / "incidents")
    assert [record["step"] for record in records] == [0, 1, 2, 3]
    assert all(record["optimizers"][0]["updated"] == "yes" for record in records)
    assert records[0]["grad_norm"] == pytest.approx(
        plain.state.log_history[0]["grad_norm"], rel=1e-5
    )


def test_a_step_that_is_skipped_is_skipped_in_the_trainer_too(tmp_path):
    class Halfway(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            self.before = _digest(trainer.model)

        def on_step_end(self, args, state, control, **_):
            same = all(map(torch.equal, self.before, _digest(trainer.model)))
            moved.append(not same)

    moved = []
    trainer = _trainer(tmp_path)
    trainer.add_callback(Halfway())
    policy = workbench.Policy(on_nonfinite="skip")
    hf.attach(trainer, tmp_path / "incidents", policy, run_id="r")
    weight = trainer.model.transformer.h[0].mlp.c_fc.weight
    calls = []

    def spoil(target):
        calls.append(None)
        if len(calls) == 2:
            target.grad[0, 0] = math.inf

    weight.register_post_accumulate_grad_hook(spoil)
    trainer.train()
    assert moved == [True, False, True, True]
    rates = [entry["learning_rate"] for entry in trainer.state.log_history[:4]]
    assert rates[0] > rates[1] == rates[2] > rates[3]  # held once, and then it goes on
    assert [r["first_bad_stage"] for r in _ledger(tmp_path / "incidents")] == [
        None, "backward", None, None,
    ]  # fmt: skip


def test_resuming_takes_committed_checkpoints_only(tmp_path):
    trainer = _trainer(tmp_path, save_strategy="steps", save_steps=1, max_steps=3)
    attachment = hf.attach(trainer, tmp_path / "incidents", run_id="r")
    trainer.train()
    with pytest.raises(CannotRunError, match="committed"):
        attachment.resume_from(True)
    registry = Registry(tmp_path / "out", clean_steps=1)
    registry.clean(10)
    registry.scan()
    assert attachment.resume_from(True).endswith("checkpoint-3")
    registry.quarantine("checkpoint-3", "me", "a test")
    assert attachment.resume_from(True).endswith("checkpoint-2")
    with pytest.raises(CannotRunError, match="quarantined"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))


def test_a_loss_of_the_users_own_needs_a_step_and_says_so(tmp_path, capsys):
    class Own(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            outputs = model(**inputs)
            return (outputs.loss * 2, outputs) if return_outputs else outputs.loss * 2

    trainer = _trainer(tmp_path, kind=Own, max_steps=1)
    attachment = hf.attach(trainer, tmp_path / "incidents", run_id="r")
    trainer.train()
    assert "code of yours" in attachment.replayable
    assert "--step" in capsys.readouterr().err


def test_training_again_is_recorded_on(tmp_path):
    trainer = _trainer(tmp_path, max_steps=2)
    hf.attach(trainer, tmp_path / "incidents", run_id="r")
    trainer.train()
    trainer.train()
    records = _ledger(tmp_path / "incidents")
    assert [record["optimizers"][0]["updated"] for record in records] == ["yes"] * 4
    assert all(record["grad_norm"] > 0 for record in records)


def test_a_token_beyond_the_vocabulary_is_named_before_the_embedding_is_asked(tmp_path):
    class Beyond(_Tokens):
        def __getitem__(self, index):
            found = super().__getitem__(index)
            return found | {"labels": torch.full_like(found["labels"], 70)}

    trainer = _trainer(tmp_path)
    trainer.train_dataset = Beyond()
    hf.attach(trainer, tmp_path / "incidents", workbench.Policy(input="trip"), run_id="r")
    with pytest.raises(workbench.NonFiniteError, match=r"inputs\.labels"):
        trainer.train()


def test_the_drill_catches_what_applies_and_leaves_everything_as_it_was(tmp_path, capsys):
    def trained(drilled):
        trainer = _trainer(tmp_path / str(drilled), gradient_accumulation_steps=2)
        attachment = hf.attach(trainer, tmp_path / str(drilled), run_id="r")
        if drilled:
            before, rng = _digest(trainer.model), torch.get_rng_state()
            drill = attachment.drill(steps=3)
            assert drill.missed == []
            caught = {row.fault: row.boundary for row in drill.rows if row.result == "caught"}
            assert caught.pop("batch_nan", "input") == "input"  # some versions count in floats
            assert caught == {
                "evidence_unwritable": "recorder", "inf_gradient": "backward",
                "inf_parameter": "after_update", "label_out_of_range": "input",
                "logger_throws": "logging",
            }  # fmt: skip
            assert all(map(torch.equal, before, _digest(trainer.model)))
            assert torch.equal(rng, torch.get_rng_state())
            assert (trainer.state.global_step, trainer.state.log_history) == (0, [])
        trainer.train()
        return trainer

    plain, drilled = trained(False), trained(True)
    assert "put into step 1: caught" in capsys.readouterr().err
    assert all(map(torch.equal, _digest(plain.model), _digest(drilled.model)))
    assert len(_ledger(tmp_path / "True")) == 4


def test_what_is_no_trainer_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no transformers"):
        hf.attach(object(), tmp_path)
