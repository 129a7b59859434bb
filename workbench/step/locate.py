"""Find the user's training step: where its code is, and building it again under the trust given.

A bundle is untrusted. What it names is imported only with ``trust="import"``, and the source text
it carries is run only with ``trust="source"``; what the user names himself needs neither.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from workbench.errors import CannotRunError, UsageError
from workbench.evidence.wording import command_line
from workbench.step.snippet import module_from_file, module_from_source

if TYPE_CHECKING:
    from workbench.evidence import Bundle

_OURS = "workbench.integrations"
_REQUIRED = ("build_model", "build_optimizer", "forward", "loss")


def step_reference(step: object) -> dict[str, Any]:
    """Say where the code of a training step is.

    Args:
        step: The training step object; None for a low-level loop without one.

    Returns:
        ``reference`` (``package.module:Name`` or ``file.py:Name``, empty when there is none),
        ``kind`` (``module``, ``file``, ``integration``, ``notebook`` or ``none``), ``digest``
        (``sha256:…`` of the module's source text), ``text`` (that text), ``file``, ``line``.
    """
    nothing = {
        "reference": "", "kind": "none", "digest": "", "text": "", "file": "", "line": 0,
    }  # fmt: skip
    if step is None:
        return nothing
    kind = type(step)
    name = kind.__qualname__
    if "<locals>" in name:  # only a top-level class can be found again
        name = name.rpartition(".")[2]
    file = _source_file(kind)
    text = "" if file is None else _read(file)
    found = nothing | {
        "digest": f"sha256:{hashlib.sha256(text.encode()).hexdigest()}" if text else "",
        "text": text,
        "file": "" if file is None else str(file),
        "line": _line(kind),
    }
    module = kind.__module__
    if module.startswith(f"{_OURS}."):
        return found | {"kind": "integration", "reference": f"{module}:{name}"}
    if file is None:
        return found | {"kind": "notebook" if module == "__main__" else "none", "reference": ""}
    if module != "__main__" and _importable(module, file):
        return found | {"kind": "module", "reference": f"{module}:{name}"}
    return found | {"kind": "file", "reference": f"{file}:{name}"}


def _source_file(kind: type) -> Path | None:
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if file is None:  # a class built from a snapshot says itself where it came from
        return None
    path = Path(file)
    # IPython runs cells in a module of no file, or one under a temporary folder
    if "ipykernel_" in str(path) or not path.is_file():
        return None
    return path.resolve()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _line(kind: type) -> int:
    try:
        return inspect.getsourcelines(kind)[1]
    except (OSError, TypeError):
        return 0


def _importable(module: str, file: Path) -> bool:
    """Whether importing the name in a fresh process, started here, finds the same file."""
    loaded = sys.modules.get(module)
    spec = getattr(loaded, "__spec__", None)
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == file


# -- loading ----------------------------------------------------------------------------------


def load_step(bundle: Bundle | None, step: Any = None, trust: str | None = None) -> Any:
    """Find the training step for a replay.

    Args:
        bundle: The bundle; None when ``step`` says everything.
        step: The user's step object, its class, ``package.module:Name`` or ``file.py:Name``; None
            takes the reference in the bundle.
        trust: ``"import"`` imports what the bundle names; ``"source"`` runs the source text in the
            bundle (imports, functions, classes and literal assignments only).

    Returns:
        A training step object.

    Raises:
        CannotRunError: Not trusted, not importable, or no step is known; with the command that
            would work.
        UsageError: ``trust`` or ``step`` is not understood.
    """
    if trust not in (None, "import", "source"):
        raise UsageError(
            f"The trust {str(trust)[:40]!r} is not known, so it is not clear what of the bundle "
            "may be run. Say 'import' to import the step the bundle names, or 'source' to run the "
            "source text it carries."
        )
    if isinstance(step, str):
        return _instance(_resolve(step, _command(bundle, "--step", "train.py:MyStep")), step)
    if step is not None:
        return _instance(step, getattr(step, "__name__", type(step).__name__))
    if bundle is None:
        raise CannotRunError(
            "No training step was given, so there is no code to run. Pass one as step=MyStep(), or "
            "on the command line with --step file.py:MyStep."
        )
    return _from_bundle(bundle, trust)


def _from_bundle(bundle: Bundle, trust: str | None) -> Any:
    known = bundle.manifest.step_reference
    if known.kind == "integration" and known.reference.startswith(f"{_OURS}."):
        return _instance(_resolve(known.reference, ""), known.reference)
    if trust == "source":
        return _from_source(bundle)
    if trust == "import" and known.reference:
        return _from_reference(bundle)
    raise CannotRunError(_refusal(bundle))


def _from_reference(bundle: Bundle) -> Any:
    reference = bundle.manifest.step_reference.reference
    hint = _command(bundle, "--step", "file.py:Name")
    return _instance(_resolve(reference, hint), reference)


def _from_source(bundle: Bundle) -> Any:
    known = bundle.manifest.step_reference
    if not known.source or not bundle.has(known.source):
        raise CannotRunError(
            f"The bundle {str(bundle.path)!r} carries no source text of its training step, so "
            "there is nothing to run with trust 'source'. Name a file that has the step: "
            f"{_command(bundle, '--step', 'file.py:Name')}"
        )
    name = known.reference.rpartition(":")[2]
    module = module_from_source(bundle.text(known.source), name, str(bundle.path / known.source))
    return _instance(_attribute(module, name, known.source), name)


def _refusal(bundle: Bundle) -> str:
    known = bundle.manifest.step_reference
    own = _command(bundle, "--step", "file.py:Name")
    if known.kind == "notebook":
        return (
            f"The training step of {str(bundle.path)!r} was typed into a notebook cell, which no "
            f"other process can find again. Put the class into a file and name it: {own}"
        )
    if not known.reference:
        return (
            f"The bundle {str(bundle.path)!r} was recorded without a training step, so it does not "
            "say how to build the model. Write a TrainingStep that does what the loop does, and "
            f"name it: {own}"
        )
    shown = known.reference[:200]
    source = (
        f" The source text in the bundle ({known.digest[:23]}…) runs with: "
        f"{_command(bundle, '--trust', 'source')}."
        if known.source
        else ""
    )
    return (
        f"The bundle names the training step {shown!r}. Replaying runs that code, and a bundle is "
        "not trusted by itself. When you trust it, import it with: "
        f"{_command(bundle, '--trust', 'import')}.{source} Or name your own copy: "
        f"{_command(bundle, '--step', shown)}"
    )


def _command(bundle: Bundle | None, *arguments: str) -> str:
    """A command that names the code; empty where no bundle says what it would replay."""
    return "" if bundle is None else command_line("replay", bundle.path, *arguments)


def _resolve(reference: str, hint: str) -> Any:
    """Import what ``package.module:Name`` or ``file.py:Name`` stands for."""
    place, colon, name = reference.rpartition(":")
    if not colon or not place or not name:
        raise UsageError(
            f"The training step {reference[:200]!r} is not understood. Name it as "
            "'package.module:Name' or 'path/to/file.py:Name'."
        )
    if place.endswith(".py"):
        path = Path(place).expanduser()
        if not path.is_file():
            raise CannotRunError(
                f"The file {place!r} of the training step {name!r} is not here, so its code cannot "
                f"be run. Name it where it is now: {hint or 'path/to/file.py:Name'}"
            )
        return _attribute(module_from_file(path, name), name, place)
    return _attribute(_import(place, reference, hint), name, place)


def _import(module: str, reference: str, hint: str) -> ModuleType:
    here = str(Path.cwd())
    added = here not in sys.path and "" not in sys.path
    if added:
        sys.path.insert(0, here)  # as `python -m` does; a console script does not
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise CannotRunError(
            f"The module {module!r} of the training step {reference!r} cannot be imported here "
            f"({type(error).__name__}: {error}), so its code cannot be run. Start in the folder "
            f"that has it, or name a file: {hint or 'path/to/file.py:Name'}"
        ) from error
    finally:
        if added:
            sys.path.remove(here)


def _attribute(module: ModuleType, name: str, place: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
        if found is None:
            raise CannotRunError(
                f"{place!r} has no {name!r}, so the training step cannot be built. Name a class "
                "that stands at the top level of the file, as 'file.py:Name'."
            )
    return found


def _instance(found: Any, name: str) -> Any:
    """Make a step object of a class or a function without arguments; keep an object as it is."""
    if isinstance(found, type) or (callable(found) and not hasattr(found, "build_model")):
        try:
            found = found()
        except TypeError as error:
            raise CannotRunError(
                f"The training step {name!r} cannot be made without arguments ({error}), so it "
                "cannot be built again for a replay. Give its arguments defaults, or pass an "
                "object: step=MyStep(…) in Python."
            ) from error
    missing = [method for method in _REQUIRED if not callable(getattr(found, method, None))]
    if missing:
        raise CannotRunError(
            f"{name!r} is no training step: it has no {', '.join(missing)}. A training step has "
            f"{', '.join(_REQUIRED)}; subclass workbench.TrainingStep."
        )
    return found
