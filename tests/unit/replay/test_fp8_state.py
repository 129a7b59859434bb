"""FP8 scales and amax histories live in a module's extra state: recorded, restored, replayed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from workbench.errors import NonFiniteError
from workbench.evidence import find_bundles, open_bundle
from workbench.record import Policy, Recorder
from workbench.replay import Replay
from workbench.step import TrainingStep

FP8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FP8).max


class Fp8Linear(nn.Linear):
    """A linear layer with delayed scaling: inputs are cast with a scale from past maxima."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width)
        self.forget()

    def forget(self) -> None:
        # not plain attributes of the module: only get_extra_state says what is in here
        self._fp8 = Fp8Meta()

    def get_extra_state(self) -> dict[str, Any]:
        meta = self._fp8
        return {"scale": meta.scale, "amax_history": meta.history, "updates": meta.updates}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self._fp8.scale = state["scale"]
        self._fp8.history = state["amax_history"]
        self._fp8.updates = state["updates"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        meta = self._fp8
        cast = (x * meta.scale).clamp(-LARGEST, LARGEST).to(FP8)
        out = super().forward(x + (cast.to(x.dtype) / meta.scale - x).detach())
        meta.take(x.detach())
        return out


class Fp8Meta:
    """Scale and history of one tensor."""

    def __init__(self) -> None:
        self.scale = torch.ones(())
        self.history = torch.zeros(4)
        self.updates = 0

    def take(self, x: torch.Tensor) -> None:
        self.history.copy_(self.history.roll(1))  # in place, as fused kernels do
        self.history[0] = x.abs().amax()
        self.scale = LARGEST / self.history.amax()
        self.updates += 1


class Fp8Step(TrainingStep):
    """Two such layers with an activation between them."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(Fp8Linear(4), nn.Tanh(), Fp8Linear(4))

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), 0.1)

    def forward(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return model(batch["x"])

    def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:
        return (outputs - batch["y"]).square().mean()


def _batches(bad: bool) -> list[dict[str, torch.Tensor]]:
    def random() -> torch.Tensor:
        return torch.randn(3, 4)

    found = [{"x": random() * size, "y": random()} for size in (1.0, 5.0, 0.2)]
    if bad:
        found[-1]["y"][1, 2] = math.nan
    return found


def _recorded(directory: Path, bad: bool) -> tuple[Path, list[dict[str, Any]]]:
    """Train three steps; return the last one's bundle and the extra states it began with."""
    step = Fp8Step()
    before: list[dict[str, Any]] = []
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = step.build_model()
        recorder = Recorder(
            step, model, step.build_optimizer(model), directory=directory, run_id="run",
            policy=Policy(),
        )  # fmt: skip
        batches = _batches(bad)
        for number, batch in enumerate(batches):
            last = number == len(batches) - 1
            if last:
                before = [_copied(layer) for layer in (model[0], model[2])]
            try:
                recorder.train_step(batch, capture="a look" if last and not bad else None)
            except NonFiniteError:
                assert last
    return find_bundles(directory)[0], before


def _copied(layer: Any) -> dict[str, Any]:
    state = layer.get_extra_state()
    return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in state.items()}


@pytest.mark.parametrize("bad", [False, True])
def test_scales_and_histories_travel_and_the_step_replays_bitwise(
    tmp_path: Path, bad: bool
) -> None:
    path, before = _recorded(tmp_path, bad)
    replay = Replay(path, step=Fp8Step)
    replay.input()
    model = replay.session.runner.model
    for layer, was in zip((model[0], model[2]), before, strict=True):
        state = layer.get_extra_state()
        assert torch.equal(state["amax_history"], was["amax_history"])
        assert torch.equal(state["scale"], was["scale"])
        assert state["updates"] == was["updates"] == 2
        assert float(state["scale"]) != 1.0
    assert replay.run().verdict == "bitwise"
    assert replay.verdict().verdict == "bitwise"


def test_without_the_scales_it_is_another_step(tmp_path: Path) -> None:
    class Forgets(Fp8Step):
        def forward(self, model: nn.Module, batch: Any) -> torch.Tensor:
            for layer in (model[0], model[2]):
                layer.forget()
            return super().forward(model, batch)

    path, _ = _recorded(tmp_path, bad=False)
    assert Replay(path, step=Forgets).run().verdict != "bitwise"


def test_extra_state_is_in_the_bundle_as_tensors(tmp_path: Path) -> None:
    path, before = _recorded(tmp_path, bad=True)
    bundle = open_bundle(path)
    text = bundle.text("state/model.json")
    assert "extra_state" in text and "amax_history" in text
    assert all(len(was["amax_history"]) == 4 for was in before)


def test_the_trace_names_the_float8_cast(tmp_path: Path) -> None:
    path, _ = _recorded(tmp_path, bad=False)
    trace = Replay(path, step=Fp8Step).trace()
    casts = [e for e in trace.graph if e.writes and e.writes[0].dtype == "float8_e4m3fn"]
    assert [event.module for event in casts] == ["0", "2"]
    assert all(event.writes[0].stats is not None for event in casts)
