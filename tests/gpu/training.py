"""Training steps and loops of the device checks; every one runs on ``cuda`` and on ``cpu``."""

import json
import os
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from workbench import Autocast, NonFiniteError, Policy, Recorder, TrainingStep

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
ASSERT_ONCE = "WORKBENCH_TEST_ASSERT_ONCE"
"""Names a file; while it is missing, `AssertsOnce` makes it and reads outside its classes."""


class Mixed(TrainingStep):
    """float16 autocast, a loss scaler, clipping, dropout, BatchNorm."""

    device = "cuda"
    autocast = Autocast(torch.float16)
    max_grad_norm = 1.0

    def build_model(self):
        return nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3),
            nn.Flatten(), nn.Linear(8 * 36, 4),
        )  # fmt: skip

    def build_optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), 1e-3)

    def build_scaler(self):
        return torch.amp.GradScaler(self.device, init_scale=2.0**10)

    def forward(self, model, batch):
        return model(batch["x"]) * batch["gain"]

    def loss(self, outputs, batch):
        return nn.functional.cross_entropy(outputs, batch["y"]) * batch["weight"]


class MixedOnCpu(Mixed):
    device = "cpu"


class Fused(Mixed):
    def build_optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), 1e-3, fused=True)


class FusedOnCpu(Fused):
    device = "cpu"


class Asserts(Mixed):
    """Labels outside the classes: a device-side assert on CUDA."""

    def loss(self, outputs, batch):
        return super().loss(outputs, batch | {"y": batch["y"] + 100})


class AssertsOnce(Asserts):
    def loss(self, outputs, batch):
        marker = Path(os.environ[ASSERT_ONCE])
        if marker.exists():
            return Mixed.loss(self, outputs, batch)
        marker.touch()
        return Asserts.loss(self, outputs, batch)


class AssertsOnceOnCpu(AssertsOnce):
    device = "cpu"


class Deep(Mixed):
    """As many layers as ``depth`` says: host reads may not grow with it."""

    depth = 2

    def build_model(self):
        layers: list[nn.Module] = []
        for _ in range(self.depth):
            layers += [nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU()]
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), *layers, nn.Linear(16, 4))


class Deeper(Deep):
    depth = 8


class Compiled(TrainingStep):
    """A model that `torch.compile` compiles."""

    backend = "aot_eager"
    options: ClassVar[dict[str, Any]] = {}

    def network(self):
        return nn.Sequential(
            nn.Flatten(), nn.Linear(192, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.2),
            nn.Linear(32, 4),
        )  # fmt: skip

    def build_model(self):
        return torch.compile(self.network(), backend=self.backend, **self.options)

    def build_optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), 1e-3)

    def forward(self, model, batch):
        return model(batch["x"]) * batch["gain"]

    def loss(self, outputs, batch):
        return nn.functional.cross_entropy(outputs, batch["y"]) * batch["weight"]


class Inductor(Compiled):
    backend = "inductor"


class ReducedOverhead(Inductor):
    """Inductor inside CUDA graphs."""

    options: ClassVar[dict[str, Any]] = {"mode": "reduce-overhead"}


class LazyGraph(nn.Module):
    """Captures its network as a CUDA graph at the first forward, when its weights are in place."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(192, 32), nn.GELU(), nn.Linear(32, 4))

    def forward(self, x):
        x = x.flatten(1)
        if "forward" not in vars(self.net):
            torch.cuda.make_graphed_callables(self.net, (x.clone(),))
        return self.net(x)


class Graphed(Compiled):
    def build_model(self):
        return LazyGraph()


def reference(step: type) -> str:
    """How a process of its own finds a step of this file."""
    return f"{HERE}:{step.__name__}"


def batch(device: str, seed: int = 0, gain: float = 1.0, weight: float = 1.0) -> dict[str, Any]:
    """A batch; a large ``gain`` overflows float16, a large ``weight`` the scaled gradients."""
    g = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randn(24, 3, 8, 8, generator=g).to(device),
        "y": torch.randint(0, 4, (24,), generator=g).to(device),
        "gain": gain,
        "weight": weight,
    }


def calm(device: str, steps: int) -> list[dict[str, Any]]:
    """Batches of an ordinary run."""
    return [batch(device, seed) for seed in range(steps)]


@dataclass
class Built:
    """What a loop trains."""

    step: TrainingStep
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: Any


def build(step: TrainingStep, device: str) -> Built:
    """Build model, optimizer and scaler from one seed."""
    torch.manual_seed(0)
    model = step.build_model().to(device)
    return Built(step, model, step.build_optimizer(model), step.build_scaler())


def recorder_for(built: Built, directory: Path, **policy: Any) -> Recorder:
    """A recorder over what was built."""
    return Recorder(
        built.step, built.model, built.optimizer, scaler=built.scaler, directory=directory,
        run_id="run", policy=Policy(**policy),
    )  # fmt: skip


def record(step: TrainingStep, device: str, directory: Path, batches: list[Any]) -> Path:
    """Train over batches under a recorder; the bundle of the last one."""
    recorder = recorder_for(build(step, device), directory)
    for number, one in enumerate(batches):
        last = number == len(batches) - 1
        try:
            recorder.train_step(one, capture="device check" if last else None)
        except NonFiniteError:
            break
    recorder.close()
    assert recorder.failures == []
    assert len(recorder.bundles) == 1
    return recorder.bundles[0]


def bare_step(built: Built, one: dict[str, Any]) -> float:
    """The same step as a loop without a recorder runs it, with its loss read once."""
    step, model, scaler = built.step, built.model, built.scaler
    built.optimizer.zero_grad(set_to_none=True)
    kind = next(model.parameters()).device.type
    wanted = step.autocast
    dtype = None if wanted is None else wanted.torch_dtype
    with torch.autocast(kind, dtype=dtype, enabled=wanted is not None):
        loss = step.loss(step.forward(model, one), one)
    if scaler is None:
        loss.backward()
        built.optimizer.step()
        return loss.item()
    scaler.scale(loss).backward()
    scaler.unscale_(built.optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), step.max_grad_norm)
    scaler.step(built.optimizer)
    scaler.update()
    return loss.item()


def parameters(model: nn.Module) -> list[torch.Tensor]:
    """Copies of parameters and buffers on the CPU."""
    return [t.detach().cpu().clone() for t in (*model.parameters(), *model.buffers())]


def same_bits(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    """Whether two lists of finite tensors are equal."""
    return len(left) == len(right) and all(map(torch.equal, left, right))


def host_reads(run: Any) -> int:
    """Times that the host waited for the device in a call, as torch's sync debug mode counts."""
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(one.message) for one in seen)


def ops_of(run: Any) -> set[str]:
    """Names of the aten ops that a call runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    return {event.key for event in profile.key_averages()}


def verdict_without_gpu(bundle: Path, step: type) -> dict[str, Any]:
    """The verdict that a machine without a CUDA GPU gives, from a process that sees none."""
    paths = [str(ROOT), *(entry for entry in sys.path if entry)]
    done = subprocess.run(
        [sys.executable, str(HERE.parent / "elsewhere.py"), str(bundle), reference(step)],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])
