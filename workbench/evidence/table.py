"""Columnar tables: numbers in safetensors, texts as codes into a dictionary in JSON."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from workbench.errors import BundleError, UsageError
from workbench.evidence.files import write_file
from workbench.evidence.reader import Bundle
from workbench.evidence.safetensors_header import MAX_HEADER_BYTES, Header
from workbench.numerics import jsonio

if TYPE_CHECKING:
    import torch

SCHEMA: Final = "workbench.table/1"
_MAX_BYTES: Final = 16 << 30

# A table is read without torch: what shows one needs none.
_NUMBERS: Final = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "<i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "<u1",
    "BOOL": "?",
}

Column = np.ndarray[Any, Any] | list[Any]


@dataclass
class Table:
    """Named columns of equal length.

    Attributes:
        columns: Numeric columns as one-dimensional numpy arrays; all others as lists of texts,
            or of any values JSON has (None among them).
        attrs: Plain values about the whole table.
    """

    columns: dict[str, Column] = field(default_factory=dict)
    attrs: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        """Number of rows."""
        return len(next(iter(self.columns.values()), []))

    def __getitem__(self, name: str) -> Column:
        """One column."""
        return self.columns[name]

    def row(self, index: int) -> dict[str, Any]:
        """One row, with plain Python values."""
        return {
            name: column[index].item() if isinstance(column, np.ndarray) else column[index]
            for name, column in self.columns.items()
        }

    def rows(self) -> list[dict[str, Any]]:
        """All rows, with plain Python values."""
        plain = {
            name: column.tolist() if isinstance(column, np.ndarray) else column
            for name, column in self.columns.items()
        }
        return [
            dict(zip(plain, values, strict=True)) for values in zip(*plain.values(), strict=True)
        ]


def table_from_rows(
    rows: Sequence[Mapping[str, Any]], attrs: Mapping[str, Any] | None = None
) -> Table:
    """A table of rows that have the same keys.

    Columns of floats (None becomes NaN) and of integers become arrays; others stay lists.
    """
    names = list(rows[0]) if rows else []
    columns: dict[str, Column] = {}
    for name in names:
        values = [row[name] for row in rows]
        kinds = {type(value) for value in values}
        if kinds <= {int} or kinds <= {bool}:
            columns[name] = np.array(values)
        elif kinds <= {int, float, type(None)} and float in kinds:
            columns[name] = np.array([np.nan if v is None else v for v in values], dtype=np.float64)
        else:
            columns[name] = values
    return Table(columns, dict(attrs or {}))


def write_table(directory: str | os.PathLike[str], name: str, table: Table) -> None:
    """Write ``<name>.safetensors`` and ``<name>.json``, replacing what is there.

    Raises:
        UsageError: Columns of different lengths, or of a kind no table holds.
    """
    from workbench.evidence.safetensors_file import encode

    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    description, tensors = _encode(table)
    text = (jsonio.dumps(description, indent=1) + "\n").encode("ascii")
    contents: dict[str, list[memoryview | bytes]] = {"safetensors": encode(tensors), "json": [text]}
    for ending, buffers in contents.items():
        part = folder / f".{name}.{ending}.part"
        part.unlink(missing_ok=True)
        write_file(part, buffers, sync=False)
        part.replace(folder / f"{name}.{ending}")


def read_table(source: str | os.PathLike[str] | Bundle, name: str) -> Table:
    """Read a table.

    Args:
        source: The directory, or an open bundle that was packed with its findings.
        name: Name without ending; in a bundle with its folder, ``"findings/trace/events"``.

    Raises:
        BundleError: Not there, or not a table.
    """
    if isinstance(source, Bundle):
        text = source.read_packed_findings(f"{name}.json")
        data = source.read_packed_findings(f"{name}.safetensors")
    else:
        text, data = (_read(Path(source) / f"{name}.{e}") for e in ("json", "safetensors"))
    try:
        return _decode(jsonio.loads(text), data, name)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BundleError(
            f"The table {name!r} is damaged ({error!r}). It can be made again by a replay."
        ) from error


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise BundleError(
                f"{str(path)!r} has more than {_MAX_BYTES:,} bytes, and no table has, so it was "
                "not read. It can be made again by a replay."
            )
        return path.read_bytes()
    except OSError as error:
        raise BundleError(
            f"The table file {str(path)!r} cannot be read ({error}), so its chart is not shown. "
            "It can be made again by a replay."
        ) from error


def _encode(table: Table) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    import torch

    rows = len(table)
    tensors: dict[str, torch.Tensor] = {}
    columns: list[dict[str, Any]] = []
    for name, column in table.columns.items():
        if len(column) != rows:
            raise UsageError(
                f"The column {name!r} has {len(column)} rows where others have {rows}. "
                "A table has one value a row in each column."
            )
        if isinstance(column, np.ndarray) and column.dtype.kind in "biuf":
            if column.ndim != 1:
                raise UsageError(
                    f"The column {name!r} has {column.ndim} dimensions; a column has 1, so "
                    "no table was made. Give one value a row."
                )
            native = np.ascontiguousarray(column.astype(column.dtype.newbyteorder("="), copy=False))
            tensors[name] = torch.from_numpy(native if native.flags.writeable else native.copy())
            columns.append({"name": name, "kind": "number"})
            continue
        values = column.tolist() if isinstance(column, np.ndarray) else column
        kind, codes, dictionary = _codes(values)
        tensors[name] = torch.from_numpy(codes)
        columns.append({"name": name, "kind": kind, "values": dictionary})
    return {"schema": SCHEMA, "rows": rows, "columns": columns, "attrs": table.attrs}, tensors


def _codes(values: Sequence[Any]) -> tuple[str, np.ndarray[Any, Any], list[str]]:
    """Codes into a dictionary of texts; -1 for None."""
    plain = all(value is None or isinstance(value, str) for value in values)
    places: dict[str, int] = {}
    codes = np.empty(len(values), dtype=np.int32)
    for i, value in enumerate(values):
        if value is None:
            codes[i] = -1
            continue
        text = value if plain else jsonio.dumps(value)
        codes[i] = places.setdefault(text, len(places))
    return ("text" if plain else "json"), codes, list(places)


def _decode(description: Any, data: bytes, name: str) -> Table:
    if description["schema"] != SCHEMA:
        raise ValueError(f"schema {str(description['schema'])[:60]!r}")
    rows = description["rows"]
    if len(data) > MAX_HEADER_BYTES + _MAX_BYTES:
        raise ValueError("too large")
    header = Header(io.BytesIO(data), len(data), f"{name}.safetensors")
    columns: dict[str, Column] = {}
    for column in description["columns"]:
        code, shape, start, _ = header.entries[str(column["name"])]
        if shape != (rows,):
            raise ValueError(f"column {column['name']!r} has shape {shape}")
        place = header.data_start + start
        stored = np.frombuffer(data, _NUMBERS[code], count=rows, offset=place).copy()
        columns[str(column["name"])] = (
            stored if column["kind"] == "number" else _texts(column, stored)
        )
    attrs = description.get("attrs", {})
    return Table(columns, dict(attrs))


def _texts(column: Any, codes: np.ndarray[Any, Any]) -> list[Any]:
    dictionary = list(column["values"])
    if len(codes) and (codes.min() < -1 or codes.max() >= len(dictionary)):
        raise ValueError(f"column {column['name']!r} has a code without a text")
    known = dictionary if column["kind"] == "text" else [jsonio.loads(text) for text in dictionary]
    return [None if code < 0 else known[code] for code in codes.tolist()]
