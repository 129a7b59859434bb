"""The size of things: a module is one idea, a function is read at a glance."""

from __future__ import annotations

import ast

import pytest

MODULE = 400
FUNCTION = 60


def sources(repository):
    return sorted((repository / "workbench").rglob("*.py"))


def test_no_module_is_longer_than_400_lines(repository):
    sizes = {
        str(p.relative_to(repository)): len(p.read_text(encoding="utf-8").splitlines())
        for p in sources(repository)
    }
    assert {p: n for p, n in sizes.items() if n > MODULE} == {}


def test_no_function_is_longer_than_60_lines(repository):
    """From ``def`` to its last line, the docstring left out."""
    long = {}
    for path in sources(repository):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            first = node.body[0]
            documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            start = first.end_lineno if documented and len(node.body) > 1 else node.lineno
            if node.end_lineno - start > FUNCTION:
                long[f"{path.relative_to(repository)}:{node.name}"] = node.end_lineno - start
    assert long == {}


@pytest.mark.parametrize("room", ["numerics", "evidence", "step", "record", "replay", "charts"])
def test_every_test_folder_mirrors_a_room(repository, room):
    assert (repository / "workbench" / room).is_dir()
    assert list((repository / "tests" / "unit" / room).glob("test_*.py"))
