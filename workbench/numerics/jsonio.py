"""The only module that encodes or decodes JSON.

Everything this package handles is about NaN and infinity, and JSON has neither. Here they travel as
``{"finite": false, "value": "nan" | "inf" | "-inf"}`` and come back as floats. What other codecs
accept without a word (``NaN``, ``Infinity``, ``1e999``, a key given twice) is refused, because a
reader of evidence must never be handed a value that was not written.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, TypeVar

import msgspec

from workbench.errors import StrictJsonError, UsageError

_T = TypeVar("_T")
MAX_DEPTH: Final = 200

_TAGS: Final[dict[str, float]] = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NOT_A_BRACKET: Final = re.compile(r"[^\[\]{}]+")
_STEP: Final = {"[": 1, "{": 1, "]": -1, "}": -1}
ADVICE: Final = "Evidence is read only when it says one thing; write it again with jsonio.dumps."


def dumps(obj: Any, *, indent: int | None = None) -> str:
    """Encode as strict JSON with sorted keys.

    Args:
        obj: Dicts with string (or int) keys, lists, tuples, sets of strings, strings, booleans,
            integers, floats, None; numpy and torch scalars; numpy arrays and torch tensors of any
            shape are written as nested lists.
        indent: Spaces per level, or None for one line.

    Returns:
        ASCII text. Non-finite floats are tagged objects.

    Raises:
        UsageError: An object JSON cannot hold.
    """
    try:
        return _encode(obj, indent)
    except (TypeError, ValueError, RecursionError):
        # The rare slow path: something is non-finite, or not a plain Python value.
        pass
    try:
        return _encode(_plain(obj, 0), indent)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"Cannot write an object of type {type(obj).__name__!r} as JSON: {error}. "
            "Bundles and findings hold plain values only; convert it to strings, numbers, lists "
            "and dicts with string keys first."
        ) from error


def dump_line(record: Mapping[str, Any]) -> bytes:
    """Encode one record as a JSON line of ASCII bytes, with sorted keys and its newline.

    The same content as ``dumps`` gives, several times faster for plain finite values: one of these
    is written at every training step.

    Args:
        record: As for ``dumps``.

    Raises:
        UsageError: An object JSON cannot hold.
    """
    if _is_plain(record):
        try:
            line: bytes = _LINES.encode(record)
        except (TypeError, ValueError, RecursionError, OverflowError):
            line = b""
        if line and line.isascii():
            return line + b"\n"
    return f"{dumps(record)}\n".encode()


class LineShape:
    """Encodes JSON lines of one shape, in which most fields stay the same from line to line.

    What stays the same is encoded once, with ``part``. A line then costs a tenth of ``dump_line``.

    Args:
        names: Its fields.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(sorted(names))
        self._struct = msgspec.defstruct("Line", [(name, Any) for name in self.names])

    def line(self, values: Mapping[str, Any]) -> bytes:
        """One line.

        Args:
            values: Strings, integers, finite floats, None, lists and dicts of them, or parts.

        Returns:
            The same content as ``dump_line`` gives.
        """
        line: bytes = _LINES.encode(self._struct(**values))
        return line + b"\n"


def part(value: Any) -> msgspec.Raw:
    """Encode a value once, for many lines of a ``LineShape``."""
    return msgspec.Raw(dump_line({"": value})[4:-2])


def dump_lines(records: Sequence[Mapping[str, Any]]) -> str:
    """Encode records as JSON lines, one object a line, each line ended by a newline."""
    return "".join(f"{dumps(record)}\n" for record in records)


def loads(text: str | bytes) -> Any:
    """Decode strict JSON.

    Args:
        text: JSON text, or its UTF-8 bytes.

    Returns:
        Plain Python values; tagged non-finite numbers come back as floats.

    Raises:
        StrictJsonError: Not JSON, not UTF-8, a bare ``NaN`` or ``Infinity``, a number too large for
            a float, a key given twice, or nesting deeper than 200.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise StrictJsonError(f"This text is not UTF-8: {error}. {ADVICE}") from error
    _refuse_deep(text)
    try:
        return _DECODER.decode(text)
    except StrictJsonError:
        raise
    except (ValueError, RecursionError) as error:
        raise StrictJsonError(f"This text is not JSON: {error}. {ADVICE}") from error


def load_lines(text: str | bytes) -> list[Any]:
    """Decode JSON lines; blank lines are skipped.

    Raises:
        StrictJsonError: A line that is not strict JSON; the message has its number.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise StrictJsonError(f"These lines are not UTF-8: {error}. {ADVICE}") from error
    records = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            records.append(loads(line))
        except StrictJsonError as error:
            what = str(error).removesuffix(ADVICE).rstrip()
            raise StrictJsonError(f"Line {number} cannot be read: {what} {ADVICE}") from error
    return records


