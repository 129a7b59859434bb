"""State of every random source: Python, numpy, torch on the CPU and on every CUDA device.

``random.getstate`` and ``numpy.random.get_state`` cost tens of microseconds, a small step's worth.
So the position of both generators and a few words of their state are read instead, which costs one,
and the full state only when one of them changed: every draw moves the position, and whoever comes
back to it after 624 draws, or seeds, finds other words. Reading memory depends on the interpreter;
it is checked against the official functions once and not used where they disagree.
"""

from __future__ import annotations

import ctypes
import hashlib
import random
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

_WORDS = 624
_BYTES = 4 * _WORDS + 4
_RAW = ctypes.c_char * _BYTES
_WORD = ctypes.c_uint32
_LOOKED_AT = (0, 1, 311, 623, 624)
"""Which 32-bit words tell whether anything was drawn: the position is the first, or the last."""


@dataclass(frozen=True)
class RngState:
    """Random state at one moment.

    Attributes:
        python: ``random.getstate()``.
        numpy: ``numpy.random.get_state()`` as a dict; None when numpy's state was not readable.
        cpu: torch's CPU state, uint8 of shape (n,).
        cuda: State of every CUDA device by index, uint8.
        generators: State of named ``torch.Generator`` objects.
        loaders: Per watched data loader ``base_seed`` and ``worker_seeds`` of its running epoch.
    """

    python: tuple[Any, ...]
    numpy: dict[str, Any] | None
    cpu: Tensor
    cuda: dict[int, Tensor] = field(default_factory=dict)
    generators: dict[str, Tensor] = field(default_factory=dict)
    loaders: dict[str, dict[str, Any]] = field(default_factory=dict)

    def digest(self) -> str:
        """sha256 over all sources, as 64 hex digits."""
        global _LAST  # noqa: PLW0603 - where nothing random runs, every step has the same state
        if self.cuda or self.generators:
            return self._digest()
        known, raw = _LAST, self.cpu.numpy().tobytes()
        if known is None or not (
            known[0] is self.python and known[1] is self.numpy and known[2] == raw
        ):
            known = _LAST = (self.python, self.numpy, raw, self._digest())
        return known[3]

    def _digest(self) -> str:
        total = hashlib.sha256()
        total.update(_digest_once("python", self.python))
        total.update(_digest_once("numpy", self.numpy))
        for tensor in (self.cpu, *self.cuda.values(), *self.generators.values()):
            total.update(tensor.numpy().data)
        return total.hexdigest()

    def same(self, other: RngState) -> bool:
        """Whether two states are equal in every source that both have."""
        return self.digest() == other.digest()


class _Source:
    """One slow generator, read again only when its words changed."""

    def __init__(self) -> None:
        self._state: Any = None
        self._trusted: bool | None = None
        self._of: object = None  # whose memory is read
        self._memory: Any = None
        self._words: list[Any] = []
        self._seen: list[int] = []

    def read(self) -> Any:
        if self._trusted and self._owner() is self._of:
            now = [word.value for word in self._words]
            if now == self._seen and self._settled():
                return self._state
        raw = self._peek() if self._trusted is not False else None
        self._state = self._full()
        if self._trusted is None:
            self._trusted = raw is not None and self._agrees(raw)
        if raw is not None and self._trusted:
            address = ctypes.addressof(self._memory)
            self._words = [_WORD.from_address(address + 4 * place) for place in _LOOKED_AT]
            self._seen = [word.value for word in self._words]
        return self._state

    def _owner(self) -> object:
        """Whose memory is to be read."""
        raise NotImplementedError

    def _peek(self) -> bytes | None:
        raise NotImplementedError

    def _full(self) -> Any:
        raise NotImplementedError

    def _agrees(self, raw: bytes) -> bool:
        raise NotImplementedError

    def _settled(self) -> bool:
        """Whether equal words prove an equal state (no spare normal deviate is stored)."""
        raise NotImplementedError


