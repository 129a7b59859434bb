"""What a user writes so that one training step can be recorded and replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, runtime_checkable

import torch

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


@runtime_checkable
class ScalerLike(Protocol):
    """The part of ``torch.amp.GradScaler`` that a loss scaler needs to have."""

    def scale(self, outputs: Any, /) -> Any:
        """Multiply the loss by the scale."""

    def unscale_(self, optimizer: Any, /) -> None:
        """Divide the optimizer's gradients by the scale, in place."""

    def step(self, optimizer: Any, /) -> Any:
        """Step the optimizer unless a non-finite gradient was found."""

    def update(self) -> None:
        """Choose the next scale."""


@dataclass(frozen=True)
class Autocast:
    """The autocast region that wraps forward and loss.

    Attributes:
        dtype: ``torch.float16`` or ``torch.bfloat16`` (a name is accepted too).
        device_type: ``"cpu"`` or ``"cuda"``; None takes the type of the model's device.
        enabled: Whether autocast is on.
        cache_enabled: Whether casts of weights are cached within the region.
    """

    dtype: torch.dtype | str = torch.float16
    device_type: str | None = None
    enabled: bool = True
    cache_enabled: bool = True

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch's object."""
        if isinstance(self.dtype, torch.dtype):
            return self.dtype
        return cast("torch.dtype", getattr(torch, self.dtype))


@dataclass(frozen=True)
class Domain:
    """Legal values of one field of the batch.

    Attributes:
        minimum: Smallest legal value, or None for no lower bound.
        maximum: Largest legal value, or None for no upper bound.
        allowed: Values that are legal besides the range (an ignore index, say).
        finite: Whether NaN and Inf are forbidden.
        above_minimum: Whether the minimum itself is illegal, as for what a logarithm or a division
            is taken of.
        length: Shortest and longest legal size of axis 1, a sample's length; None for no bound.
        minimum_valid: Least number of elements that count, in the whole field or, with
            ``valid_in="sample"``, along the last axis of every sample. An element counts unless it
            is one of ``allowed`` (an ignore index) or, without any, zero (a mask, a loss weight).
        valid_in: Where ``minimum_valid`` is counted.
    """

    minimum: float | None = None
    maximum: float | None = None
    allowed: tuple[float, ...] = ()
    finite: bool = True
    above_minimum: bool = False
    length: tuple[int | None, int | None] | None = None
    minimum_valid: int = 0
    valid_in: Literal["field", "sample"] = "field"

    @classmethod
    def tokens(cls, vocabulary: int, ignore: tuple[float, ...] = ()) -> Domain:
        """Indices from 0 to ``vocabulary`` − 1, besides those that are ignored."""
        return cls(0, vocabulary - 1, allowed=ignore)

    @classmethod
    def labels(cls, classes: int, ignore: float = -100) -> Domain:
        """Class numbers, or the ignore index; at least one label of the field counts."""
        return cls(0, classes - 1, allowed=(ignore,), minimum_valid=1)

    @classmethod
    def mask(cls) -> Domain:
        """Zeros and ones, with at least one position of every sample to look at."""
        return cls(0, 1, minimum_valid=1, valid_in="sample")

    @classmethod
    def weights(cls) -> Domain:
        """Loss weights: not negative, finite, and not all zero."""
        return cls(minimum=0.0, minimum_valid=1)

    @classmethod
    def probability(cls) -> Domain:
        """Values from 0 to 1."""
        return cls(0.0, 1.0)

    @classmethod
    def positive(cls) -> Domain:
        """Values above zero: what a logarithm, a division or a power is taken of."""
        return cls(minimum=0.0, above_minimum=True)


class TrainingStep:
    """One training step, written so that recorder and replay can run the same code.

    Subclass it and give at least ``build_model``, ``build_optimizer``, ``forward`` and ``loss``.
    An object that has the same methods without subclassing is accepted as well.

    Attributes:
        autocast: The autocast region around forward and loss, or None.
        phases: Phases run one after the other in one step (GAN, SAM); each is passed as ``phase=``
            to ``forward``, ``loss`` and ``update`` when there is more than one.
        max_grad_norm: Largest total gradient norm, or None for no clipping.
        domains: Legal values of batch fields by name.
        step_index: Number of the running step; set by the runner before the step begins.
    """

    autocast: Autocast | None = None
    phases: Sequence[str] = ("main",)
    max_grad_norm: float | None = None
    domains: Mapping[str, Domain] = {}
    step_index: int = 0

    def build_model(self) -> nn.Module:
        """Build the model; its state is overwritten by the recorded one."""
        raise NotImplementedError

    def build_optimizer(self, model: nn.Module) -> Optimizer | Sequence[Optimizer]:
        """Build the optimizer or optimizers over the model's parameters."""
        raise NotImplementedError

    def build_scaler(self) -> ScalerLike | None:
        """Build the loss scaler, or return None when there is none."""
        return None

    def build_schedulers(self, optimizers: Sequence[Optimizer]) -> Sequence[Any]:
        """Build the learning-rate schedulers; none by default."""
        del optimizers
        return ()

    def forward(self, model: nn.Module, batch: Any) -> Any:
        """Run the model on one micro-batch and return its outputs, any pytree."""
        raise NotImplementedError

    def loss(self, outputs: Any, batch: Any) -> Tensor | Mapping[str, Tensor]:
        """Compute the loss: a scalar tensor, or named components that sum to it."""
        raise NotImplementedError

    def loss_divisor(self, micro_batches: int) -> float:
        """Return what each micro-batch's loss is divided by under gradient accumulation."""
        return float(micro_batches)

    def backward(self, loss: Tensor, scaler: ScalerLike | None) -> None:
        """Run backward on the loss, multiplied by the loss scale when there is a scaler."""
        scaled = loss if scaler is None else scaler.scale(loss)
        scaled.backward()

    def after_backward(self, model: nn.Module) -> None:
        """Stage ``reduce``: combine gradients across replicas; nothing by default."""

    def unscale(self, optimizers: Sequence[Optimizer], scaler: ScalerLike | None) -> None:
        """Stage ``unscale``: divide gradients by the loss scale before they are read or clipped.

        Override with a no-op only for a loop that really does not unscale before it clips.
        """
        if scaler is None:
            return
        for optimizer in optimizers:
            scaler.unscale_(optimizer)

    def clip(self, model: nn.Module, optimizer: Optimizer) -> Tensor | None:
        """Stage ``clip``: clip gradients and return their total norm before clipping, or None."""
        del optimizer
        if self.max_grad_norm is None:
            return None
        return torch.nn.utils.clip_grad_norm_(model.parameters(), self.max_grad_norm)

    def update(self, model: nn.Module, optimizer: Optimizer, scaler: ScalerLike | None) -> None:
        """Stages ``update`` and ``after_update``: step the optimizer, then update the scale."""
        del model
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()

    def log(self, loss: Tensor, outputs: Any, model: nn.Module) -> None:
        """Stage ``logging``: write metrics; nothing by default."""
