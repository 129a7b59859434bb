"""The accelerate integration in a plain loop, with tiny models made from a config."""

from __future__ import annotations

import json
import math

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from transformers import GPT2Config, GPT2LMHeadModel

import workbench
from workbench.checkpoints import Registry
from workbench.errors import CannotRunError, NonFiniteError, UsageError
from workbench.integrations import accelerate as integration
from workbench.replay import Replay
from workbench.step import read_state
from workbench.step.digests import gradient_digests

SPOILED = "transformer.h.0.mlp.c_fc.weight"


class Loop:
    """A loop as users write it."""

    def __init__(self, accumulate=1, precision="no", model=None):
        AcceleratorState._reset_state(reset_partial_state=True)
        torch.manual_seed(0)
        self.accelerator = Accelerator(
            cpu=True, gradient_accumulation_steps=accumulate, mixed_precision=precision
        )
        if model is None:
            config = GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2)
            model = GPT2LMHeadModel(config)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        self.model, self.optimizer, self.schedule = self.accelerator.prepare(
            model, optimizer, schedule
        )
        self.accumulate = accumulate

    def attach(self, directory, *args, **kwargs):
        return integration.attach(
            self.accelerator, self.model, self.optimizer, directory, *args, run_id="r", **kwargs
        )

    def step(self, k):
        for micro in range(self.accumulate):
            generator = torch.Generator().manual_seed(k * 10 + micro)
            tokens = torch.randint(0, 50, (2, 8), generator=generator)
            with self.accelerator.accumulate(self.model):
                loss = self.loss(tokens)
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()

        self.accelerator.log({"loss": loss.item()})

    def loss(self, tokens):
        return self.model(tokens, labels=tokens).loss

    def parameters(self):
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def _records(directory):
    return [json.loads(line) for line in (directory / "r.ledger.jsonl").read_text().splitlines()]


def _spoil_gradient(loop, at):
    weight = loop.model.get_parameter(SPOILED)
    calls = []

    def spoil(target):
        calls.append(None)
        if len(calls) == at:
            target.grad[0, 0] = math.inf

    weight.register_post_accumulate_grad_hook(spoil)


@pytest.mark.parametrize(("accumulate", "precision"), [(2, "no"), (1, "bf16")])
def test_a_bad_update_is_sealed_and_replays_without_the_users_code(tmp_path, accumulate, precision):
    loop = Loop(accumulate, precision)
    loop.attach(tmp_path)
    loop.step(0)
    _spoil_gradient(loop, accumulate)
    with pytest.raises(NonFiniteError) as raised:
        loop.step(1)
    bundle = workbench.open_bundle(raised.value.bundle)
    assert (bundle.first_bad.stage, bundle.first_bad.step) == ("backward", 1)
    assert bundle.manifest.step_reference.kind == "integration"
    assert _records(tmp_path)[1]["precision"] == ("bfloat16" if precision == "bf16" else "off")
    replay = Replay(bundle)
    replay.run(until="reduce")
    # the hook that spoiled one gradient is the test's own; everything else is the same to the bit
    recorded = bundle.evidence()["digests"]["gradients"]
    replayed = gradient_digests(replay.session.runner.model)
    assert {name for name in recorded if recorded[name] != replayed[name]} == {SPOILED}


def test_a_poisoned_weight_replays_bitwise(tmp_path):
    loop = Loop(2)
    loop.attach(tmp_path)
    loop.step(0)
    with torch.no_grad():
        loop.model.transformer.h[1].mlp.c_fc.weight[0, 0] = math.inf
    with pytest.raises(NonFiniteError) as raised:
        loop.step(1)
    assert Replay(workbench.open_bundle(raised.value.bundle)).verdict().verdict == "bitwise"


