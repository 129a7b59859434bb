"""Every error message of the package as text, read from its source.

What is put in at run time stands as ``{…}``. Run as a module it writes the table anew:
``python -m tests.contract.messages``.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TABLE = Path(__file__).parent / "snapshots" / "errors.txt"
KINDS = frozenset(
    "UsageError BundleError StrictJsonError CheckpointError CannotRunError CheckFailedError".split()
)


@dataclass(frozen=True)
class Message:
    """One ``raise`` or one error that is made.

    Attributes:
        module: Where, with dots.
        line: The line.
        kind: The class of the error.
        text: The message; None where it is made elsewhere (a call, a name).
    """

    module: str
    line: int
    kind: str
    text: str | None


def _text(node: ast.expr) -> str | None:
    """A message: literal text, f-strings, and both put together."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = []
        for part in node.values:
            if isinstance(part, ast.Constant):
                parts.append(str(part.value))
            else:
                parts.append("'{…}'" if getattr(part, "conversion", -1) == ord("r") else "{…}")
        return "".join(parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left), _text(node.right)
        return None if left is None or right is None else left + right
    return None


def messages() -> list[Message]:
    """All of them, in the order of modules and lines."""
    found = []
    for path in sorted((ROOT / "workbench").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in KINDS:
                found.append(Message(module, node.lineno, name, _text(node.args[0])))
    return sorted(found, key=lambda m: (m.module, m.line))


def table() -> str:
    """The table: module, class, message; without lines, so that only words make a difference."""
    rows = [f"{m.module}  {m.kind}\n    {m.text}\n" for m in messages() if m.text is not None]
    return "\n".join(rows)


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
