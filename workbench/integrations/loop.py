"""What all integrations share: following a library's loop with the recorder's low-level form."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from workbench.record.low_level import LowLevelStep

if TYPE_CHECKING:
    from torch import Tensor

    from workbench.record import Recorder


class FollowedLoop:
    """Tells the recorder where a library's loop is.

    A library calls its own methods in its own order; each call that matters is passed on here, and
    the step is closed where the next one begins.

    Args:
        recorder: Makes the recorder, once the library has made what it needs.
    """

    def __init__(self, recorder: Callable[[], Recorder]) -> None:
        self._make = recorder
        self._recorder: Recorder | None = None
        self._step: LowLevelStep | None = None
        self._micro_step = 0
        self._gated = False
        self._begins = False

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

    def micro_batch(self, batch: Any) -> None:
        """The next micro-batch of the step, as the model will see it."""
        if self._begins:
            self._begins = False
            self._step = self.recorder.step()
            self._step.__enter__()
        if self._step is not None:
            self._step.micro_batch(self._micro_step, batch)
            self._micro_step += 1

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

    @contextmanager
    def update(self) -> Iterator[None]:
        """The block updates optimizers and scaler."""
        if self._step is None:
            yield
            return
        with self._step.watch_update():
            yield

    def logged(self, values: Mapping[str, Any]) -> None:
        """The library logs these values."""
        if self._step is not None:
            self._step.logging(values)

    def end(self) -> None:
        """The step is over."""
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """An exception that leaves the block ends the step, with its evidence."""
        try:
            yield
        except BaseException as error:
            step, self._step = self._step, None
            if step is not None:
                step.__exit__(type(error), error, error.__traceback__)
            raise


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

    def restore(self) -> None:
        """Put every method back."""
        while self._undo:
            self._undo.pop()()


def tell(lines: list[str]) -> None:
    """Write what is gated and what is not where the user sees it, without touching stdout."""
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()
