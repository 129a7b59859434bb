"""What all integrations share: following a library's loop with the recorder's low-level form."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from workbench.record.low_level import LowLevelStep

if TYPE_CHECKING:
    from torch import Tensor

    from workbench.record import Recorder


class Faults(Protocol):
    """Puts faults into a followed loop; only a drill has one."""

    def during(self, recorder: Recorder) -> AbstractContextManager[Any]:
        """What surrounds the step that begins."""

    def batch(self, recorder: Recorder, batch: Any) -> Any:
        """The micro-batch, possibly spoiled."""


class FollowedLoop:
    """Tells the recorder where a library's loop is.

    A library calls its own methods in its own order; each call that matters is passed on here, and
    the step is closed where the next one begins.

    Args:
        recorder: Makes the recorder, once the library has made what it needs.
        faults: Of a drill; None in training.

    Attributes:
        finished: Whether training is over.
        logger: Called where the library logs; a drill lets it throw.
        logs: Whether the library logged anything.
    """

    def __init__(self, recorder: Callable[[], Recorder], faults: Faults | None = None) -> None:
        self.finished = False
        self.logs = False
        self.logger: Callable[[], None] = lambda: None
        self._make = recorder
        self._faults = faults
        self._recorder: Recorder | None = None
        self._step: LowLevelStep | None = None
        self._micro_step = 0
        self._gated = False
        self._begins = False
        self._around = ExitStack()
        self._updating = ExitStack()

    @property
    def recorder(self) -> Recorder:
        """The recorder; made on first use."""
        if self._recorder is None:
            self._recorder = self._make()
        return self._recorder

    @property
    def started(self) -> bool:
        """Whether a recorder was made."""
        return self._recorder is not None

    @property
    def withheld(self) -> bool:
        """Whether the running step's update is withheld by the policy."""
        return self._step is not None and not self._step.may_update

    def begin(self) -> None:
        """A step begins with the next micro-batch; the one before ends here at the latest.

        What callbacks do to the model in between belongs to no step, so the state is kept only
        once the micro-batch is there.
        """
        self.end()
        self._micro_step = 0
        self._gated = False
        self._begins = True

    def micro_batch(self, batch: Any, autocast: str | None = None) -> Any:
        """The next micro-batch of the step, as the model will see it.

        Args:
            batch: The micro-batch.
            autocast: The dtype of an autocast region that the model's own call cannot show, or
                ``off``; None where it can.

        Returns:
            The micro-batch to go on with: the same one, unless a drill spoils it.

        Raises:
            NonFiniteError: A field is outside its domain and the policy says so.
        """
        if self._begins and self._faults is not None:
            self._around.enter_context(self._faults.during(self.recorder))
        if self._faults is not None:
            batch = self._faults.batch(self.recorder, batch)
        if self._begins:
            self._begins = False
            step = self.recorder.step(batch)
            step.__enter__()
            self._step = step
        if self._step is not None:
            if autocast is not None:
                self._step.autocast_is(autocast)
            self._step.micro_batch(self._micro_step, batch)
            self._micro_step += 1
        return batch

    def loss(self, loss: Tensor) -> None:
        """The loss backward starts from, before the loss scale."""
        if self._step is not None:
            self._step.loss(loss)

    def gradients(self) -> bool:
        """Gradients are complete and unscaled, not clipped; whether to go on to the update."""
        if self._step is None:
            return True
        if not self._gated:
            self._gated = True
            self._step.gradients()
        return self._step.may_update

    def clipped(self, norm: Tensor | float | None, max_norm: float | None) -> bool:
        """Gradients were clipped; whether to go on to the update."""
        return True if self._step is None else self._step.clipped(norm, max_norm)

    def clipped_by_value(self) -> None:
        """Gradients were clipped one by one: there is no norm, and nobody should miss it."""
        if self._step is not None:
            self.recorder.order.remark("never_clips")

    def open_update(self) -> None:
        """Optimizers and scaler are updated from here until ``close_update``."""
        if self._step is not None:
            self._updating.enter_context(self._step.watch_update())

    def close_update(self) -> None:
        """The update is over: it is proved, and passes its gate.

        Raises:
            NonFiniteError: What it wrote is non-finite and the policy says ``raise``.
        """
        updating, self._updating = self._updating, ExitStack()
        updating.close()

    @contextmanager
    def update(self) -> Iterator[None]:
        """The block updates optimizers and scaler."""
        self.open_update()
        yield
        self.close_update()

    def logged(self, values: Mapping[str, Any]) -> None:
        """The library logs these values."""
        self.logs = True
        if self._step is not None:
            self._step.logging(values)
        self.logger()

    def end(self) -> None:
        """The step is over."""
        if self._step is not None:
            with self.failing():  # an update that is still open: not every optimizer was stepped
                self.close_update()
        step, self._step = self._step, None
        try:
            if step is not None:
                step.__exit__(None, None, None)
        finally:
            self._leave()

    def finish(self) -> None:
        """Training is over, in whichever way."""
        self.end()
        self.finished = True
        if self._recorder is not None:
            self._recorder.close()

    @contextmanager
    def failing(self) -> Iterator[None]:
        """An exception that leaves the block ends the step, with its evidence."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """An exception ends the step, with its evidence."""
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(type(error), error, error.__traceback__)
        self._leave()

    def _leave(self) -> None:
        self._updating = ExitStack()
        around, self._around = self._around, ExitStack()
        around.close()


class Wrapped:
    """Methods of a library's objects that were wrapped, so that they can be put back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def wrap(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Any]) -> None:
        """Wrap one method of one object.

        Args:
            owner: The object.
            name: The method's name.
            make: Given the method as it was; returns the new one.
        """
        own = name in vars(owner)
        before = getattr(owner, name)
        # schedulers mark the optimizer's method they know, and warn of one without the mark
        setattr(owner, name, functools.update_wrapper(make(before), before))
        if own:
            self._undo.append(lambda: setattr(owner, name, before))
        else:
            self._undo.append(lambda: delattr(owner, name))

    def also(self, undo: Callable[[], None]) -> None:
        """Do something more when everything is put back."""
        self._undo.append(undo)

    def restore(self) -> None:
        """Put every method back."""
        while self._undo:
            self._undo.pop()()


def unless(held: Callable[[], bool]) -> Callable[[Callable[..., Any]], Any]:
    """Leave a call out while a condition holds.

    A withheld step has no gradients left, and a scaler that has unscaled refuses to do it again.
    """

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return None if held() else original(*args, **kwargs)

        return call

    return around


def inner_optimizer(optimizer: Any) -> Any:
    """The torch optimizer within a library's wrappers."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def tell(lines: list[str]) -> None:
    """Write what is gated and what is not where the user sees it, without touching stdout."""
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()
