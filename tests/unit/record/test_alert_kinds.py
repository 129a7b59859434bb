"""Alerts beyond skips in a row: what each needs to fire, and what must not make it fire."""

import importlib
from pathlib import Path

import pytest
import torch
from recorded_steps import BadGradient, Cnn, Half
from recorder_helpers import ledger, make
from torch import nn

from workbench import Policy, Recorder, TrainingStep, open_bundle
from workbench.errors import UsageError
from workbench.record import Alerts
from workbench.record.alerts import AlertMonitor, Seen, module_of

INCIDENTS = Path(__file__).parents[2] / "incidents"


def names(monitor, *seen):
    return [[alert.name for alert in monitor.look(one)] for one in seen]


def test_two_optimizers_skipped_in_turn_are_not_one_skipped_all_the_time():
    turns = [Seen(skipped=(k % 2 == 0, k % 2 == 1)) for k in range(20)]
    monitor = AlertMonitor(Alerts(consecutive_skips=3, skip_ratio=0.8, window=16))
    assert names(monitor, *turns) == [[]] * 20
    assert (monitor.skips_of(0), monitor.skips_of(1)) == (0, 1)
    monitor = AlertMonitor(Alerts(consecutive_skips=3, skip_ratio=None))
    found = names(monitor, *[Seen(skipped=(False, True))] * 4)
    assert found == [[], [], ["consecutive_skips"], []]
    assert monitor.consecutive_skips == 4
    assert monitor.skips_of(0) == 0


def test_a_skip_ratio_forgets_what_left_the_window():
    monitor = AlertMonitor(Alerts(consecutive_skips=None, skip_ratio=0.5, window=8))
    bad, good = Seen(skipped=(True,)), Seen(skipped=(False,))
    assert names(monitor, *[good] * 4, *[bad] * 3) == [[]] * 7
    assert names(monitor, bad) == [["skip_ratio"]]  # 4 of 8
    assert names(monitor, *[good] * 8) == [[]] * 8
    assert names(monitor, *[bad] * 4)[-1] == ["skip_ratio"]


def test_a_scale_that_only_falls_is_told_and_one_that_rises_again_is_not():
    monitor = AlertMonitor(Alerts(scale_falls=3, minimum_scale=None))
    falling = [Seen(scale=s) for s in (1024.0, 512.0, 512.0, 256.0, 128.0, 64.0)]
    assert names(monitor, *falling) == [[], [], [], [], ["scale_falls"], []]
    monitor = AlertMonitor(Alerts(scale_falls=3, minimum_scale=None))
    sawtooth = [Seen(scale=s) for s in (8.0, 4.0, 2.0, 4.0, 2.0, 1.0, 2.0) * 5]
    assert names(monitor, *sawtooth) == [[]] * 35


def test_the_same_module_or_one_shard_of_several_trips_repeatedly():
    def seen(tripped, module=None, shard=None):
        return Seen(tripped=tripped, module=module, shard=shard)

    monitor = AlertMonitor(Alerts(repeated_trips=3, window=10))
    calm = seen(False)
    steps = [seen(True, "blocks.3"), calm, seen(True, "blocks.3"), calm, seen(True, "blocks.3")]
    assert names(monitor, *steps)[-1] == ["repeated_trips"]
    monitor = AlertMonitor(Alerts(repeated_trips=3, window=10))
    elsewhere = [seen(True, f"blocks.{k}") for k in range(8)]
    assert names(monitor, *elsewhere) == [[]] * 8
    rare = [seen(k % 9 == 0, "blocks.3") for k in range(60)]
    assert names(AlertMonitor(Alerts(repeated_trips=3, window=10)), *rare) == [[]] * 60
    only = [seen(True, shard="a") for _ in range(9)]  # the one shard there is says nothing
    assert names(AlertMonitor(Alerts(repeated_trips=3)), *only) == [[]] * 9
    several = [seen(k % 3 == 0, shard="abc"[k % 3]) for k in range(9)]
    monitor = AlertMonitor(Alerts(repeated_trips=3))
    assert names(monitor, *several) == [[]] * 6 + [["repeated_trips"]] + [[]] * 2
    assert module_of("gradient:blocks.3.attention.weight") == "blocks.3.attention"
    assert module_of("optimizer_state:head.bias/exp_avg") == "head"
    assert module_of("loss.ce") is None


def test_trips_of_one_shard_are_in_the_bundle_of_the_last(tmp_path):
    policy = Policy(on_nonfinite="skip", alerts=Alerts(repeated_trips=2))
    step, recorder = make(BadGradient, tmp_path, policy)
    for k in range(6):
        recorder.provenance["shard_id"] = f"shard-{k % 3}"
        result = recorder.train_step(step.batch(k, bad=k % 3 == 1))
        alerts = ledger(tmp_path)[-1]["alerts"]
        assert [one["name"] for one in alerts] == (["repeated_trips"] if k == 4 else [])
        if k == 4:
            assert "shard-1" in alerts[0]["message"] or "module" in alerts[0]["message"]
            assert open_bundle(result.incident).evidence()["alerts"] == alerts
    assert recorder.failures == []