class _Python(_Source):
    def _owner(self) -> object:
        return getattr(random, "_inst", None)

    def _peek(self) -> bytes | None:
        instance: Any = self._owner()
        if instance is not self._of:
            self._of, self._memory = instance, None
            if sys.implementation.name == "cpython" and type(instance) is random.Random:
                self._memory = _RAW.from_address(id(instance) + object.__basicsize__)
        return None if self._memory is None else self._memory.raw

    def _full(self) -> tuple[Any, ...]:
        return random.getstate()

    def _agrees(self, raw: bytes) -> bool:
        words = self._state[1]
        expected = [words[-1], *words[:-1]]
        return raw == b"".join(word.to_bytes(4, sys.byteorder) for word in expected)

    def _settled(self) -> bool:
        instance: Any = random._inst
        return bool(self._state[2] is None and instance.gauss_next is None)


class _Numpy(_Source):
    def _owner(self) -> object:
        return np.random.mtrand._rand._bit_generator

    def _peek(self) -> bytes | None:
        generator: Any = self._owner()
        if generator is not self._of:
            self._of, self._memory = generator, None
            if type(generator).__name__ == "MT19937":
                self._memory = _RAW.from_address(generator.ctypes.state_address)
        return None if self._memory is None else self._memory.raw

    def _full(self) -> dict[str, Any]:
        state: dict[str, Any] = np.random.get_state(legacy=False)
        return state

    def _agrees(self, raw: bytes) -> bool:
        inner = self._state["state"]
        position = int(inner["pos"]).to_bytes(4, sys.byteorder)
        return bool(raw == inner["key"].astype("uint32").tobytes() + position)

    def _settled(self) -> bool:
        return not self._state["has_gauss"]


_PYTHON = _Python()
_NUMPY = _Numpy()


def capture_rng(generators: dict[str, torch.Generator] | None = None) -> RngState:
    """Read the state of every random source; no source is advanced.

    Args:
        generators: The user's own ``torch.Generator`` objects by name.
    """
    return RngState(
        python=_PYTHON.read(),
        numpy=_NUMPY.read(),
        cpu=torch.default_generator.get_state(),
        cuda=_cuda_states(),
        generators={name: g.get_state() for name, g in (generators or {}).items()},
    )


def generators_of(step: Any) -> dict[str, torch.Generator]:
    """The generators a training step object holds as attributes, by name."""
    own = getattr(step, "__dict__", None) or {}
    return {name: value for name, value in own.items() if isinstance(value, torch.Generator)}


def _cuda_states() -> dict[int, Tensor]:
    # the one that costs nothing first
    if not torch.cuda.is_initialized() or not torch.cuda.is_available():
        return {}
    return {index: g.get_state() for index, g in enumerate(torch.cuda.default_generators)}


def restore_rng(state: RngState, generators: dict[str, torch.Generator] | None = None) -> None:
    """Put every random source that exists here back into a recorded state.

    Args:
        state: The recorded state.
        generators: The user's own generators by name; only recorded ones are set.
    """
    random.setstate(state.python)
    if state.numpy is not None:
        np.random.set_state(state.numpy)
    torch.set_rng_state(state.cpu)
    if state.cuda and torch.cuda.is_available():
        for index, value in state.cuda.items():
            if index < torch.cuda.device_count():
                torch.cuda.set_rng_state(value, index)
    for name, generator in (generators or {}).items():
        if name in state.generators:
            generator.set_state(state.generators[name])


_LAST: tuple[Any, Any, bytes, str] | None = None
_DIGESTS: dict[str, tuple[Any, bytes]] = {}


def _digest_once(source: str, state: Any) -> bytes:
    """Digest a slow source's state; the same object is digested once."""
    cached = _DIGESTS.get(source)
    if cached is not None and cached[0] is state:
        return cached[1]
    value = hashlib.sha256(_state_bytes(state)).digest()
    _DIGESTS[source] = (state, value)
    return value


def _state_bytes(state: Any) -> bytes:
    if state is None:
        return b"none"
    if isinstance(state, tuple):  # python: version, words and index, spare normal deviate
        words = b"".join(int(word).to_bytes(8, "little") for word in state[1])
        return words + repr((state[0], state[2])).encode()
    inner = state.get("state", {})
    parts = [str(state.get("bit_generator")).encode()]
    for name in sorted(inner):
        value = inner[name]
        raw = value.tobytes() if hasattr(value, "tobytes") else repr(int(value)).encode()
        parts += [name.encode(), raw]
    parts.append(repr((int(state.get("has_gauss", 0)), float(state.get("gauss", 0.0)))).encode())
    return b"|".join(parts)
