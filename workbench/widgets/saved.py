"""What an earlier diagnosis or replay left beside the bundle, labelled as saved."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.errors import WorkbenchError
from workbench.numerics import jsonio
from workbench.widgets.findings import mapping
from workbench.widgets.state import State

MAX_BYTES = 64 << 20


def read_saved(bundle: Any, state: State) -> State:
    """The state with saved findings and layers, where they belong to this very bundle."""
    directory = Path(bundle.findings_dir)
    data, when = _findings(directory / "findings.json", bundle.digest)
    if data is not None:
        state = replace(state, findings=data, findings_from=f"From a diagnosis saved on {when}.")
    layers, traced = _layers(directory / "trace")
    if layers is not None and data is not None:
        said = f"From the replay saved on {traced}, not run here."
        state = replace(state, saved_layers=layers, saved_from=said)
    tab = "origin" if data is not None else ("ranges" if layers is not None else "timeline")
    return state.looking(tab=tab)


def saved_layers(bundle: Any) -> Any:
    """The layers table beside the bundle, or None."""
    return _layers(Path(bundle.findings_dir) / "trace")[0]


def _findings(path: Path, digest: str) -> tuple[Any, str]:
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return None, ""
        data = jsonio.loads(path.read_bytes())
    except (OSError, WorkbenchError):
        return None, ""
    of = mapping(mapping(data).get("bundle")).get("digest")
    return (data, _date(path)) if of == digest else (None, "")


def _layers(directory: Path) -> tuple[Any, str]:
    from workbench.evidence import read_table

    try:
        if not (directory / "layers.json").is_file():
            return None, ""
        return read_table(directory, "layers"), _date(directory / "layers.json")
    except (OSError, WorkbenchError):
        return None, ""


def _date(path: Path) -> str:
    when = datetime.datetime.fromtimestamp(path.stat().st_mtime, tz=datetime.UTC)
    return when.strftime("%d %b %Y").lstrip("0")
