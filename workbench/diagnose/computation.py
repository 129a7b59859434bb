"""A few torch calls with their real inputs: run here, or written as a script.

One op alone, a forward function and its gradient, or a short chain. What is run while inputs are
made smaller and what the script does come from the same data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from workbench.errors import CannotRunError

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Ref:
    """Stands for a tensor in arguments: one of the file, or the result of an earlier call."""

    name: str


@dataclass(frozen=True)
class Call:
    """One torch call.

    Attributes:
        func: What is called.
        path: How a script names it, ``torch.ops.aten.log.default``.
        args: Positional arguments, tensors as ``Ref``.
        kwargs: Keyword arguments, likewise.
        result: Name of its result.
        written: Names of tensors it writes in place.
    """

    func: Callable[..., Any]
    path: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: str
    written: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ran:
    """What running a computation gave.

    Attributes:
        kinds: Which of ``nan``, ``+inf``, ``-inf`` its shown tensors hold.
        last: The same of the last of them only.
        error: Class name and text of the exception it raised, or None.
    """

    kinds: frozenset[str] = frozenset()
    last: frozenset[str] = frozenset()
    error: tuple[str, str] | None = None


@dataclass(frozen=True)
class Computation:
    """Calls with their inputs.

    Attributes:
        calls: In order.
        tensors: Inputs by name.
        gradients: Incoming gradient of each result that has one, by position in the last call's
            result; empty when no gradient is asked for.
        autocast: Device type and dtype of an autocast around the calls, or None.
        rng: State of the random number generator before the calls, or None.
        filled: Whether memory without content is filled with NaN, as torch does when asked to.
        raises: Whether it is an exception that the computation shows.
    """

    calls: tuple[Call, ...]
    tensors: Tensors
    gradients: Mapping[int, str] = field(default_factory=dict)
    autocast: tuple[str, torch.dtype] | None = None
    rng: torch.Tensor | None = None
    filled: bool = False
    raises: bool = False

    @property
    def leaves(self) -> tuple[str, ...]:
        """Inputs that the gradient is taken for."""
        if not self.gradients:
            return ()
        incoming = set(self.gradients.values())
        return tuple(
            name
            for name, t in self.tensors.items()
            if name not in incoming and (t.is_floating_point() or t.is_complex())
        )

    def run(self) -> Ran:
        """Run it on copies of its inputs."""
        values: dict[str, Any] = {name: t.clone() for name, t in self.tensors.items()}
        for name in self.leaves:
            values[name].requires_grad_()
        try:
            with self._surroundings(), torch.set_grad_enabled(bool(self.gradients)):
                shown = list(self._shown(values))
        except Exception as error:  # noqa: BLE001 - any op, any arguments: the error is the answer
            return Ran(error=(type(error).__name__, str(error)))
        kinds = [kinds_of(t) for t in shown]
        return Ran(frozenset().union(*kinds), kinds[-1] if kinds else frozenset())

    def _shown(self, values: dict[str, Any]) -> Iterator[torch.Tensor]:
        out: Any = None
        for call in self.calls:
            out = call.func(
                *(filled_in(a, values) for a in call.args),
                **{k: filled_in(v, values) for k, v in call.kwargs.items()},
            )
            values[call.result] = out
        if not self.gradients:
            for call in self.calls:
                names = call.written or (call.result,)
                for name in names:
                    yield from tensors_of(values[name])
            return
        flat = list(tensors_of(out))
        outputs = [flat[i] for i in self.gradients]
        incoming = [values[name] for name in self.gradients.values()]
        leaves = [values[name] for name in self.leaves]
        found = torch.autograd.grad(outputs, leaves, incoming, allow_unused=True)
        yield from (g for g in found if g is not None)

    @contextmanager
    def _surroundings(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=[]))
            stack.enter_context(filled_memory(self.filled))
            if self.rng is not None:
                torch.set_rng_state(self.rng)
            if self.autocast is not None:
                device, dtype = self.autocast
                stack.enter_context(torch.autocast(device, dtype=dtype))
            yield

    def with_tensors(self, tensors: Tensors) -> Computation:
        """The same calls with other inputs."""
        return replace(self, tensors=tensors)


@contextmanager
def filled_memory(wanted: bool) -> Iterator[None]:
    """Fill memory without content with NaN, as ``torch.utils.deterministic`` does."""
    if not wanted:
        yield
        return
    level = torch.get_deterministic_debug_mode()
    # typed as a plain module, though torch makes it a property
    switches: Any = torch.utils.deterministic
    fill = switches.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    switches.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(level)
        switches.fill_uninitialized_memory = fill


class Taking:
    """Takes tensors out of arguments and gives them names; the same tensor has one name."""

    def __init__(self) -> None:
        self.tensors: Tensors = {}
        self._known: dict[int, str] = {}
        self._held: list[torch.Tensor] = []
        self.rng: torch.Tensor | None = None

    def add(self, tensor: torch.Tensor, prefix: str = "t") -> str:
        """Name a tensor.

        Raises:
            CannotRunError: Its layout cannot be held in a file.
        """
        name = self._known.get(id(tensor))
        if name is None:
            if tensor.layout is not torch.strided:
                raise _cannot_hold(f"a tensor of layout {tensor.layout}")
            name = f"{prefix}{len(self.tensors)}"
            self.tensors[name] = tensor.detach()
            self._known[id(tensor)] = name
            self._held.append(tensor)
        return name

    def __call__(self, value: Any) -> Any:
        """Return the value with a ``Ref`` for every tensor.

        Raises:
            CannotRunError: It holds something that a script cannot hold.
        """
        if isinstance(value, torch.Tensor):
            return Ref(self.add(value))
        if isinstance(value, list | tuple):
            items = [self(item) for item in value]
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, slice):
            return slice(self(value.start), self(value.stop), self(value.step))
        if isinstance(value, torch.Generator):
            self.rng = value.get_state()
            return None
        if value is None or value is Ellipsis or isinstance(value, _PLAIN):
            return value
        raise _cannot_hold(f"an argument of type '{type(value).__name__}'")


_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    torch.dtype,
    torch.layout,
    torch.memory_format,
    torch.device,
)


def _cannot_hold(what: str) -> CannotRunError:
    return CannotRunError(
        f"The computation has {what}, which a script that needs torch only cannot hold, so no "
        "repro was written. The bundle itself still replays the step."
    )


def filled_in(value: Any, values: Mapping[str, Any]) -> Any:
    """Put real tensors in for every ``Ref``."""
    if isinstance(value, Ref):
        return values[value.name]
    if isinstance(value, list | tuple):
        items = [filled_in(item, values) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, slice):
        parts = (filled_in(v, values) for v in (value.start, value.stop, value.step))
        return slice(*parts)
    return value


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in a result, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_of(item)


def kinds_of(tensor: torch.Tensor) -> frozenset[str]:
    """Which of ``nan``, ``+inf``, ``-inf`` a tensor holds."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.detach().resolve_conj())
    if not tensor.is_floating_point() or not tensor.numel():
        return frozenset()
    wide = tensor.detach().to(torch.float32) if tensor.dtype.itemsize == 1 else tensor.detach()
    found = {
        "nan": bool(wide.isnan().any()),
        "+inf": bool((wide == math.inf).any()),
        "-inf": bool((wide == -math.inf).any()),
    }
    return frozenset(kind for kind, there in found.items() if there)
