"""The training step of a LightningModule: what a replay needs of the user is the module's class.

It is subclassed in the user's own file, so that a replay imports that file, with the trust that
takes, and nothing a bundle names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from workbench.errors import CannotRunError, UsageError
from workbench.step import Autocast, TrainingStep


class LightningStep(TrainingStep):
    """One step of a LightningModule under automatic optimization, without its trainer.

    ::

        class Step(LightningStep):
            module = Net

    A batch is ``{"batch": what training_step is given, "batch_idx": number}``. The module is built
    from the values ``save_hyperparameters()`` kept, where they are plain; override ``build_model``
    where they are not, and ``build_optimizer`` where ``configure_optimizers`` asks the trainer.

    Attributes:
        module: The LightningModule's class.
        hyperparameters: What it is called with; taken from the run.
        precision: The autocast dtype, or ``off``.
        scale: The loss scale at the start of the run, None without a scaler.
        accumulate: What the loss of a micro-batch is divided by.
        clip_value: Largest value of a gradient's element, None without such clipping.
    """

    module: ClassVar[Any] = None

    def __init__(self) -> None:
        self.hyperparameters: dict[str, Any] = {}
        self.precision = "off"
        self.scale: float | None = None
        self.accumulate = 1
        self.clip_value: float | None = None
        self.max_grad_norm: float | None = None

    def take_recorded(self, attributes: Mapping[str, Any]) -> None:
        """Take what the run was made with.

        Args:
            attributes: By name.
        """
        self.hyperparameters = dict(attributes.get("hyperparameters") or {})
        self.precision = str(attributes.get("precision") or "off")
        self.scale = attributes.get("scale")
        self.accumulate = int(attributes.get("accumulate") or 1)
        self.clip_value = attributes.get("clip_value")
        self.max_grad_norm = attributes.get("max_grad_norm")
        self.autocast = None
        if self.precision != "off":
            self.autocast = Autocast(self.precision, cache_enabled=False)

    def build_model(self) -> nn.Module:
        """Build the module from its hyperparameters.

        Raises:
            UsageError: The subclass does not name its module.
            CannotRunError: The module cannot be built from the hyperparameters that were kept.
        """
        if self.module is None:
            raise UsageError(
                f"The step {type(self).__name__!r} does not say which LightningModule it is of, so "
                "none can be built. Set 'module = YourModule' in it, or override build_model."
            )
        try:
            model: nn.Module = self.module(**self.hyperparameters)
        except TypeError as error:
            raise CannotRunError(
                f"The module {self.module.__name__!r} cannot be built with the hyperparameters "
                f"{sorted(self.hyperparameters)} ({error}). Call self.save_hyperparameters() in "
                "it, with plain values, or override build_model in your step."
            ) from error
        return model.train()

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer that the module configures.

        Raises:
            UsageError: It configures none, or several.
        """
        found: Any = model.configure_optimizers()  # type: ignore[operator]
        while not isinstance(found, torch.optim.Optimizer):
            if isinstance(found, Mapping) and "optimizer" in found:
                found = found["optimizer"]
            elif isinstance(found, Sequence) and len(found) > 0:
                found = found[0]
            else:
                raise UsageError(
                    f"configure_optimizers gave {type(found).__name__!r}, in which there is no "
                    "optimizer. Override build_optimizer in your step."
                )
        return found

    def build_scaler(self) -> Any:
        """The loss scaler, if the run had one."""
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return None if self.scale is None else torch.amp.GradScaler(device, init_scale=self.scale)

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Run ``training_step``, as the trainer does."""
        import inspect

        step: Any = model.training_step
        given = {"batch_idx": batch["batch_idx"]}
        known = inspect.signature(step).parameters
        return step(batch["batch"], **{k: v for k, v in given.items() if k in known})

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        """What ``training_step`` returned, divided as the trainer divides it."""
        del batch
        loss: Tensor = outputs["loss"] if isinstance(outputs, Mapping) else outputs
        return loss / self.accumulate

    def loss_divisor(self, micro_batches: int) -> float:
        """The loss is divided already."""
        del micro_batches
        return 1.0

    def clip(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor | None:
        """Clip the parameters of the optimizer, as the trainer does, by norm or by value."""
        del model
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if self.clip_value is not None:
            torch.nn.utils.clip_grad_value_(parameters, self.clip_value)
        if self.max_grad_norm is None:
            return None
        return torch.nn.utils.clip_grad_norm_(parameters, self.max_grad_norm)
