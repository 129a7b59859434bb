"""How a report was made: what its page says of it, for readers and for programs."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import __version__
from workbench.numerics import jsonio
from workbench.reports.blocks import MIMETYPE
from workbench.reports.execute import Execution
from workbench.reports.page import slug
from workbench.reports.templates import Template

if TYPE_CHECKING:
    from workbench.evidence import Bundle

BUNDLES = ("bundle", "other")
"""Parameters that hold the path of a bundle, in the order bundles are given."""
FOLDERS = frozenset({"directory", "runs"})
"""Parameters that hold the path of a folder; a page says its name alone."""
STORE = "store"
"""The parameter that holds a folder or a URL; of a folder a page says its name alone."""


def describe(
    execution: Execution, template: Template, values: Mapping[str, Any], opened: Sequence[Bundle]
) -> None:
    """Write into the notebook how it was made, so that any later export says the same.

    Args:
        execution: The run.
        template: Its template.
        values: Its parameters.
        opened: The bundles it is about: none, one or two.
    """
    import torch

    from workbench.evidence import environment, summary_facts, summary_lines
    from workbench.evidence.remote import is_local

    here = environment()
    first = opened[0] if opened else None
    paths = FOLDERS.union(BUNDLES)
    shown = {k: Path(str(v)).name if k in paths and v else v for k, v in values.items()}
    if is_local(str(shown.get(STORE) or "://")):
        shown[STORE] = Path(str(shown[STORE])).name
    named = [{"name": bundle.path.name, "digest": bundle.digest} for bundle in opened]
    run = command(template, shown)
    device = _device(here)
    digests = [[f"Digest of {b['name']}", b["digest"]] for b in named]
    rows = [
        *([["Bundle digest", named[0]["digest"]]] if len(named) == 1 else digests),
        ["Template", f"{template.name}, {template.digest}"],
        ["Parameters", ", ".join(f"{name}={value!r}" for name, value in sorted(shown.items()))],
        ["Command", run],
        ["Versions", f"nonfinite-workbench {__version__}, torch {torch.__version__}"],
        ["Device of this report", device],
    ]
    data = {
        "schema": "workbench.report/1",
        "bundle": named[0] if named else None,
        "bundles": named,
        "template": {"name": template.name, "digest": template.digest},
        "parameters": shown,
        "inputs": inputs_digest(template, values, opened),
        "versions": {"workbench": __version__, "torch": str(torch.__version__)},
        "conditions": {} if first is None else first.conditions.as_dict(),
        "device": device,
        "environment": environment_digest(here),
        "command": run,
        "headline": _headline(execution.notebook),
        "complete": not execution.failed,
    }
    described: dict[str, Any] = {"about": {"rows": rows, "data": data}}
    if execution.failed:
        described["failure"] = {
            "text": execution.sentence,
            # stands on the page where the first screen itself did not run
            "recorded": [] if first is None else summary_lines(summary_facts(first)),
            "anchor": f"cell-{slug(execution.failed)}",
        }
    execution.notebook.metadata["workbench"] = described


def inputs_digest(template: Template, values: Mapping[str, Any], opened: Sequence[Bundle]) -> str:
    """``sha256:…`` of all that a report is made from; a page with the same one need not be made.

    Bundles by digest, wherever they lie; the template by digest; the other parameters; findings
    and notes beside the bundles; the file of the step's code; the version of this package.
    """
    known = {name: value for name, value in values.items() if name not in BUNDLES}
    step = str(known.get("step") or "")
    folders = {name: known.pop(name) for name in FOLDERS & known.keys()}
    code = Path(step.rpartition(":")[0]) if ".py:" in step else None
    if code is not None:
        known["step"] = f"{code.name}:{step.rpartition(':')[2]}"
    beside = [
        _digest(bundle.findings_dir / name)
        for bundle in opened
        for name in ("findings.json", "notes.json")
    ]
    beside += [
        _digest(path)
        for _, folder in sorted(folders.items())
        if folder
        for pattern in ("workbench-checkpoints.json", "*.ledger.jsonl")
        for path in sorted(Path(str(folder)).glob(pattern))
    ]
    identity = {
        "bundles": [bundle.digest for bundle in opened],
        "template": template.digest,
        "parameters": known,
        "beside": beside,
        "code": None if code is None else _digest(code),
        "version": __version__,
    }
    return f"sha256:{hashlib.sha256(jsonio.dumps(identity).encode()).hexdigest()}"


def _digest(path: Path) -> str | None:
    try:
        if not path.is_file():  # a pipe would be waited for
            return None
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def environment_digest(environment: Mapping[str, Any]) -> str:
    """``sha256:…`` of what decides how numbers come out: all but the host's name."""
    kept = {key: value for key, value in environment.items() if key != "host"}
    return f"sha256:{hashlib.sha256(jsonio.dumps(kept).encode()).hexdigest()}"


def command(template: Template, shown: Mapping[str, Any]) -> str:
    """The command that makes the report again, with bundles by their names."""
    names = [str(shown[name]) for name in BUNDLES if shown.get(name)]
    parts = ["workbench report", *map(shlex.quote, names)]
    if template.modules:
        parts.append(f"--template {shlex.quote(template.path.name)}")
    elif template.name != "incident":
        parts.append(f"--template {template.name}")
    parts += [f"--{k} {shlex.quote(str(shown[k]))}" for k in ("step", "trust") if shown.get(k)]
    rest = {k: v for k, v in shown.items() if k not in (*BUNDLES, "step", "trust")}
    parts += [f"-p {name} {shlex.quote(str(value))}" for name, value in sorted(rest.items())]
    return " ".join(parts)


def _headline(notebook: Any) -> str:
    """The sentence under the title, for a list of reports."""
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
    sections = (output.get("data", {}).get(MIMETYPE) for output in outputs)
    titles = (
        block
        for section in sections
        if section
        for block in section["blocks"]
        if block["type"] == "title"
    )
    first: dict[str, Any] = next(titles, {})
    return str(first.get("headline", ""))


def _device(environment: Mapping[str, Any]) -> str:
    names = [str(device.get("name")) for device in environment.get("devices") or []]
    return ", ".join(names) or str(environment.get("cpu", {}).get("model") or "cpu")
