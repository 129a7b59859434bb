"""What a pickle stream says, as plain data: nothing is imported, nothing is called.

Checkpoints of torch and of torch.distributed.checkpoint describe their tensors in a pickle. Loading
one runs what it says; even the weights-only loader knows only an older protocol. A scan needs the
facts alone, so this reads the instructions and builds records: a class or function is its name, and
a call of one is a ``Record`` of that name and its arguments.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from workbench.errors import CheckpointError

MOST_DESCRIPTION: Final = 512 * 2**20
"""Bytes of a pickle that describes tensors."""
MOST_INSTRUCTIONS: Final = 50_000_000
"""Instructions read of one stream: about a million tensors."""


@dataclass(frozen=True)
class Name:
    """The name of a class or a function, as the stream gives it."""

    module: str
    name: str

    @property
    def full(self) -> str:
        """Module and name with a dot."""
        return f"{self.module}.{self.name}"


@dataclass(frozen=True)
class Reference:
    """A persistent id: something that lies outside of the stream, such as a storage."""

    id: Any


class Record:
    """An object the stream would have built.

    Attributes:
        name: Full name of the class or function, ``""`` for what has none.
        arguments: What it would have been called with.
        state: What ``__setstate__`` or the attributes would have been given.
        items: Items set on it, for what behaves like a mapping.
        entries: Entries appended to it.
    """

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.name = name
        self.arguments = arguments
        self.state: Any = None
        self.items: dict[Any, Any] = {}
        self.entries: list[Any] = []


_NOT_A_STREAM: Final = (
    ValueError,
    IndexError,
    KeyError,
    TypeError,
    AttributeError,  # an entry appended to what takes none
    OverflowError,
    RecursionError,
)


class _Mark:
    """Where a list of arguments begins on the stack."""


_MARK: Final = _Mark()
_PLAIN_MAPPINGS: Final = frozenset({"collections.OrderedDict", "builtins.dict"})


def read_pickle(data: bytes, where: str) -> Any:
    """Read a stream as plain data.

    Args:
        data: The stream.
        where: For messages: which file.

    Returns:
        Numbers, texts, bytes, lists, tuples, sets, dicts, ``Name``, ``Reference`` and ``Record``.

    Raises:
        CheckpointError: Not a pickle stream, one that is cut off, or an instruction that is not
            needed to describe tensors.
    """
    machine = _Machine()
    try:
        for count, (op, argument, _) in enumerate(pickletools.genops(data)):
            if count > MOST_INSTRUCTIONS:
                raise _damaged(where, f"it has more than {MOST_INSTRUCTIONS:,} instructions")
            if op.name == "STOP":
                return machine.stack[-1]
            action = _ACTIONS.get(op.name)
            if action is None:
                machine.push_or_refuse(op.name, argument)
            else:
                action(machine, argument)
    except _NOT_A_STREAM as error:
        raise _damaged(where, f"{type(error).__name__}: {str(error)[:200]}") from error
    raise _damaged(where, "it ends before it is complete")


def _damaged(where: str, what: str) -> CheckpointError:
    return CheckpointError(
        f"{where!r} describes its tensors in a way that cannot be read: {what}. Nothing of it was "
        "run or loaded. Get a fresh copy, or check that it is a checkpoint."
    )


_CONSTANTS: Final[dict[str, Any]] = {
    "NONE": None,
    "NEWTRUE": True,
    "NEWFALSE": False,
}
_LITERALS: Final = frozenset(
    """INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING
    UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8
    BYTEARRAY8""".split()
)
_IGNORED: Final = frozenset({"PROTO", "FRAME"})


class _Machine:
    """The stack and the memo of the stream."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def push_or_refuse(self, name: str, argument: Any) -> None:
        """An instruction that stands for a value; anything else is refused."""
        if name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _LITERALS:
            self.stack.append(argument)
        elif name not in _IGNORED:
            raise ValueError(f"the instruction {name} is not known here")

    def pop_to_mark(self) -> list[Any]:
        """Everything above the last mark."""
        position = len(self.stack) - 1
        while self.stack[position] is not _MARK:
            position -= 1
            if position < 0:
                raise IndexError("a mark is missing")
        taken = self.stack[position + 1 :]
        del self.stack[position:]
        return taken

    def call(self, what: Any, arguments: Any) -> None:
        """Note a call; ordered dicts become dicts, so that their items have a place."""
        name = what.full if isinstance(what, Name) else ""
        given = tuple(arguments) if isinstance(arguments, list | tuple) else (arguments,)
        if name in _PLAIN_MAPPINGS:
            self.stack.append(dict(given[0]) if given and isinstance(given[0], list) else {})
        else:
            self.stack.append(Record(name, given))

    def set_items(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Set items on what lies on top."""
        target = self.stack[-1]
        items = target.items if isinstance(target, Record) else target
        for key, value in pairs:
            items[key if _hashable(key) else Record("unhashable", (key,))] = value

    def add_entries(self, values: Iterable[Any]) -> None:
        """Append to what lies on top."""
        target = self.stack[-1]
        (target.entries if isinstance(target, Record) else target).extend(values)

    def build(self) -> None:
        """Give the object on top its state."""
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(target, Record):
            target.state = state


def _hashable(key: Any) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


def _take(machine: _Machine, count: int) -> tuple[Any, ...]:
    taken = tuple(machine.stack[len(machine.stack) - count :])
    if len(taken) < count:
        raise IndexError("the stack is too short")
    del machine.stack[len(machine.stack) - count :]
    return taken


def _pop(machine: _Machine, _: Any) -> None:
    machine.stack.pop()


def _pop_mark(machine: _Machine, _: Any) -> None:
    machine.pop_to_mark()


def _stack_global(machine: _Machine, _: Any) -> None:
    module, name = _take(machine, 2)
    machine.stack.append(Name(str(module), str(name)))


def _global(machine: _Machine, argument: Any) -> None:
    module, _, name = str(argument).partition(" ")
    machine.stack.append(Name(module, name))


def _call(machine: _Machine, _: Any) -> None:
    what, arguments = _take(machine, 2)
    machine.call(what, arguments)


def _new_with_keywords(machine: _Machine, _: Any) -> None:
    what, arguments, keywords = _take(machine, 3)
    machine.call(what, (*arguments, keywords))


def _memoize(machine: _Machine, _: Any) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _put(machine: _Machine, argument: Any) -> None:
    machine.memo[int(argument)] = machine.stack[-1]


def _get(machine: _Machine, argument: Any) -> None:
    machine.stack.append(machine.memo[int(argument)])


def _set_items(machine: _Machine, _: Any) -> None:
    flat = machine.pop_to_mark()
    machine.set_items(zip(flat[::2], flat[1::2], strict=True))


def _set_item(machine: _Machine, _: Any) -> None:
    key, value = _take(machine, 2)
    machine.set_items([(key, value)])


def _appends(machine: _Machine, _: Any) -> None:
    machine.add_entries(machine.pop_to_mark())


def _append(machine: _Machine, _: Any) -> None:
    (value,) = _take(machine, 1)
    machine.add_entries([value])


def _add_items(machine: _Machine, _: Any) -> None:
    values = machine.pop_to_mark()
    target = machine.stack[-1]
    if isinstance(target, set):
        target.update(value for value in values if _hashable(value))
    else:
        machine.add_entries(values)


def _dict(machine: _Machine, _: Any) -> None:
    flat = machine.pop_to_mark()
    machine.stack.append({})
    machine.set_items(zip(flat[::2], flat[1::2], strict=True))


def _reference(machine: _Machine, _: Any) -> None:
    (value,) = _take(machine, 1)
    machine.stack.append(Reference(value))


def _pushing(make: Callable[[_Machine], Any]) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: machine.stack.append(make(machine))


_ACTIONS: Final[dict[str, Callable[[_Machine, Any], None]]] = {
    "MARK": _pushing(lambda _: _MARK),
    "POP": _pop,
    "POP_MARK": _pop_mark,
    "DUP": _pushing(lambda machine: machine.stack[-1]),
    "EMPTY_DICT": _pushing(lambda _: {}),
    "EMPTY_LIST": _pushing(lambda _: []),
    "EMPTY_TUPLE": _pushing(lambda _: ()),
    "EMPTY_SET": _pushing(lambda _: set()),
    "TUPLE1": _pushing(lambda machine: _take(machine, 1)),
    "TUPLE2": _pushing(lambda machine: _take(machine, 2)),
    "TUPLE3": _pushing(lambda machine: _take(machine, 3)),
    "TUPLE": _pushing(lambda machine: tuple(machine.pop_to_mark())),
    "LIST": _pushing(lambda machine: machine.pop_to_mark()),
    "FROZENSET": _pushing(lambda machine: tuple(machine.pop_to_mark())),
    "DICT": _dict,
    "SETITEM": _set_item,
    "SETITEMS": _set_items,
    "APPEND": _append,
    "APPENDS": _appends,
    "ADDITEMS": _add_items,
    "GLOBAL": _global,
    "STACK_GLOBAL": _stack_global,
    "REDUCE": _call,
    "NEWOBJ": _call,
    "NEWOBJ_EX": _new_with_keywords,
    "BUILD": lambda machine, _: machine.build(),
    "BINPERSID": _reference,
    "MEMOIZE": _memoize,
    "PUT": _put,
    "BINPUT": _put,
    "LONG_BINPUT": _put,
    "GET": _get,
    "BINGET": _get,
    "LONG_BINGET": _get,
}
