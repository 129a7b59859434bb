"""One rung of the backend ladder: the step under one backend, and what it handed out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from workbench.diagnose.boundaries import Named, blocks
from workbench.diagnose.ladder_align import Aligned, aligned_state
from workbench.diagnose.probes import modules_of, put_on
from workbench.errors import CannotRunError
from workbench.numerics import compare
from workbench.replay.plan import recorded_stop, unit_words
from workbench.replay.session import Session
from workbench.replay.trace_focus import tensors_in
from workbench.step.names import inner_model, named_parameters, walk

if TYPE_CHECKING:
    from torch import Tensor

    from workbench.evidence import Conditions
    from workbench.numerics import Comparison
    from workbench.replay import Replay

Values = dict[str, "Tensor"]
UNCOMPILED = "off"
_LOW = (torch.float16, torch.bfloat16)


@dataclass
class Rung:
    """The step under one backend.

    Attributes:
        backend: ``off`` for the model as it is written, else the backend of ``torch.compile``.
        values: Outputs, loss and gradients, by name, in the order they came to be.
        aligned: What the run started from.
        first_bad: ``(stage, tensor)`` of the gate that tripped, or None.
        error: Why it did not run, or None.
        compiled: Whether anything was compiled; False for ``off``, too.
        draws: Whether random numbers were drawn (dropout).
    """

    backend: str
    values: Values = field(default_factory=dict)
    aligned: Aligned | None = None
    first_bad: tuple[str, str] | None = None
    error: str | None = None
    compiled: bool = False
    draws: bool = False


@dataclass(frozen=True)
class Parting:
    """Where two runs part.

    Attributes:
        name: What differs: an output, the loss, a gradient, or a module's path.
        how: ``shape``, ``mask`` (other elements are non-finite), ``values``, or ``missing``.
        comparison: Masks before errors; None where one of the two is missing.
    """

    name: str
    how: str
    comparison: Comparison | None

    def to_data(self) -> dict[str, Any]:
        """As plain data."""
        compared = None if self.comparison is None else self.comparison.as_dict()
        return {"name": self.name, "how": self.how, "comparison": compared}


def run_rung(
    replay: Replay, conditions: Conditions, backend: str, *, eager_random: bool = False
) -> Rung:
    """Run the step from its sealed state under one backend.

    It runs to where the record stopped, and at least through the loss. What compiling raises is
    the rung's error.

    Args:
        replay: The replay.
        conditions: What to run under, but for the backend.
        backend: ``off``, or the backend of ``torch.compile``.
        eager_random: Have compiled code draw its random numbers as eager code does.
    """
    with random_as_eager(eager_random):
        return _run_rung(replay, conditions, backend)


@contextmanager
def random_as_eager(wanted: bool) -> Iterator[None]:
    """Have what inductor compiles draw random numbers as eager code does, for a while.

    Inductor fuses dropout and makes its random numbers another way: from the same seed come other
    numbers, and results that differ for that alone.
    """
    if not wanted:
        yield
        return
    from torch._inductor import config

    settings: Any = config
    with settings.patch(fallback_random=True):
        yield


def _run_rung(replay: Replay, conditions: Conditions, backend: str) -> Rung:
    torch._dynamo.reset()
    wanted = conditions.replace(compile=backend)
    rung = Rung(backend)
    try:
        session = Session(replay.source, wanted)
    except CannotRunError as error:
        rung.error = str(error)
        return rung
    rung.aligned = aligned_state(session)
    before = session.rng_digest
    missing = replay.source.unavailable()
    stop = recorded_stop(session.runner, replay.source)
    while (unit := session.runner.next_unit) is not None and unit.stage not in missing:
        if session.runner.position >= stop and unit.stage not in ("input", "forward", "loss"):
            break
        outcome = session.advance()
        # which micro-batch or phase it is of, where there are several
        which = unit_words(unit, session.runner.plan)
        after = f" of {which}" if which else ""
        if unit.stage == "forward" and outcome.exception is None:
            _add(rung.values, f"output{after}", tensors_in(session.runner.values.outputs[-1]))
        if unit.stage == "loss" and outcome.exception is None:
            _add(rung.values, f"loss{after}", [session.runner.values.losses[-1]])
        if outcome.exception is not None:
            rung.error = f"{type(outcome.exception).__name__}: {str(outcome.exception)[:500]}"
        if outcome.status == "bad":
            rung.first_bad = (outcome.unit.stage, outcome.tensor or "")
            break
    rung.compiled = session.observed.read_back.get("compile", UNCOMPILED) != UNCOMPILED
    rung.draws = session.rng_digest != before
    for name, parameter in named_parameters(session.runner.model):
        if parameter.grad is not None and parameter.grad.layout == torch.strided:
            rung.values[f"gradient:{name}"] = parameter.grad.detach().clone()
    return rung


def _add(values: Values, name: str, tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        number = sum(key.split("[")[0] == name for key in values)
        values[name if number == 0 else f"{name}[{number}]"] = tensor.detach().clone()


# -- comparing --------------------------------------------------------------------------------


def partings(ours: Values, theirs: Values) -> list[Parting]:
    """Compare two runs value by value, masks first; what is alike is left out.

    Args:
        ours: The run in question.
        theirs: The run it is compared with.
    """
    found = []
    for name in dict.fromkeys((*theirs, *ours)):
        if name not in ours or name not in theirs:
            found.append(Parting(name, "missing", None))
            continue
        comparison = compare(ours[name], theirs[name])
        how = _how(comparison, ours[name])
        if how is not None:
            found.append(Parting(name, how, comparison))
    return found


def _how(comparison: Comparison, tensor: Tensor) -> str | None:
    if not comparison.same_shape or comparison.dtype_a != comparison.dtype_b:
        return "shape"
    if not comparison.same_masks:
        return "mask"
    errors = comparison.errors
    if comparison.bitwise or errors is None:
        return None
    finite = tensor.detach()[torch.isfinite(tensor.detach())].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    # relative to the largest value: small ones carry the rounding of large ones in every sum
    limit = 3e-2 if tensor.dtype in _LOW else 1e-3
    return "values" if errors.max_abs > limit * max(scale, 1e-30) else None


def same_masks(ours: Values, theirs: Values) -> bool:
    """Whether all values of two runs have one shape and the same elements non-finite."""
    return not any(p.how in ("shape", "mask", "missing") for p in partings(ours, theirs))


# -- module by module -------------------------------------------------------------------------


def first_module(
    replay: Replay, conditions: Conditions, backend: str, *, eager_random: bool = False
) -> dict[str, Any]:
    """Find the first module whose output parts when modules are compiled one by one.

    Hooks of a compiled model fire for few of its modules. So each block is compiled on its own,
    with hooks around it that stay eager, and then the parts of the block that parted.

    Args:
        replay: The replay.
        conditions: What to run under, but for the backend.
        backend: The backend that parts.
        eager_random: Have compiled code draw its random numbers as eager code does.

    Returns:
        ``{"module", "how", "comparison", "inputs_equal", "trigger"}``; ``module`` is None where
        no block parts alone, and the difference depends on what is compiled together.
    """
    with random_as_eager(eager_random):
        return _first_module(replay, conditions, backend)


def _first_module(replay: Replay, conditions: Conditions, backend: str) -> dict[str, Any]:
    plain_session = Session(replay.source, conditions.replace(compile=UNCOMPILED))
    targets = _known(plain_session, blocks(plain_session.runner.model))
    found = _first_of(replay, conditions, backend, [path for path, _ in targets])
    if found is None:
        return {"module": None, "how": None, "comparison": None, "trigger": None}
    inner = inner_model(plain_session.runner.model).get_submodule(found["module"])
    below = [f"{found['module']}.{name}" for name, _ in inner.named_children()]
    deeper = _first_of(replay, conditions, backend, below) if below else None
    return deeper or found


def _known(session: Session, modules: list[Named]) -> list[Named]:
    paths = {path for path, _ in walk(session.runner.model)}
    return [(path, module) for path, module in modules if path in paths]


def _first_of(
    replay: Replay, conditions: Conditions, backend: str, paths: list[str]
) -> dict[str, Any] | None:
    theirs = _module_values(replay, conditions, UNCOMPILED, paths)
    ours = _module_values(replay, conditions, backend, paths)
    for name in theirs:
        if name not in ours:
            continue
        changed = {
            key: (ours[name].shapes, theirs[name].shapes)
            for key in (name,)
            if ours[name].shapes != theirs[name].shapes
        }
        parts = partings(ours[name].outputs, theirs[name].outputs)
        if changed or parts:
            inputs = partings(ours[name].inputs, theirs[name].inputs)
            path = name.rpartition("#")[0]
            return {
                "module": path,
                "how": parts[0].how if parts else "shape",
                "comparison": parts[0].to_data()["comparison"] if parts else None,
                "inputs_equal": not inputs,
                "trigger": "changed input shape" if changed else None,
            }
    return None


@dataclass
class _Call:
    inputs: Values
    outputs: Values = field(default_factory=dict)
    shapes: list[list[int]] = field(default_factory=list)


def _module_values(
    replay: Replay, conditions: Conditions, backend: str, paths: list[str]
) -> dict[str, _Call]:
    """Inputs and outputs of every call of some modules, each compiled on its own."""
    torch._dynamo.reset()
    session = Session(replay.source, conditions.replace(compile=UNCOMPILED))
    _take_compiled_off(session)
    modules = dict(modules_of(session))
    calls: dict[str, _Call] = {}
    stop = recorded_stop(session.runner, replay.source)
    with ExitStack() as stack:
        for path in paths:
            module: Any = modules.get(path)
            if module is None:
                continue
            if backend != UNCOMPILED:
                # the forward alone: hooks stay outside of the compiled code
                module.forward = torch.compile(module.forward, backend=backend)
            put_on(
                stack,
                module.register_forward_pre_hook(_entering(path, calls), with_kwargs=True),
            )
            put_on(stack, module.register_forward_hook(_leaving(path, calls)))
        while (unit := session.runner.next_unit) is not None:
            beyond = session.runner.position >= stop
            if beyond and unit.stage not in ("input", "forward", "loss"):
                break
            if session.advance().status == "bad":
                break
    return calls


def _take_compiled_off(session: Session) -> None:
    """Leave the model as it is written, so that only what is compiled here is."""
    model: Any = session.runner.model
    while hasattr(model, "_orig_mod"):
        model = model._orig_mod
    for module in model.modules():
        module._compiled_call_impl = None
    session.runner.model = model
    # else everything would run eagerly: the record says compiled, the conditions say not
    session.recorded = session.recorded.replace(compile=UNCOMPILED)


def _entering(path: str, calls: dict[str, _Call]) -> Callable[..., None]:
    def enter(_: Any, args: Any, kwargs: Any) -> None:
        number = sum(name.rpartition("#")[0] == path for name in calls)
        given = [tensor.detach().clone() for tensor in tensors_in((args, kwargs))]
        call = _Call({f"input[{i}]": tensor for i, tensor in enumerate(given)})
        call.shapes = [list(tensor.shape) for tensor in given]
        calls[f"{path}#{number}"] = call

    return enter


def _leaving(path: str, calls: dict[str, _Call]) -> Callable[..., None]:
    def leave(_: Any, args: Any, output: Any) -> None:
        del args
        names = [name for name in calls if name.rpartition("#")[0] == path]
        if names:
            _add(calls[names[-1]].outputs, "output", tensors_in(output))

    return leave
