"""One command from a bundle to a file: check, run, export, and say what did not work."""

from __future__ import annotations

import datetime
import inspect
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from workbench import __version__, errors
from workbench.errors import CannotRunError, UsageError, WorkbenchError
from workbench.numerics import jsonio
from workbench.reports.execute import Execution, run_notebook
from workbench.reports.page import About, slug, write_page
from workbench.reports.templates import Template, check_parameters, find_template


def report(
    bundle: Any,
    template: str | Path = "incident",
    output: str | os.PathLike[str] = "report.html",
    parameters: Mapping[str, Any] | None = None,
    step: Any = None,
    trust: str | None = None,
    progress: Callable[[str], None] | None = None,
    notebook: str | os.PathLike[str] | None = None,
    timeout_s: float | None = None,
) -> Path:
    """Make one HTML file of an incident.

    Args:
        bundle: A bundle or its path.
        template: Name of a template, or path of a notebook of one's own.
        output: Where the HTML goes; it is replaced only by a complete file.
        parameters: Values for the template's parameters.
        step: Code of the training step, ``package.module:Name`` or ``file.py:Name``, or the
            object itself when it comes from a file. Runs code; without it the saved findings or
            the record are shown.
        trust: ``import`` or ``source``, to use the code the bundle names or carries.
        progress: Called with the name of each part before it runs.
        notebook: Where the executed notebook is kept as well, if anywhere.
        timeout_s: Most seconds one cell may take.

    Returns:
        The path of the HTML file.

    Raises:
        UsageError: Unknown template or parameter, wrong type, number that is not finite; nothing
            was run.
        BundleError: The bundle is damaged or hostile.
        CannotRunError: A cell failed; the page with what ran has been written, under a banner.
    """
    path = _one_path(bundle)
    found = find_template(template)
    values = check_parameters(found, _values(found, path, parameters, step, trust))
    opened = _opened(bundle)
    started = time.monotonic()
    execution = run_notebook(found.path, values, progress, timeout_s)
    seconds = time.monotonic() - started
    target = Path(output)
    _describe(execution, found, values, opened)
    page = write_page(execution.notebook, _about(execution.notebook, seconds))
    _write(target, page)
    if notebook is not None:
        _write(Path(notebook), _notebook_text(execution.notebook))
    if execution.interrupt is not None:
        raise execution.interrupt
    if execution.failed:
        raise _error(execution, target)
    return target


def _one_path(bundle: Any) -> Path:
    if isinstance(bundle, (list, tuple)):
        raise UsageError(
            f"A report is about one bundle, and {len(bundle)} were given, the first of them "
            f"{str(bundle[0])!r}. Make one report for each, or group them first: workbench triage"
        )
    return Path(getattr(bundle, "path", bundle))


def _values(
    template: Template,
    path: Path,
    parameters: Mapping[str, Any] | None,
    step: Any,
    trust: str | None,
) -> dict[str, Any]:
    values = dict(parameters or {})
    own = {
        "bundle": str(path.resolve()),
        "step": None if step is None else step_reference(step),
        "trust": trust,
    }
    for name, value in own.items():
        if value is None:
            continue
        if name in values and name != "bundle":
            raise UsageError(
                f"The parameter {name!r} was given twice, as {values[name]!r} and as {value!r}. "
                "Give it once, so that it is clear what the report says."
            )
        values[name] = value
    return values


def step_reference(step: Any) -> str:
    """How the report's own process finds a step: ``package.module:Name`` or ``file.py:Name``.

    Raises:
        UsageError: The object was not defined in a file.
    """
    if isinstance(step, str):
        return step
    kind = step if isinstance(step, type) else type(step)
    module = sys.modules.get(kind.__module__)
    source = getattr(module, "__file__", None)
    if source is None or "<locals>" in kind.__qualname__:
        raise UsageError(
            f"The step {kind.__qualname__!r} is not defined at the top of a file, so the report, "
            "which runs in a process of its own, cannot find it. Move it into a file and pass "
            "'file.py:Name'."
        )
    return f"{inspect.getfile(kind)}:{kind.__qualname__}"