def typed_lines(data: bytes, decoder: msgspec.json.Decoder[_T]) -> tuple[list[_T], int]:
    """Decode a few fields of very many JSON lines; the other fields are passed over.

    For ledgers of thousands of ranks. What is passed over is checked to be JSON and no further.

    Args:
        data: JSON lines.
        decoder: A decoder of the record's type.

    Returns:
        The records, and how many lines were none of that type (one that a killed process left
        unfinished, say).
    """
    try:
        return decoder.decode_lines(data), 0
    except (ValueError, RecursionError):  # msgspec's own errors are ValueErrors
        pass
    records: list[_T] = []
    wrong = 0
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        try:
            records.append(decoder.decode(line))
        except (ValueError, RecursionError):
            wrong += 1
    return records, wrong


def tag(value: float) -> dict[str, Any]:
    """The tagged form of a non-finite float."""
    name = "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return {"finite": False, "value": name}


def _encode(obj: Any, indent: int | None) -> str:
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(obj, allow_nan=False, sort_keys=True, indent=indent, separators=separators)


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether a dict or list holds only what every codec writes alike, and no non-finite float."""
    if depth > 8:
        return False
    if type(value) is dict:
        if not _STR.issuperset(map(type, value)):
            return False
        value = value.values()
    kinds = set(map(type, value))
    if not kinds <= _PLAIN:
        return False
    if float in kinds and not all(math.isfinite(one) for one in value if type(one) is float):
        return False
    if kinds.isdisjoint(_NESTED):
        return True
    return all(_is_plain(one, depth + 1) for one in value if type(one) in _NESTED)


_STR: Final = frozenset({str})
_NESTED: Final = frozenset({dict, list})
_PLAIN: Final = frozenset({str, int, float, bool, type(None), dict, list})
_LINES: Final = msgspec.json.Encoder(order="sorted")


def _plain(obj: Any, depth: int) -> Any:
    """A copy made of what JSON has, with non-finite floats tagged."""
    if depth > MAX_DEPTH:
        raise ValueError(f"it nests deeper than {MAX_DEPTH} levels, or contains itself")
    if obj is None or isinstance(obj, bool | str):
        return obj
    if isinstance(obj, int):
        return int(obj)
    if isinstance(obj, float):
        return float(obj) if math.isfinite(obj) else tag(obj)
    if isinstance(obj, Mapping):
        return {_key(key): _plain(value, depth + 1) for key, value in obj.items()}
    if isinstance(obj, list | tuple):
        return [_plain(item, depth + 1) for item in obj]
    if isinstance(obj, set | frozenset):
        return [_plain(item, depth + 1) for item in sorted(obj)]
    if hasattr(obj, "tolist"):  # numpy scalars and arrays, torch tensors: no import needed here
        return _plain(obj.tolist(), depth + 1)
    if isinstance(obj, complex):
        raise TypeError(f"complex number {obj!r}")
    raise TypeError(f"object of type {type(obj).__name__!r}")


def _key(key: Any) -> str:
    if isinstance(key, str):
        return str(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return str(int(key))
    raise TypeError(f"dict key {key!r} is not a string")


def _refuse_deep(text: str) -> None:
    # Counting first keeps the exact scan away from nearly every text.
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    brackets = _NOT_A_BRACKET.sub("", _STRING.sub("", text))
    depth = max(accumulate(_STEP[bracket] for bracket in brackets), default=0)
    if depth > MAX_DEPTH:
        raise StrictJsonError(
            f"This JSON nests {depth} levels deep; the limit is {MAX_DEPTH}. "
            "Text like this is made to exhaust a reader, so nothing of it is used."
        )


def _object(pairs: list[tuple[str, Any]]) -> Any:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise StrictJsonError(f"This JSON has the key {twice[:80]!r} twice. {ADVICE}")
    if len(result) == 2 and result.get("finite") is False:
        value = result.get("value")
        if isinstance(value, str) and value in _TAGS:
            return _TAGS[value]
    return result


def _number(literal: str) -> float:
    value = float(literal)
    if math.isinf(value):
        raise StrictJsonError(
            f"This JSON has the number {literal[:40]!r}, which no float holds. {ADVICE}"
        )
    return value


def _constant(literal: str) -> float:
    raise StrictJsonError(f"This JSON has the bare token {literal!r}. {ADVICE}")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_number, parse_constant=_constant
)
