"""An incident file as a training step, and its batches as an ordinary training loop.

The file's label constants are never read: only its functions, ``AUTOCAST`` and ``CLIP`` are.
"""

from __future__ import annotations

import ast
import importlib.util
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from workbench.errors import UsageError
from workbench.step.protocol import Autocast, TrainingStep

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from workbench.step.protocol import ScalerLike

SEED = 0
_NEEDED = ("build", "forward", "loss")


def load_incident(path: Path) -> ModuleType:
    """Execute an incident file as a module of its own.

    Raises:
        UsageError: It cannot be executed, or lacks ``build``, ``forward`` or ``loss``.
    """
    spec = importlib.util.spec_from_file_location(f"incident_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(
            f"The incident file '{path}' is not a Python file, so it was not run. "
            "Give a folder of .py files, each with build, forward and loss."
        )
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(
            f"The incident file '{path}' could not be executed: {type(error).__name__}: {error}. "
            "It must define build(), forward(model, batch) and loss(outputs, batch)."
        ) from error
    return module


def why_not_runnable(path: Path) -> str | None:
    """Say why a file is no training loop, or return None when it is one; nothing is executed."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError):
        return None  # running it will say what is wrong
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    if names.issuperset(_NEEDED) or "*" in names:
        return None
    if "STANDALONE" in names:
        return "runs itself: it is no training loop"
    return "defines no build, forward and loss: it is no incident"


class IncidentStep(TrainingStep):
    """The training step an incident file describes.

    Args:
        path: The incident file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.module = load_incident(path)
        missing = [name for name in _NEEDED if not hasattr(self.module, name)]
        if missing:
            raise UsageError(
                f"The incident file '{path}' has no {', '.join(missing)}, so it is no training "
                "loop. It must define build(), forward(model, batch) and loss(outputs, batch)."
            )
        autocast = getattr(self.module, "AUTOCAST", None)
        if autocast is not None:
            self.autocast = Autocast(device_type="cpu", **autocast)
        self._clip: dict[str, Any] = dict(getattr(self.module, "CLIP", None) or {})
        self.max_grad_norm = self._clip.get("max_norm")
        self._built: tuple[Any, Any, Any, Any] | None = None

    def build(self) -> tuple[nn.Module, list[Optimizer], ScalerLike | None, Sequence[Any]]:
        """Build everything anew from a fixed seed, as the file's own ``build`` does."""
        seed_everything()
        model, optimizer, scaler, batches = self.module.build()
        optimizers = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
        self._built = (model, optimizers, scaler, batches)
        return model, optimizers, scaler, batches

    def build_model(self) -> nn.Module:
        """Build the model; optimizer and scaler of the same call are handed out later."""
        return self.build()[0]

    def build_optimizer(self, model: nn.Module) -> Optimizer | Sequence[Optimizer]:
        """Return the optimizers that were built with the model."""
        if self._built is None or self._built[0] is not model:
            self.build()
        assert self._built is not None  # noqa: S101 - build() has just set it
        optimizers: Sequence[Optimizer] = self._built[1]
        return optimizers

    def build_scaler(self) -> ScalerLike | None:
        """Return the scaler that was built with the model."""
        scaler: ScalerLike | None = (self._built or self.build())[2]
        return scaler

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Run the file's forward."""
        return self.module.forward(model, batch)

    def loss(self, outputs: Any, batch: Any) -> Any:
        """Run the file's loss."""
        return self.module.loss(outputs, batch)

    def unscale(self, optimizers: Sequence[Optimizer], scaler: ScalerLike | None) -> None:
        """Unscale unless ``CLIP`` says that the loop does not, or ``STEP`` does it all itself."""
        own = self._hook("STEP") is not None or not self._clip.get("unscale", True)
        if not own:
            super().unscale(optimizers, scaler)

    def update(self, model: nn.Module, optimizer: Optimizer, scaler: ScalerLike | None) -> None:
        """Run the file's own ``STEP`` where there is one."""
        own = self._hook("STEP")
        if own is not None:
            own(self.step_index, model, optimizer, scaler)
        else:
            super().update(model, optimizer, scaler)

    def log(self, loss: Tensor, outputs: Any, model: nn.Module) -> None:
        """Run the file's own ``LOG`` where there is one."""
        del outputs
        own = self._hook("LOG")
        if own is not None:
            own(self.step_index, loss, model)

    def before_step(self, model: nn.Module, optimizer: Any, scaler: Any) -> None:
        """The loop's own code before a step."""
        self._between("PRE_STEP", model, optimizer, scaler)

    def after_step(self, model: nn.Module, optimizer: Any, scaler: Any) -> None:
        """The loop's own code after a step."""
        self._between("POST_STEP", model, optimizer, scaler)

    def _between(self, name: str, model: nn.Module, optimizer: Any, scaler: Any) -> None:
        own = self._hook(name)
        if own is not None:
            own(self.step_index, model, optimizer, scaler)

    def _hook(self, name: str) -> Callable[..., Any] | None:
        hook = getattr(self.module, name, None)
        return hook if callable(hook) else None


class ReducingIncidentStep(IncidentStep):
    """An incident whose loop combines gradients between backward and update."""

    def after_backward(self, model: nn.Module) -> None:
        """Run the file's ``POST_BACKWARD``."""
        self.module.POST_BACKWARD(self.step_index, model)


def incident_step(path: Path) -> IncidentStep:
    """Make the training step of an incident file; it has a ``reduce`` only where the file has."""
    step = IncidentStep(path)
    if callable(getattr(step.module, "POST_BACKWARD", None)):
        return ReducingIncidentStep(path)
    return step


def seed_everything() -> None:
    """Seed Python, numpy and torch: an incident that seeds nothing is the same each time."""
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
