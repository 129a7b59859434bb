"""Following a plain loop by what it calls of Accelerate."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn

from workbench.integrations.describe import PRECISIONS, is_transformers
from workbench.integrations.loop import FollowedLoop, Wrapped, unless
from workbench.record import Recorder
from workbench.step.names import inner_model

_UNTOLD: Final = object()


class AccelerateLoop:
    """Passes on what a loop with accelerate calls.

    Args:
        accelerator: The ``accelerate.Accelerator``.
        model: The prepared model.
        optimizers: The prepared optimizers.
        recorder: Makes the recorder.

    Attributes:
        loop: The followed loop.
    """

    def __init__(
        self,
        accelerator: Any,
        model: nn.Module,
        optimizers: Sequence[Any],
        recorder: Callable[[], Recorder],
    ) -> None:
        self._accelerator = accelerator
        self._model = model
        self._optimizers = optimizers
        self._wrapped = Wrapped()
        self._stepped: set[int] = set()
        self._begin_anew()
        self.loop = FollowedLoop(recorder)

    def _begin_anew(self) -> None:
        """The next forward begins a step."""
        self._fresh = True
        self._forward_seen = False
        self._told: Any = _UNTOLD

    def batch(self, batch: Any) -> None:
        """Say what the next micro-batch is, where the model is not called with all of it.

        Args:
            batch: Any pytree; your own step's ``forward`` and ``loss`` get it in a replay.
        """
        self._told = batch

    def close(self) -> None:
        """The last step is over; the ledger is closed."""
        self.loop.finish()

    def _follow(self) -> None:
        """Wrap what the loop calls."""
        wrap, accelerator = self._wrapped.wrap, self._accelerator
        hook = self._model.register_forward_pre_hook(self._before_forward, with_kwargs=True)
        self._wrapped.also(hook.remove)
        wrap(accelerator, "accumulate", self._around_accumulate)
        wrap(accelerator, "backward", self._around_backward)
        wrap(accelerator, "unscale_gradients", unless(lambda: self.loop.withheld))
        wrap(accelerator, "clip_grad_norm_", self._around_clip)
        wrap(accelerator, "clip_grad_value_", self._around_clip_value)
        wrap(accelerator, "log", self._around_log)
        wrap(accelerator, "end_training", self._around_end)
        for optimizer in self._optimizers:
            wrap(optimizer, "step", self._around_step(optimizer))

    def _before_forward(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if not module.training or not torch.is_grad_enabled() or self._forward_seen:
            return None
        if self._fresh:
            self.loop.begin()
            self._fresh = False
            self._stepped.clear()
        self._forward_seen = True
        told, self._told = self._told, _UNTOLD
        given = self._batch(args, kwargs)
        autocast = precision(self._accelerator)
        with self.loop.failing():
            if told is not _UNTOLD:
                self.loop.micro_batch(told, autocast)
                return None
            seen = self.loop.micro_batch(given, autocast)
        if seen is given:
            return None
        return ((), seen["inputs"]) if "inputs" in seen else (tuple(seen["args"]), seen["kwargs"])

    def _batch(self, args: Any, kwargs: Any) -> dict[str, Any]:
        if not computes_its_loss(self._model):
            return {"args": list(args), "kwargs": dict(kwargs)}
        if args:
            bound = inspect.signature(inner_model(self._model).forward).bind(*args, **kwargs)
            kwargs = bound.arguments
        return {"inputs": dict(kwargs), "num_items_in_batch": None}

    def _around_accumulate(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def accumulate(*models: Any) -> Iterator[None]:
            with self.loop.failing(), original(*models):
                yield

        return accumulate

    def _around_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
            self._forward_seen = False
            with self.loop.failing():
                steps = self._accelerator.gradient_accumulation_steps
                self.loop.loss(loss if steps == 1 else loss.detach() / steps)
                return original(loss, *args, **kwargs)

        return backward

    def _around_clip(self, original: Callable[..., Any]) -> Callable[..., Any]:
        accelerator = self._accelerator

        def clip_grad_norm_(
            parameters: Any, max_norm: float, norm_type: float = 2, **kwargs: Any
        ) -> Any:
            if not accelerator.sync_gradients:
                return original(parameters, max_norm, norm_type, **kwargs)
            with self.loop.failing():
                accelerator.unscale_gradients()
                if not self.loop.gradients():
                    return torch.tensor(float("nan"))
                norm = without_unscaling(
                    accelerator, lambda: original(parameters, max_norm, norm_type, **kwargs)
                )
                self.loop.clipped(norm, max_norm)
                return norm

        return clip_grad_norm_

    def _around_clip_value(self, original: Callable[..., Any]) -> Callable[..., Any]:
        accelerator = self._accelerator

        def clip_grad_value_(*args: Any, **kwargs: Any) -> Any:
            if not accelerator.sync_gradients:
                return original(*args, **kwargs)
            with self.loop.failing():
                accelerator.unscale_gradients()
                self.loop.clipped_by_value()
                if self.loop.gradients():
                    without_unscaling(accelerator, lambda: original(*args, **kwargs))
            return None

        return clip_grad_value_

    def _around_step(self, optimizer: Any) -> Callable[[Callable[..., Any]], Any]:
        def around(original: Callable[..., Any]) -> Callable[..., Any]:
            def step(*args: Any, **kwargs: Any) -> Any:
                if not self._accelerator.sync_gradients:
                    return original(*args, **kwargs)
                with self.loop.failing():
                    go_on = self.loop.gradients()
                    if go_on and not self._stepped:
                        self.loop.open_update()
                    # read by prepared schedulers; without a scaler nobody else takes it back
                    optimizer._is_overflow = not go_on
                    result = original(*args, **kwargs) if go_on else None
                    self._stepped.add(id(optimizer))
                    if len(self._stepped) == len(self._optimizers):
                        self.loop.close_update()
                        self._fresh = True
                return result

            return step

        return around

    def _around_log(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def log(values: Any, *args: Any, **kwargs: Any) -> Any:
            with self.loop.failing():
                self.loop.logged(values)
                return original(values, *args, **kwargs)

        return log

    def _around_end(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def end_training(*args: Any, **kwargs: Any) -> Any:
            self.close()
            return original(*args, **kwargs)

        return end_training


def precision(accelerator: Any) -> str:
    """The dtype of the autocast region that accelerate puts around a model's forward, or off."""
    return PRECISIONS.get(accelerator.mixed_precision, "off")


def without_unscaling(accelerator: Any, work: Callable[[], Any]) -> Any:
    """Run the library's clipping on gradients that are unscaled already: twice would raise."""
    wrapped = Wrapped()
    wrapped.wrap(accelerator, "unscale_gradients", lambda _: lambda *args, **kwargs: None)
    try:
        return work()
    finally:
        wrapped.restore()


def computes_its_loss(model: nn.Module) -> bool:
    """Whether the model is one of transformers, which compute their own loss."""
    inner: Any = inner_model(model)
    return is_transformers(inner.get_base_model() if hasattr(inner, "peft_config") else inner)
