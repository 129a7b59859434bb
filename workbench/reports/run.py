"""One command from a bundle to a file: check, run, export, and say what did not work."""

from __future__ import annotations

import datetime
import inspect
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import errors
from workbench.errors import CannotRunError, UsageError, WorkbenchError
from workbench.numerics import jsonio
from workbench.reports.described import (
    BUNDLES,
    FOLDERS,
    describe,
    environment_digest,
    inputs_digest,
)
from workbench.reports.execute import Execution, run_notebook
from workbench.reports.page import About, write_page
from workbench.reports.templates import Template, check_parameters, find_template

if TYPE_CHECKING:
    from workbench.evidence import Bundle

__all__ = ["Prepared", "environment_digest", "prepare", "report", "step_reference", "write"]


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
    """Make one HTML file of an incident, or of a comparison of two.

    Args:
        bundle: A bundle or its path; two of them for a template that compares; None for one that
            is about something else.
        template: Name of a template, or the path of one's own: a notebook, a percent script, or a
            folder with one of them.
        output: Where the HTML goes; it is replaced only by a complete file.
        parameters: Values for the template's parameters.
        step: Code of the training step, ``package.module:Name`` or ``file.py:Name``, or the
            object itself when it comes from a file. Runs code; without it the saved findings or
            the record are shown.
        trust: ``import`` or ``source``, to use the code the bundle names or carries.
        progress: Called with a sentence as each part begins, and by the parts themselves.
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
    prepared = prepare(bundle, template, parameters, step, trust)
    found = prepared.template
    started = time.monotonic()
    execution = run_notebook(found.notebook(), prepared.values, progress, timeout_s, found.modules)
    seconds = time.monotonic() - started
    target = Path(output)
    describe(execution, found, prepared.values, prepared.bundles)
    write(target, write_page(execution.notebook, _about(execution.notebook, seconds)))
    if notebook is not None:
        write(Path(notebook), _notebook_text(execution.notebook))
    if execution.interrupt is not None:
        raise execution.interrupt
    if execution.failed:
        raise _error(execution, target)
    return target


@dataclass(frozen=True)
class Prepared:
    """A report that may run: its template, checked parameters and readable bundles.

    Attributes:
        template: The template.
        values: Its parameters.
        bundles: The bundles, open; one, or two where the template compares.
    """

    template: Template
    values: dict[str, Any]
    bundles: tuple[Bundle, ...]

    @property
    def inputs(self) -> str:
        """Digest of all it is made from."""
        return inputs_digest(self.template, self.values, self.bundles)


def prepare(
    bundle: Any,
    template: str | Path = "incident",
    parameters: Mapping[str, Any] | None = None,
    step: Any = None,
    trust: str | None = None,
) -> Prepared:
    """Check all that ``report`` takes; nothing is run and no code is loaded.

    Raises:
        UsageError: Unknown template or parameter, wrong type, or not as many bundles as the
            template takes.
        BundleError: A bundle is damaged or hostile.
    """
    found = find_template(template)
    given = list(bundle) if isinstance(bundle, (list, tuple)) else [bundle]
    given = [one for one in given if one is not None]
    other = (parameters or {}).get("other")
    if other and len(given) == 1 and found.bundles > 1:
        given.append(other)
    if len(given) != found.bundles:
        raise UsageError(_wrong_count(found, given))
    paths = [Path(getattr(one, "path", one)) for one in given]
    values = check_parameters(found, _values(found, paths, parameters, step, trust))
    return Prepared(found, values, tuple(_opened(one) for one in given))


def _wrong_count(template: Template, given: Sequence[Any]) -> str:
    if not template.bundles:
        return (
            f"A report from the template {template.name!r} is about no bundle, and {len(given)} "
            f"were given ({str(given[0])!r}). Give what it is about with -p: "
            f"{', '.join(sorted(template.parameters.keys() & set(FOLDERS))) or 'its parameters'}."
        )
    first = f", the first of them {str(given[0])!r}" if given else ""
    if template.bundles > 1:
        return (
            f"A report from the template {template.name!r} compares {template.bundles} bundles, "
            f"and it was given {len(given)}{first}. Give both, as two words or as a list."
        )
    return (
        f"A report is about one bundle, and {len(given)} were given{first}. Make one for each, "
        "into a folder: workbench report BUNDLE BUNDLE -o reports. To compare two, use the "
        "template 'incident-comparison'."
    )


def _values(
    template: Template,
    paths: Sequence[Path],
    parameters: Mapping[str, Any] | None,
    step: Any,
    trust: str | None,
) -> dict[str, Any]:
    values = dict(parameters or {})
    own = {
        **{n: str(path.resolve()) for n, path in zip(BUNDLES, paths, strict=False)},
        "step": None if step is None else step_reference(step),
        "trust": trust,
    }
    for name, value in own.items():
        if value is None:
            continue
        if name in values and name not in BUNDLES:
            raise UsageError(
                f"The parameter {name!r} was given twice, as {values[name]!r} and as {value!r}. "
                "Give it once, so that it is clear what the report says."
            )
        values[name] = value
    for name in FOLDERS & values.keys():
        if values[name] and name in template.parameters:
            values[name] = str(Path(str(values[name])).resolve())  # the report has its own process
    if "step" in values and values["step"] and "step" not in template.parameters:
        raise UsageError(
            f"The template {template.name!r} runs no code of a step, and the step "
            f"{values['step']!r} was given. Leave it out, or use a template that replays."
        )
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


def write(target: Path, text: str) -> None:
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
        f"The report is incomplete: {execution.sentence} "
        f"What ran, and why it stopped, is in {str(target)!r}."
    )