class Faster(Cnn):
    """The learning rate is raised a thousandfold for one update."""

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), 1e-3)


@pytest.mark.parametrize("low_level", [False, True])
def test_an_update_out_of_proportion_makes_an_alert_and_a_small_one_does_not(tmp_path, low_level):
    step, recorder = make(Faster, tmp_path, Policy(alerts=Alerts(update_ratio_factor=50.0)))
    (optimizer,) = recorder.optimizers
    found = []
    for k in range(10):
        optimizer.param_groups[0]["lr"] = 1.0 if k == 7 else 3e-3 if k == 5 else 1e-3
        batch = step.batch(k)
        if low_level:
            optimizer.zero_grad()
            with recorder.step(batch) as s:
                loss = sum(step.loss(step.forward(recorder.model, batch), batch).values())
                s.loss(loss)
                loss.backward()
                if s.gradients():
                    s.update()
            result = s.result
        else:
            result = recorder.train_step(batch)
        found.append(result.incident)
    assert [one is not None for one in found] == [k == 7 for k in range(10)]
    bundle = open_bundle(found[7])
    assert bundle.kind == "alert"
    assert bundle.first_bad.tensor == "update_ratio_factor"
    assert recorder.failures == []


TRIPS = {"nh30_state_reset_to_constants"}
"""Look-alikes whose state the gate after the update is to stop at, though no op computed it."""


@pytest.mark.parametrize("name", sorted({p.stem for p in INCIDENTS.glob("nh*.py")} - TRIPS))
def test_healthy_runs_alarm_nobody(tmp_path, name):
    """Every alert that looks for a run of steps, on every look-alike of a failure."""
    from workbench.diagnose.zoo_step import incident_step, seed_everything

    step = incident_step(INCIDENTS / f"{name}.py")
    seed_everything()
    model, optimizers, scaler, batches = step.build()
    alerts = Alerts(scale_falls=3, repeated_trips=2, consecutive_skips=3, skip_ratio=0.6)
    policy = Policy(on_nonfinite="continue", alerts=alerts)
    recorder = Recorder(step, model, optimizers, scaler, tmp_path, "r", policy)
    for batch in batches:
        recorder.train_step(batch)
    assert [one for record in ledger(tmp_path) for one in record["alerts"]] == []


def test_thresholds_that_always_trip_are_refused():
    for name in ("scale_falls", "repeated_trips", "update_ratio_factor"):
        with pytest.raises(UsageError, match=name):
            Alerts(**{name: 0})


class Pair(TrainingStep):
    """Two optimizers with one scaler; ``s`` of 1e38 makes the gradients of the first overflow."""

    def build_model(self):
        return nn.ModuleDict({"a": nn.Linear(3, 1), "b": nn.Linear(3, 1)})

    def build_optimizer(self, model):
        return [torch.optim.SGD(model[name].parameters(), 1e-3) for name in "ab"]

    def build_scaler(self):
        return torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)

    def forward(self, model, batch):
        return model["a"](batch["x"]), model["b"](batch["x"])

    def loss(self, outputs, batch):
        return outputs[0].mean() * batch["s"] + outputs[1].mean()

    def unscale(self, optimizers, scaler):
        for optimizer in optimizers:
            scaler.unscale_(optimizer)

    def update(self, model, optimizer, scaler):
        scaler.step(optimizer)
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls % 2 == 0:
            scaler.update()


def test_two_optimizers_with_one_scaler_are_counted_separately(tmp_path):
    _, recorder = make(Pair, tmp_path)
    x = torch.ones(2, 3)
    recorder.train_step({"x": x, "s": 1.0})
    first = recorder.train_step({"x": x, "s": 1e38})
    second = recorder.train_step({"x": x, "s": 1e38})
    assert [one.skipped_by for one in first.optimizers] == ["scaler", "none"]
    assert [one.updated for one in second.optimizers] == ["no", "yes"]
    metrics = second.metrics()
    assert metrics["consecutive_skips"] == metrics["consecutive_skips.0"] == 2.0
    assert metrics["consecutive_skips.1"] == metrics["skipped.1"] == metrics["updated.0"] == 0.0
    assert metrics["updated.1"] == metrics["skipped.0"] == 1.0
    record = ledger(tmp_path)[-1]
    assert record["consecutive_skips"] == 2
    assert [one["skipped_by"] for one in record["optimizers"]] == ["scaler", "none"]
    third = recorder.train_step({"x": x, "s": 1.0})
    assert third.metrics()["consecutive_skips"] == 0.0
    assert recorder.failures == []


def test_metrics_have_scale_skips_and_norm(tmp_path):
    step, recorder = make(Half, tmp_path)
    calm = recorder.train_step(step.batch(0)).metrics()
    assert calm["loss_scale"] == 1024.0
    assert calm["grad_norm"] > 0
    assert calm["skipped"] == calm["consecutive_skips"] == 0.0
    skipped = recorder.train_step(step.batch(1, s=1e38)).metrics()
    assert skipped["skipped"] == skipped["consecutive_skips"] == 1.0
    assert all(isinstance(value, float) for value in skipped.values())
    assert importlib.import_module("json").dumps(calm)