def test_training_is_what_it_is_without_the_recorder(tmp_path):
    plain, watched = Loop(2), None
    for k in range(3):
        plain.step(k)
    watched = Loop(2)
    with watched.attach(tmp_path) as attachment:
        for k in range(3):
            watched.step(k)
    assert all(map(torch.equal, plain.parameters(), watched.parameters()))
    assert plain.schedule.get_last_lr() == watched.schedule.get_last_lr()
    assert attachment.recorder.failures == []
    records = _records(tmp_path)
    assert [record["step"] for record in records] == [0, 1, 2]
    assert all(record["optimizers"][0]["updated"] == "yes" for record in records)
    assert all(record["grad_norm"] > 0 for record in records)


def test_a_skipped_step_holds_model_and_schedule_and_the_next_one_goes_on(tmp_path):
    loop = Loop()
    loop.attach(tmp_path, workbench.Policy(on_nonfinite="skip"))
    _spoil_gradient(loop, 2)
    seen = []
    for k in range(3):
        before = loop.parameters()
        loop.step(k)
        moved = not all(map(torch.equal, before, loop.parameters()))
        seen.append((moved, round(loop.schedule.get_last_lr()[0], 5)))
    assert seen == [(True, 0.009), (False, 0.009), (True, 0.0081)]


def test_an_exception_within_the_loop_is_evidence(tmp_path):
    loop = Loop()
    loop.attach(tmp_path)
    loop.step(0)
    loop.loss = lambda tokens: loop.model(tokens, labels=tokens).loss + {}["missing"]
    with pytest.raises(KeyError, match="missing") as raised:
        loop.step(1)
    assert "evidence of this step" in raised.value.__notes__[0]


def test_a_model_of_ones_own_needs_a_step_and_the_labels_are_told(tmp_path, capsys):
    loop = Loop(model=torch.nn.Linear(3, 1))
    attachment = loop.attach(tmp_path)
    assert "TrainingStep" in capsys.readouterr().err
    x = torch.ones(4, 3)
    attachment.batch({"x": x, "y": torch.zeros(4)})
    with pytest.raises(NonFiniteError) as raised, loop.accelerator.accumulate(loop.model):
        loop.accelerator.backward(loop.model(x).sum() * math.nan)
    bundle = workbench.open_bundle(raised.value.bundle)
    assert sorted(read_state(bundle).micro_batches[0]) == ["x", "y"]


def test_a_state_that_is_not_committed_is_not_loaded(tmp_path):
    loop = Loop()
    loop.attach(tmp_path / "incidents", checkpoints=tmp_path / "saved")
    (tmp_path / "saved").mkdir()
    loop.step(0)
    path = loop.accelerator.save_state(str(tmp_path / "saved" / "checkpoint_0"))
    with pytest.raises(CannotRunError, match="suspect"):
        loop.accelerator.load_state(path)
    registry = Registry(tmp_path / "saved", clean_steps=1)
    registry.clean(5)
    registry.scan()
    loop.accelerator.load_state(path)


def test_the_drill_catches_what_applies_and_leaves_everything_as_it_was(tmp_path, capsys):
    loop = Loop(2)
    attachment = loop.attach(tmp_path)
    loop.step(0)
    before, rng = loop.parameters(), torch.get_rng_state()
    drill = attachment.drill(loop.step)
    assert drill.missed == []
    caught = {row.fault: row.boundary for row in drill.rows if row.result == "caught"}
    assert caught["inf_gradient"] == "backward"
    assert caught["label_out_of_range"] == "input"
    assert caught["logger_throws"] == "logging"
    assert "put into step 1: caught" in capsys.readouterr().err
    assert all(map(torch.equal, before, loop.parameters()))
    assert torch.equal(rng, torch.get_rng_state())
    loop.step(1)
    attachment.close()
    assert [record["step"] for record in _records(tmp_path)] == [0, 1]
    undisturbed = Loop(2)
    undisturbed.step(0)
    undisturbed.step(1)
    assert all(map(torch.equal, undisturbed.parameters(), loop.parameters()))


def test_what_was_not_prepared_is_refused(tmp_path):
    loop = Loop()
    with pytest.raises(UsageError, match="prepare"):
        integration.attach(loop.accelerator, loop.model, loop.optimizer.optimizer, tmp_path)
