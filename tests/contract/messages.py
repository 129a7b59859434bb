"""Every error message of the package as text, read from its source.

What is put in at run time stands as ``{…}``. Run as a module it writes the table anew:
``python -m tests.contract.messages``.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

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


def _text(node: ast.expr, constants: Mapping[str, str] = MappingProxyType({})) -> str | None:
    """A message: literal text, f-strings with the module's own texts in them, and both together."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = []
        for part in node.values:
            if isinstance(part, ast.Constant):
                parts.append(str(part.value))
            elif isinstance(part.value, ast.Name) and part.value.id in constants:
                parts.append(constants[part.value.id])
            else:
                parts.append("'{…}'" if getattr(part, "conversion", -1) == ord("r") else "{…}")
        return "".join(parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left, constants), _text(node.right, constants)
        return None if left is None or right is None else left + right
    return None


def _constants(tree: ast.Module) -> dict[str, str]:
    """The texts that a module keeps under a name of its own: a sentence that ends many messages."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name, value = node.target.id, node.value
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, node.value
        else:
            continue
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            found[name] = value.value
    return found


def messages() -> list[Message]:
    """All of them, in the order of modules and lines."""
    found = []
    for path in sorted((ROOT / "workbench").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = _constants(tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in KINDS:
                found.append(Message(module, node.lineno, name, _text(node.args[0], constants)))
    return sorted(found, key=lambda m: (m.module, m.line))


def table() -> str:
    """The table: module, class, message; without lines, so that only words make a difference."""
    rows = [f"{m.module}  {m.kind}\n    {m.text}\n" for m in messages() if m.text is not None]
    return "\n".join(rows)


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
