"""Modules from a file or a source text, without starting the training in them again.

A script without a main guard would train on import. So of a script only imports, functions, classes
and literal assignments are executed.
"""

from __future__ import annotations
import __future__

import ast
import hashlib
import linecache
import sys
from pathlib import Path
from types import ModuleType

from workbench.errors import CannotRunError

_DEFINITIONS = (
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
)


def module_from_file(path: Path, name: str) -> ModuleType:
    """Execute the definitions in a file.

    Args:
        path: The file; its folder is importable meanwhile, as when it runs as a script.
        name: The name wanted from it, for the message.

    Raises:
        CannotRunError: The file cannot be read or its definitions fail.
    """
    path = path.resolve()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CannotRunError(
            f"The file {str(path)!r} cannot be read ({error}), so the training step {name!r} in it "
            "cannot be built. Name a readable Python file."
        ) from error
    return _execute(text, name, str(path), str(path.parent))


def module_from_source(text: str, name: str, origin: str) -> ModuleType:
    """Execute the definitions in a source text that came with a bundle.

    Args:
        text: The source text.
        name: The name wanted from it, for the message.
        origin: Where the text is, for tracebacks.

    Raises:
        CannotRunError: The text does not parse or its definitions fail.
    """
    return _execute(text, name, origin, None)


def _execute(text: str, name: str, origin: str, folder: str | None) -> ModuleType:
    digest = hashlib.sha256(f"{origin}\n{text}".encode()).hexdigest()[:16]
    module_name = f"workbench_step_{digest}"
    loaded = sys.modules.get(module_name)
    if loaded is not None:
        return loaded
    module = ModuleType(module_name)
    module.__file__ = origin
    # so that inspect and tracebacks show the text that really runs
    linecache.cache[origin] = (len(text), None, text.splitlines(keepends=True), origin)
    sys.modules[module_name] = module  # dataclasses look their module up while they are made
    added = folder is not None and folder not in sys.path
    if added:
        sys.path.insert(0, str(folder))
    try:
        _run(definitions(text, origin), origin, module)
    except Exception as error:
        del sys.modules[module_name]
        raise CannotRunError(
            f"The definitions in {origin!r} cannot be executed ({type(error).__name__}: {error}), "
            f"so the training step {name!r} cannot be built. Only imports, functions, classes and "
            "literal assignments of the file are run, so that training does not start again; keep "
            f"what the step needs in those.{_not_alone(error, folder)}"
        ) from error
    finally:
        if added:
            sys.path.remove(str(folder))
    return module


def _not_alone(error: Exception, folder: str | None) -> str:
    """What to do where text from a bundle imports a file that the bundle does not carry."""
    if folder is not None or not isinstance(error, ImportError):
        return ""
    return (
        f" A bundle carries the step's own file alone, and it imports {error.name!r}, which is not "
        "found here. Name your code instead, where the file lies beside it: --step file.py:Name."
    )


def _run(tree: ast.Module, origin: str, module: ModuleType) -> None:
    """Execute statement by statement, so that one that needs a left-out name costs only itself."""
    flags = _future_flags(tree)
    for node in tree.body:
        one = ast.Module([node], [])
        code = compile(one, origin, "exec", flags=flags, dont_inherit=True)
        try:
            exec(code, module.__dict__)  # noqa: S102 - the user named this file, or trusts the source
        except NameError:
            continue  # a decorator, default or base that the script makes as it trains


def _future_flags(tree: ast.Module) -> int:
    flags = 0
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            for alias in node.names:
                feature = getattr(__future__, alias.name, None)
                flags |= getattr(feature, "compiler_flag", 0)
    return flags


def definitions(text: str, origin: str) -> ast.Module:
    """Parse a source text and keep imports, functions, classes and literal assignments.

    Args:
        text: The source text.
        origin: Where it is, for syntax errors.

    Returns:
        The reduced syntax tree, line numbers unchanged.
    """
    tree = ast.parse(text, filename=origin)
    tree.body = _kept(tree.body)
    return tree


def _kept(body: list[ast.stmt]) -> list[ast.stmt]:
    kept: list[ast.stmt] = []
    for node in body:
        if isinstance(node, _DEFINITIONS) or _is_literal_assignment(node):
            kept.append(node)
        elif isinstance(node, ast.Try):  # the usual optional import
            inner = _kept(node.body)
            if inner and len(inner) == len(node.body):
                kept.append(node)
    return kept


def _is_literal_assignment(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):  # the docstring
        return isinstance(node.value, ast.Constant)
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return False
    return _is_literal(node.value)


def _is_literal(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.UnaryOp):
        return _is_literal(node.operand)
    if isinstance(node, ast.BinOp):
        return _is_literal(node.left) and _is_literal(node.right)
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return all(_is_literal(item) for item in node.elts)
    if isinstance(node, ast.Dict):
        return all(k is not None and _is_literal(k) for k in node.keys) and all(
            _is_literal(v) for v in node.values
        )
    # a dtype or another constant of an imported module: attribute access runs nothing of the script
    return isinstance(node, ast.Attribute | ast.Name) and _root_is_name(node)


def _root_is_name(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)
