"""Results of sweeps, ladders and the like that lie beside the bundle, labelled as saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from workbench.errors import WorkbenchError
from workbench.numerics import jsonio
from workbench.widgets.findings import mapping
from workbench.widgets.saved import day_of
from workbench.widgets.state import Result

MAX_BYTES: Final = 64 << 20
_FILES: Final = {
    "sweep": ("sweep/sweep.json", "workbench.sweep/1"),
    "minimal": ("sweep/minimal_conditions.json", "workbench.minimal/1"),
    "ladder": ("ladder/ladder.json", "workbench.ladder/1"),
    "minimize": ("minimize/minimize.json", "workbench.minimize/1"),
}


def read_results(bundle: Any) -> dict[str, Result]:
    """What was left in the findings folder, by name.

    What is damaged, of another schema or about other bytes than this bundle's is left out.
    """
    found = {}
    for name, (rel, schema) in _FILES.items():
        path = Path(bundle.findings_dir) / rel
        data = _read(path)
        if data.get("schema") != schema or not _belongs(data, bundle.digest):
            continue
        found[name] = Result(name, data, f"Saved on {day_of(path)}, not run here.")
    return found


def _read(path: Path) -> Any:
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return {}
        return mapping(jsonio.loads(path.read_bytes()))
    except (OSError, WorkbenchError):
        return {}


def _belongs(data: Any, digest: str) -> bool:
    named = data.get("bundle")
    named = mapping(named).get("digest") if not isinstance(named, str) else named
    return named is None or named == digest
