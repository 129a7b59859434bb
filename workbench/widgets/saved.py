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
    """The state with saved findings, where they belong to this very bundle."""
    directory = Path(bundle.findings_dir)
    data, when = _findings(directory / "findings.json", bundle.digest)
    if data is not None:
        state = replace(state, findings=data, findings_from=f"From a diagnosis saved on {when}.")
    return state.looking(tab="timeline" if data is None else "origin")


def saved_layers(bundle: Any) -> Any:
    """The layers table that a diagnosis left beside the bundle, or None."""
    from workbench.charts.loss_rows import with_loss
    from workbench.evidence import read_table

    directory = _trace(bundle)
    try:
        if not (directory / "layers.json").is_file():
            return None
        layers = read_table(directory, "layers")
        if not (directory / "events.json").is_file():
            return layers
        return with_loss(layers, read_table(directory, "events"))
    except (OSError, WorkbenchError):
        return None


def traced_on(bundle: Any) -> str:
    """The day of that table."""
    return day_of(_trace(bundle) / "layers.json")


def _trace(bundle: Any) -> Path:
    return Path(bundle.findings_dir) / "trace"


def _findings(path: Path, digest: str) -> tuple[Any, str]:
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return None, ""
        data = jsonio.loads(path.read_bytes())
    except (OSError, WorkbenchError):
        return None, ""
    of = mapping(mapping(data).get("bundle")).get("digest")
    return (data, day_of(path)) if of == digest else (None, "")


def day_of(path: Path) -> str:
    """The day a file was written, in UTC."""
    when = datetime.datetime.fromtimestamp(path.stat().st_mtime, tz=datetime.UTC)
    return when.strftime("%d %b %Y").lstrip("0")
