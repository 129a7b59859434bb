"""The drill in a library's own loop, for who has no ``TrainingStep``.

Every fault gets a short training of its own, recorded into a temporary directory; what the
training changes is put back afterwards.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from workbench.errors import UsageError
from workbench.integrations.loop import FollowedLoop, tell
from workbench.record import Policy, Recorder
from workbench.record.drill import Drill, Fault, Put, Row, faults
from workbench.record.drill.clean import NO_FAULT, failure, require_clean
from workbench.record.drill.run import Records, judge, read_ledger
from workbench.step.names import inner_model
from workbench.step.rng import capture_rng, restore_rng

MakeRecorder = Callable[[Path, Policy], Recorder]


class _Stop(Exception):
    """Ends a library's loop early: the training cannot have the fault."""


class _Injection:
    """One fault, put into a followed loop.

    Args:
        fault: The fault.
        at: The step it belongs to.
    """

    def __init__(self, fault: Fault, at: int) -> None:
        self.fault = fault
        self.at = at
        self.loop: FollowedLoop | None = None
        self.not_applicable: str | None = None
        self._put: Put | None = None

    def put(self, recorder: Recorder) -> Put:
        if self._put is None:
            logger = None if self.loop is None else (self.loop, "logger")
            self._put = Put(
                recorder.model, recorder.optimizers, recorder.scaler, recorder.step_object, self.at,
                recorder, logger,
            )  # fmt: skip
        return self._put

    def during(self, recorder: Recorder) -> AbstractContextManager[Any]:
        return self.fault.during(self.put(recorder), recorder.step_index)

    def batch(self, recorder: Recorder, batch: Any) -> Any:
        put = self.put(recorder)
        self.not_applicable = self.fault.not_applicable(put, batch)
        if self.not_applicable is not None:
            raise _Stop
        return self.fault.batch(put, recorder.step_index, batch)


def drill_loop(
    run: Callable[[FollowedLoop], None],
    make: MakeRecorder,
    steps: int,
    chosen: Sequence[Fault] | None = None,
) -> Drill:
    """Run a library's loop once without a fault and once with each, and tell what caught each.

    Args:
        run: Trains for the steps with this loop as the followed one, and puts back what it changed.
        make: Makes the recorder, given a directory and a policy.
        steps: Steps of each run.
        chosen: The faults; None takes all.

    Raises:
        UsageError: Fewer than three steps.
        CannotRunError: The loop failed without any fault.
    """
    if steps < 3:
        raise UsageError(
            f"A drill of {steps} steps has no calm step before its fault and none after. Use at "
            "least 3."
        )
    own = _clean(run, make, steps)
    drill = Drill(tuple(_row(run, make, steps, one, own) for one in chosen or faults()))
    tell(lines(drill))
    return drill


def _clean(run: Callable[[FollowedLoop], None], make: MakeRecorder, steps: int) -> Records:
    """The ledger of the run without a fault."""
    loop, _, error, records = _trained(run, make, steps, NO_FAULT)
    name = type(inner_model(loop.recorder.model)).__qualname__
    require_clean(name, steps, failure(error, records))
    return records


def _row(
    run: Callable[[FollowedLoop], None],
    make: MakeRecorder,
    steps: int,
    fault: Fault,
    own: Records,
) -> Row:
    loop, injection, error, records = _trained(run, make, steps, fault)
    put = injection.put(loop.recorder)
    why = injection.not_applicable
    if fault.boundaries == ("logging",) and not loop.logs:
        why = "the loop does not log through the library"
    if why is not None:
        return Row(fault.name, fault.what, "not_applicable", None, put.at, None, why)
    return judge(fault, put, error, records, own)


def _trained(
    run: Callable[[FollowedLoop], None], make: MakeRecorder, steps: int, fault: Fault
) -> tuple[FollowedLoop, _Injection, Exception | None, Records]:
    """The loop run once with a fault: what it raised, if it did, and its ledger."""
    injection = _Injection(fault, steps - 2)
    policy = fault.policy(Policy(on_nonfinite="raise", deep_scan_every=1))
    error: Exception | None = None
    with tempfile.TemporaryDirectory(prefix="workbench-drill-") as folder:
        loop = FollowedLoop(lambda: make(Path(folder), policy), injection)
        injection.loop = loop
        try:
            run(loop)
        except Exception as raised:  # noqa: BLE001 - what the fault led to is what is looked at
            error = raised
        finally:
            loop.finish()
        if not loop.started:
            raise error or UsageError(
                "The loop made no step in the drill, so no fault could be put into it. Check that "
                "there is data to train on."
            )
        records = read_ledger(Path(folder), loop.recorder.run_id)
    return loop, injection, error, records


def lines(drill: Drill) -> list[str]:
    """The table of a drill, one line a fault."""
    found = [f"workbench: drill: {len(drill.missed)} of {len(drill.rows)} faults were missed"]
    for row in drill.rows:
        what = f"workbench:   {row.what}, put into step {row.put_at}: "
        if row.result == "caught":
            found.append(f"{what}caught at step {row.caught_at} by {row.boundary}")
        else:
            found.append(f"{what}{row.result.replace('_', ' ')} ({row.why})")
    return found


@contextmanager
def preserved(
    model: nn.Module,
    optimizers: Sequence[Any] = (),
    schedulers: Sequence[Any] = (),
    scaler: Any = None,
) -> Iterator[None]:
    """Put model, optimizers, schedulers, scaler and random numbers back after the block.

    Args:
        model: The model; its parameters and buffers are copied, so they are held twice meanwhile.
        optimizers: Optimizers of torch.
        schedulers: Learning-rate schedulers, by their ``state_dict``.
        scaler: The loss scaler, or None.
    """
    undo = [_model(model), *(_optimizer(one) for one in optimizers)]
    undo += [_scheduler(one) for one in schedulers]
    if scaler is not None:
        undo.append(attributes(scaler))
    rng = capture_rng()
    try:
        yield
    finally:
        for one in undo:
            one()
        restore_rng(rng)


def attributes(owner: Any) -> Callable[[], None]:
    """Keep an object's attributes, lists and dicts among them copied; gives what puts them back."""
    kept = {name: _copied(value) for name, value in vars(owner).items()}

    def restore() -> None:
        held = vars(owner)
        held.clear()
        held.update(kept)

    return restore


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return copy.copy(value) if isinstance(value, list | dict) else value


def _model(model: nn.Module) -> Callable[[], None]:
    modules = list(model.modules())
    tensors = [*model.parameters(), *model.buffers()]
    values = [tensor.detach().clone() for tensor in tensors]
    places = [(module, dict(module._buffers)) for module in modules]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    training = [module.training for module in modules]
    for parameter, _ in gradients:
        parameter.grad = None

    def restore() -> None:
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
        for module, buffers in places:
            module._buffers.update(buffers)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for module, was in zip(modules, training, strict=True):
            module.training = was

    return restore


def _optimizer(optimizer: Any) -> Callable[[], None]:
    state = {key: copy.deepcopy(value) for key, value in optimizer.state.items()}
    groups = [
        {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]

    def restore() -> None:
        optimizer.state.clear()
        optimizer.state.update(state)
        for group, saved in zip(optimizer.param_groups, groups, strict=True):
            for key in [key for key in group if key != "params" and key not in saved]:
                del group[key]
            group.update(saved)

    return restore


def _scheduler(scheduler: Any) -> Callable[[], None]:
    state = copy.deepcopy(scheduler.state_dict())
    return lambda: scheduler.load_state_dict(state)