def _opened(bundle: Any) -> Any:
    """The open bundle; also the check that it can be read, before anything is run."""
    from workbench.evidence import open_bundle

    return bundle if hasattr(bundle, "digest") else open_bundle(bundle)


def _describe(
    execution: Execution, template: Template, values: Mapping[str, Any], opened: Any
) -> None:
    """Write into the notebook how it was made, so that any later export says the same."""
    import torch

    from workbench.evidence import summary_facts, summary_lines

    path, digest = opened.path, opened.digest
    shown = {name: path.name if name == "bundle" else value for name, value in values.items()}
    listed = ", ".join(f"{name}={value!r}" for name, value in sorted(shown.items()))
    rows = [
        ["Bundle digest", digest],
        ["Template", f"{template.name}, {template.digest}"],
        ["Parameters", listed],
        ["Command", _command(template, shown, path.name)],
        ["Versions", f"nonfinite-workbench {__version__}, torch {torch.__version__}"],
        ["Device of this report", "cuda" if torch.cuda.is_available() else "cpu"],
    ]
    data = {
        "schema": "workbench.report/1",
        "bundle": {"name": path.name, "digest": digest},
        "template": {"name": template.name, "digest": template.digest},
        "parameters": shown,
        "versions": {"workbench": __version__, "torch": str(torch.__version__)},
        "complete": not execution.failed,
    }
    described: dict[str, Any] = {"about": {"rows": rows, "data": data}}
    if execution.failed:
        described["failure"] = {
            "text": f'cell "{execution.failed}" failed ({_short(execution.reason)}). '
            "Sections after it did not run.",
            # stands on the page where the first screen itself did not run
            "recorded": summary_lines(summary_facts(opened)),
            "anchor": f"cell-{slug(execution.failed)}",
        }
    execution.notebook.metadata["workbench"] = described


def _command(template: Template, shown: Mapping[str, Any], name: str) -> str:
    parts = ["workbench report", shlex.quote(name)]
    if template.name != "incident":
        parts.append(f"--template {shlex.quote(template.name)}")
    parts += [f"--{k} {shlex.quote(str(shown[k]))}" for k in ("step", "trust") if shown.get(k)]
    rest = {k: v for k, v in shown.items() if k not in ("bundle", "step", "trust")}
    parts += [f"-p {name} {shlex.quote(str(value))}" for name, value in sorted(rest.items())]
    return " ".join(parts)


def _short(text: str, width: int = 300) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[:width]} …"


def _about(notebook: Any, seconds: float) -> About:
    data = notebook.metadata["workbench"]["about"]
    now = datetime.datetime.now(tz=datetime.UTC)
    made = f"Made {now:%Y-%m-%d %H:%M:%S} UTC in {seconds:.0f} s."
    return About([(str(k), str(v)) for k, v in data["rows"]], data["data"], made)


def _notebook_text(notebook: Any) -> str:
    import nbformat

    text: str = nbformat.writes(notebook)
    jsonio.loads(text)
    return text


def _write(target: Path, text: str) -> None:
    """Write beside the target and rename, so that no reader ever sees half a file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        beside.write_text(text, encoding="utf-8", newline="\n")
        beside.replace(target)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise CannotRunError(
            f"The file {str(target)!r} cannot be written ({error}), so the result of this run is "
            "lost. Choose another place with -o."
        ) from error


def _error(execution: Execution, target: Path) -> WorkbenchError:
    kind = getattr(errors, execution.error, None)
    if not (isinstance(kind, type) and issubclass(kind, WorkbenchError)):
        kind = CannotRunError
    return kind(
        f'The report is incomplete: cell "{execution.failed}" failed '
        f"({_short(execution.reason)}). Sections after it did not run. "
        f"What ran, and why it stopped, is in {str(target)!r}."
    )
