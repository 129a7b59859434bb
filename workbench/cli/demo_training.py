"""The demo's training run: a small character model whose hand-written loss fails by itself.

Nothing is planted: no weight and no batch is edited. Under float16 autocast the softmax of a
confident model rounds small probabilities to zero, and the loss takes their logarithm. Float16 is
where softmax runs only on a CPU: CUDA's autocast runs it in float32, where the same loss needs far
larger logits to fail.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from workbench.errors import CannotRunError, NonFiniteError
from workbench.record import Policy, Recorder
from workbench.step import Autocast, TrainingStep

VOCABULARY = 128
"""One class per ASCII character."""

BLOCK = 32
BATCH = 16
TEXT_CHARACTERS = 20_000
MAX_STEPS = 2_000
SEED = 0

# Prose that comes with every Python: the docstrings of these standard library modules.
_MODULES = (
    "difflib", "heapq", "statistics", "textwrap", "argparse", "random", "fractions", "shutil",
    "calendar", "tarfile", "zipfile", "bisect", "configparser", "inspect", "string", "subprocess",
)  # fmt: skip


class Block(nn.Module):
    """Causal self-attention and a feed-forward part, each after a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[batch, time, width]`` to the same shape."""
        batch, time, width = x.shape
        heads = self.qkv(self.attention_norm(x)).view(batch, time, 3, self.heads, -1)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, time, width))
        hidden = functional.gelu(self.up(self.feed_norm(x)))
        out: Tensor = x + self.down(hidden)
        return out


class CharacterModel(nn.Module):
    """A decoder-only transformer over ASCII characters."""

    def __init__(self, width: int = 48, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(BLOCK, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, characters: Tensor) -> Tensor:
        """Map character codes ``[batch, time]`` to logits ``[batch, time, vocabulary]``."""
        positions = torch.arange(characters.shape[1], device=characters.device)
        x = self.embed(characters) + self.position(positions)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class CharacterModelStep(TrainingStep):
    """One training step of the character model, with the loss written by hand and no clipping.

    A batch is ``{"x": int64 [batch, time], "y": float32 one-hot [batch, time, vocabulary]}``.
    """

    autocast = Autocast(torch.float16)

    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    def build_model(self) -> nn.Module:
        """Build the model on the step's device."""
        return CharacterModel().to(self.device)

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Build AdamW with a brisk learning rate."""
        return torch.optim.AdamW(model.parameters(), lr=1e-2)

    def build_scaler(self) -> torch.amp.GradScaler:
        """Build torch's own loss scaler."""
        return torch.amp.GradScaler(self.device)

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Compute the logits."""
        return model(batch["x"])

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        """Compute the cross entropy as it is often written by hand."""
        loss: Tensor = -(batch["y"] * torch.log(torch.softmax(outputs, dim=-1))).sum(-1).mean()
        return loss


@dataclass(frozen=True)
class Trained:
    """What a training run left.

    Attributes:
        bundle: Path of the sealed bundle.
        steps: Number of steps begun, the failing one included.
        skipped: Steps that the loss scaler skipped before it.
        message: The recorder's own text.
    """

    bundle: Path
    steps: int
    skipped: int
    message: str


def train(
    directory: Path,
    device: str = "cpu",
    seed: int = SEED,
    progress: Callable[[int, float], None] | None = None,
) -> Trained:
    """Train under the recorder until the step that goes non-finite.

    Args:
        directory: Where the bundle goes.
        device: ``"cpu"`` or a CUDA device.
        seed: Seed of weights and batches.
        progress: Called with the step and its loss.

    Raises:
        CannotRunError: The run stayed finite, or this Python has no standard library sources.
    """
    torch.manual_seed(seed)
    step = CharacterModelStep(device)
    model = step.build_model()
    optimizer, scaler = step.build_optimizer(model), step.build_scaler()
    recorder = Recorder(
        step,
        model,
        optimizer,
        scaler,
        directory=directory,
        run_id="demo",
        policy=Policy(on_nonfinite="raise"),
        provenance={"dataset_version": f"docstrings of the standard library, seed {seed}"},
    )
    skipped = 0
    for index, batch in enumerate(_batches(seed, device)):
        try:
            result = recorder.train_step(batch)
        except NonFiniteError as error:
            if error.bundle is None:
                raise
            return Trained(Path(error.bundle), index + 1, skipped, str(error))
        skipped += result.skipped_by == "scaler"
        if progress is not None:
            progress(index, float("nan") if result.loss is None else float(result.loss))
    raise CannotRunError(
        f"The demo's training run stayed finite for {MAX_STEPS:,} steps on {device!r}, so there is "
        "no incident to show. Its loss fails where autocast runs softmax in float16, which CUDA's "
        "does not. Run it on the CPU: workbench demo --device cpu"
    )


def _batches(seed: int, device: str) -> Iterator[dict[str, Tensor]]:
    text = torch.tensor(list(training_text().encode("ascii", "replace")))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(MAX_STEPS):
        starts = torch.randint(len(text) - BLOCK - 1, (BATCH, 1), generator=generator)
        windows = text[starts + torch.arange(BLOCK + 1)]
        targets = functional.one_hot(windows[:, 1:], VOCABULARY).float()
        yield {"x": windows[:, :-1].contiguous().to(device), "y": targets.to(device)}


def training_text() -> str:
    """Docstrings of the running Python's standard library, in a fixed order.

    Raises:
        CannotRunError: The standard library's sources are not installed.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    pieces: list[str] = []
    for name in _MODULES:
        path = folder / f"{name}.py"
        if path.is_file():
            pieces += _docstrings(path.read_text(encoding="utf-8"))
        if sum(map(len, pieces)) >= TEXT_CHARACTERS:
            return "\n\n".join(pieces)[:TEXT_CHARACTERS]
    raise CannotRunError(
        f"The demo trains on docstrings of the standard library, and {str(folder)!r} holds too few "
        "of its sources. Install Python with its library's .py files, then run the demo again."
    )


def _docstrings(source: str) -> list[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds))
    return [text for node in nodes if (text := ast.get_docstring(node))]
