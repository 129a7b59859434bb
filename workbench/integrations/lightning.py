"""Lightning's Trainer: ``workbench.integrations.lightning.attach(trainer)``, before ``fit``.

Callbacks see neither the batch on its way nor the loss before backward, so the trainer's parts are
wrapped: the strategy's ``training_step`` (a micro-batch begins) and ``backward`` (the loss), the
precision plugin's ``_after_closure`` (gradients after unscaling, before clipping),
``clip_grad_by_norm`` and ``optimizer_step`` (the update), the logger connector's ``log_metrics``,
``save_checkpoint``, and what resolves ``ckpt_path``.

What cannot be seen through this library: loss components (``training_step`` sums them), the clip
norm where ``configure_gradient_clipping`` is the user's own, evaluations of the loss after the
first one by LBFGS, and the steps of manual optimization: those are not gated, and ``fit`` says so.
A scheduler is stepped by Lightning on a skipped step too; the ledger remarks on it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from workbench.errors import CannotRunError, UsageError
from workbench.integrations.drilling import drill_loop, preserved
from workbench.integrations.lightning_step import LightningStep
from workbench.integrations.lightning_trainer import (
    base_precision,
    clips_itself,
    facts_of_step,
    left_alone,
    refuse_unknown,
    short_trainer,
)
from workbench.integrations.loop import FollowedLoop, Wrapped, tell, unless
from workbench.integrations.resuming import latest_committed, refuse_unless_committed
from workbench.record import Policy, Recorder
from workbench.record.drill import Drill

GATED: Final = (
    "loss, gradients after unscaling and before clipping, clip norm, parameters and state after the"
    " update"
)
NEEDS_STEP: Final = (
    "workbench: a replay needs your module's class, in a file of yours: 'class "
    "Step(LightningStep): module = YourModule'; then attach(trainer, step=Step()) or --step"
)
_PRECISIONS: Final = {"bf16-mixed": "bfloat16", "16-mixed": "float16"}


class Attachment:
    """The recorder of a Lightning trainer.

    Args:
        trainer: The ``lightning.Trainer``.
        module: The LightningModule, where it is known already; what is said is then more exact.
        directory: Where bundles and the ledger go.
        policy: The recorder's policy.
        run_id: Name of the run.
        step: Your own training step, best a ``LightningStep`` that names your module's class.
        checkpoints: Whether saved checkpoints are kept track of, and resuming refuses those that
            are not committed.
        loop: The loop to pass on to; only a drill gives one.

    Attributes:
        not_gated: What is not seen, in sentences.
    """

    def __init__(
        self,
        trainer: Any,
        module: Any = None,
        directory: str | Path = "incidents",
        policy: Policy | None = None,
        run_id: str | None = None,
        step: Any = None,
        checkpoints: bool = True,
        loop: FollowedLoop | None = None,
    ) -> None:
        refuse_unknown(trainer)
        self._trainer = trainer
        self._module = module
        self._directory = directory
        self._policy = policy
        self._run_id = run_id
        self._own_step = step
        self._keeps_track = checkpoints
        self._wrapped = Wrapped()
        self._fresh = True
        self._held = False
        self._saved: list[Path] = []
        self._drilled = loop is not None
        self.loop = loop or FollowedLoop(self._make_recorder)
        self.not_gated = self._not_gated()
        self._attach()

    @property
    def recorder(self) -> Recorder:
        """The recorder; there is one once training has begun."""
        if not self.loop.started:
            raise CannotRunError(
                "The trainer has not begun to train, so there is no recorder yet. Call "
                "trainer.fit() first."
            )
        return self.loop.recorder

    def detach(self) -> None:
        """Give the trainer its own methods back."""
        self._wrapped.restore()

    # -- wrapping ---------------------------------------------------------------------------------

    def _attach(self) -> None:
        trainer, wrap = self._trainer, self._wrapped.wrap
        precision = trainer.precision_plugin
        wrap(trainer, "fit", self._around_fit)
        wrap(trainer.strategy, "training_step", self._around_training_step)
        wrap(trainer.strategy, "backward", self._around_backward)
        wrap(precision, "_after_closure", self._around_after_closure)
        wrap(precision, "clip_grad_by_norm", self._around_clip)
        wrap(precision, "clip_grad_by_value", self._around_clip_value)
        wrap(precision, "optimizer_step", self._around_optimizer_step)
        wrap(trainer._logger_connector, "log_metrics", self._around_log)
        wrap(trainer.fit_loop.epoch_loop.val_loop, "run", self._around_validation)
        scaler = getattr(precision, "scaler", None)
        if scaler is not None:
            wrap(scaler, "unscale_", unless(lambda: self.loop.withheld))
            # a withheld step has updated the scale already, by the time the library would
            wrap(scaler, "step", unless(lambda: self._held))
            wrap(scaler, "update", unless(lambda: self._held))
        if self._keeps_track:
            wrap(trainer, "save_checkpoint", self._around_save)
            wrap(trainer._checkpoint_connector, "_select_ckpt_path", self._around_select)
        if not self._drilled:
            tell(self.description())

    def description(self) -> list[str]:
        """What is gated and what is not, in lines."""
        found = [f"workbench: recording to {str(self._directory)!r}. Gated: {GATED}."]
        found += [f"workbench: not seen: {one}" for one in self.not_gated]
        return found if self._own_step is not None else [*found, NEEDS_STEP]

    def _not_gated(self) -> list[str]:
        found = ["loss components, since training_step sums them itself"]
        module = self._module
        if module is not None and not module.automatic_optimization:
            found.append(_MANUAL)
        if module is not None and clips_itself(module):
            found.append("the clip norm, since configure_gradient_clipping is your own")
        return found

    def _around_fit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def fit(model: Any, *args: Any, **kwargs: Any) -> Any:
            if self.loop.finished:  # fitted before: the optimizers are new ones
                self.loop = FollowedLoop(self._make_recorder)
            self._module, self._fresh = model, True
            if not getattr(model, "automatic_optimization", True):
                tell([f"workbench: not seen: {_MANUAL}"])
            try:
                with self.loop.failing():
                    return original(model, *args, **kwargs)
            finally:
                self.loop.finish()
                self._note_saved()

        return fit

    def _around_training_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def training_step(batch: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._trainer.lightning_module.automatic_optimization:
                return original(batch, *args, **kwargs)
            with self.loop.failing():
                if self._fresh:
                    self.loop.begin()
                    self._note_saved()
                    self._fresh = False
                index = args[0] if args else kwargs.get("batch_idx", 0)
                seen = self.loop.micro_batch({"batch": batch, "batch_idx": index}, self._autocast)
                return original(seen["batch"], *args, **kwargs)

        return training_step

    @property
    def _autocast(self) -> str:
        return _PRECISIONS.get(str(self._trainer.precision_plugin.precision), "off")

    def _around_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(closure_loss: Any, *args: Any, **kwargs: Any) -> Any:
            with self.loop.failing():
                self.loop.loss(closure_loss)
                return original(closure_loss, *args, **kwargs)

        return backward

    def _around_after_closure(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def after_closure(*args: Any, **kwargs: Any) -> Any:
            with self.loop.failing():
                if self.loop.gradients():
                    original(*args, **kwargs)  # hooks of the user's, then clipping
                self._held = self.loop.withheld
                if not self._held:
                    self.loop.open_update()

        return after_closure

    def _around_clip(self, original: Callable[..., Any]) -> Callable[..., Any]:
        precision = self._trainer.precision_plugin
        plain_clip = type(precision).clip_grad_by_norm is base_precision().clip_grad_by_norm

        def clip_grad_by_norm(optimizer: Any, clip_val: Any, *args: Any, **kwargs: Any) -> None:
            norm = None
            if plain_clip:  # what the library does, which throws the norm away
                parameters = precision.main_params(optimizer)
                norm = torch.nn.utils.clip_grad_norm_(parameters, clip_val)
            else:
                original(optimizer, clip_val, *args, **kwargs)
            self.loop.clipped(norm, clip_val)

        return clip_grad_by_norm

    def _around_clip_value(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def clip_grad_by_value(*args: Any, **kwargs: Any) -> None:
            self.loop.clipped_by_value()
            original(*args, **kwargs)

        return clip_grad_by_value

    def _around_optimizer_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def optimizer_step(*args: Any, **kwargs: Any) -> Any:
            with self.loop.failing():
                # where the update is withheld there are no gradients left, so it changes nothing
                try:
                    result = original(*args, **kwargs)
                finally:
                    self._held = False
                self.loop.close_update()
                self._fresh = True
            return result

        return optimizer_step

    def _around_log(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def log_metrics(metrics: Any, *args: Any, **kwargs: Any) -> Any:
            with self.loop.failing():
                self.loop.logged(metrics or {})
                return original(metrics, *args, **kwargs)

        return log_metrics

    def _around_validation(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self.loop.end()  # it belongs to no step
            return original(*args, **kwargs)

        return run

    # -- checkpoints ------------------------------------------------------------------------------

    def _around_save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def save_checkpoint(filepath: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(filepath, *args, **kwargs)
            self._saved.append(Path(filepath))  # told once the step that is still open is over
            return result

        return save_checkpoint

    def _note_saved(self) -> None:
        saved, self._saved = self._saved, []
        directory = self._checkpoints
        for path in saved:
            if self.loop.started and directory is not None and path.parent == directory:
                self.recorder.checkpoint_saved(path)

    @property
    def _checkpoints(self) -> Path | None:
        callback = self._trainer.checkpoint_callback
        known = self._keeps_track and getattr(callback, "dirpath", None)
        return Path(callback.dirpath) if known else None

    def _around_select(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def select(state_fn: Any, ckpt_path: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(state_fn, ckpt_path, *args, **kwargs)
            if not found or getattr(state_fn, "value", "") != "fit":
                return found
            if ckpt_path == "last":
                return str(latest_committed(Path(found).parent))
            return str(refuse_unless_committed(found))

        return select

    # -- the recorder -----------------------------------------------------------------------------

    def _make_recorder(self) -> Recorder:
        return self.make(self._directory, self._policy, self._run_id, self._checkpoints)

    def make(
        self,
        directory: str | Path,
        policy: Policy | None,
        run_id: str | None = None,
        checkpoints: Path | None = None,
    ) -> Recorder:
        """Make a recorder of what the trainer trains."""
        trainer = self._trainer
        return Recorder(
            self._step_of_run(),
            trainer.lightning_module,
            trainer.optimizers,
            getattr(trainer.precision_plugin, "scaler", None),
            directory,
            run_id,
            policy,
            schedulers=[config.scheduler for config in trainer.lr_scheduler_configs],
            first_step=trainer.global_step,
            checkpoints=checkpoints,
        )

    def _step_of_run(self) -> Any:
        if isinstance(self._own_step, LightningStep):
            self._own_step.take_recorded(facts_of_step(self._trainer, self._autocast))
        return self._own_step

    # -- the drill --------------------------------------------------------------------------------

    def drill(self, steps: int = 3, module: Any = None, **data: Any) -> Drill:
        """Fit a few steps with each fault in turn, and tell which boundary catches it.

        A second trainer on one device with the same precision, clipping and accumulation does it;
        yours is left alone, and so are its callbacks and loggers. Module and random numbers are put
        back afterwards. Parameters are held twice meanwhile.

        Args:
            steps: Steps of each training, at least 3.
            module: The LightningModule; None takes the one given to ``attach``, or fitted last.
            **data: ``train_dataloaders`` or ``datamodule``, as for ``fit``.

        Raises:
            UsageError: Fewer than three steps, or no module.
        """
        module = module or self._module
        if module is None:
            raise UsageError(
                "drill() does not know which module to train. Give it: drill(module=..., "
                "train_dataloaders=...), or attach(trainer, module)."
            )
        current: list[Attachment] = []

        def make(folder: Path, policy: Policy) -> Recorder:
            return current[-1].make(folder, policy)

        def run(loop: FollowedLoop) -> None:
            with left_alone(module), preserved(module):
                trainer = short_trainer(self._trainer, steps)
                one = Attachment(
                    trainer, module, step=copy.copy(self._own_step), checkpoints=False, loop=loop
                )
                current.append(one)
                trainer.fit(module, **data)

        return drill_loop(run, make, steps)


_MANUAL: Final = (
    "the steps of manual optimization, which call optimizers and backward in an order of their own:"
    " nothing of them is gated; use workbench.Recorder in training_step"
)


def attach(
    trainer: Any,
    module: Any = None,
    directory: str | Path = "incidents",
    policy: Policy | None = None,
    run_id: str | None = None,
    step: Any = None,
    checkpoints: bool = True,
) -> Attachment:
    """Record the training of a ``lightning.Trainer``; call it before ``trainer.fit()``.

    Args:
        trainer: The trainer.
        module: The LightningModule, where it is known already.
        directory: Where bundles and the ledger go.
        policy: The recorder's policy.
        run_id: Name of the run.
        step: Your own training step, best a ``LightningStep`` that names your module's class.
        checkpoints: Keep track of saved checkpoints; resume from committed ones only.

    Raises:
        UsageError: Not a trainer this integration knows.
    """
    return Attachment(trainer, module, directory, policy, run_id, step, checkpoints)
