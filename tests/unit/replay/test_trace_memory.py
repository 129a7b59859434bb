"""A traced step holds at most twice the live tensor bytes of the step itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from tests.unit.replay.traced import FunctionStep, trace_of
from workbench.step.runner import StepRunner


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that ops returned and that are still alive."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self._seen[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self._seen = {k: v for k, v in self._seen.items() if not v[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._seen.values()))
        return out


@pytest.fixture(autouse=True)
def _random_numbers_of_its_own() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def loss(out: torch.Tensor, batch: Any) -> torch.Tensor:
    return out.pow(2).mean()


@pytest.mark.parametrize("depth", [4, 24])
def test_live_bytes_of_a_traced_step(depth: int) -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(depth)])
    x = torch.randn(256, 64)
    with LiveBytes() as bare:
        step = FunctionStep(lambda m, b: m(b), loss)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        runner = StepRunner(step, model, [optimizer])
        runner.begin([x])
        while runner.next_unit is not None:
            runner.advance()
    with LiveBytes() as traced:
        trace = trace_of(model, x, optimizer=torch.optim.AdamW(model.parameters(), 1e-3))
    assert len(trace.graph) > depth
    assert 0 < traced.peak <= 2 * bare.peak
