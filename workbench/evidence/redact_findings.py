"""Findings for a redacted bundle: the claims stay, what quotes a sample goes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from workbench.errors import BundleError
from workbench.evidence.made import NAME as MADE
from workbench.evidence.made import read_made
from workbench.evidence.reader import Bundle, open_bundle
from workbench.evidence.sample_values import SampleValues, rounded, rounded_array
from workbench.evidence.scrub import scrub_tree
from workbench.evidence.table import Table, read_table, write_table
from workbench.numerics import jsonio

_SCHEMA: Final = "workbench.findings/1"
_TABLES: Final = ("events", "layers")
_KEPT: Final = (
    "schema first_bad reproduction origins contributors chain counterfactuals contamination "
    "absorbed step_order alerts summary limits answers ranks"
).split()


def redact_findings(bundle: Bundle, copy: Path, values: SampleValues) -> bool:
    """Write the findings of a bundle beside its redacted copy.

    Args:
        bundle: The original.
        copy: The copy.
        values: What the batch holds.

    Returns:
        Whether there were findings of exactly this bundle.
    """
    found = _load(bundle)
    if found is None:
        return False
    target = open_bundle(copy)
    data = {key: value for key, value in found.items() if key in _KEPT}
    ranks = data.get("ranks")
    for row in ranks.get("ranks") or [] if isinstance(ranks, dict) else []:
        if isinstance(row, dict):
            row["path"] = None  # where it lay on the machine it was diagnosed on
    data = rounded(values.without_tree(data, whole=_about_the_batch(found)))
    data["first_bad"] = None if target.first_bad is None else target.first_bad.as_dict()
    data["bundle"] = {
        "id": target.id,
        "digest": target.digest,
        "kind": target.kind,
        "redacted_from": bundle.digest,
    }
    limits = [str(limit) for limit in data.get("limits") or []]
    origin = (
        f"These findings were made from the bundle {bundle.digest}, of which this is a redacted "
        "copy: they cannot be made again from it."
    )
    data["limits"] = [
        *limits,
        origin,
    ]
    folder = target.findings_dir
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "findings.json").write_text(jsonio.dumps(data, indent=1) + "\n", encoding="utf-8")
    made = read_made(bundle)
    if made:
        (folder / MADE).write_text(jsonio.dumps(scrub_tree(made), indent=1) + "\n", "ascii")
    for name in _TABLES:
        table = _table(bundle, name)
        if table is not None:
            write_table(folder / "trace", name, _redacted(table, values))
    return True


def _load(bundle: Bundle) -> dict[str, Any] | None:
    path = bundle.findings_dir / "findings.json"
    try:
        packed = "findings/findings.json" in bundle.packed_findings()
        text = path.read_bytes() if path.is_file() else b""
        text = text or (bundle.read_packed_findings("findings/findings.json") if packed else b"")
        data = jsonio.loads(text) if text else None
    except (OSError, BundleError):
        return None
    if not isinstance(data, dict) or data.get("schema") != _SCHEMA:
        return None
    named = data.get("bundle")
    same = isinstance(named, Mapping) and named.get("digest") == bundle.digest
    return data if same else None


def _table(bundle: Bundle, name: str) -> Table | None:
    folder = bundle.findings_dir / "trace"
    try:
        if (folder / f"{name}.json").is_file():
            return read_table(folder, name)
        return read_table(bundle, f"findings/trace/{name}")
    except BundleError:
        return None


def _redacted(table: Table, values: SampleValues) -> Table:
    columns = {
        name: (rounded_array(column) if column.dtype.kind == "f" else column)
        if isinstance(column, np.ndarray)
        else rounded(values.without_tree(column))
        for name, column in table.columns.items()
    }
    return Table(columns, rounded(values.without_tree(table.attrs)))


def _about_the_batch(findings: Mapping[str, Any]) -> bool:
    """Whether sentences may quote whole numbers of the batch, such as a label out of range."""
    bad = findings.get("first_bad")
    origins = findings.get("origins")
    rows = [o for o in origins if isinstance(o, Mapping)] if isinstance(origins, list) else []
    stages = [bad.get("stage")] if isinstance(bad, Mapping) else []
    stages += [row.get("stage") for row in rows]
    causes = " ".join(str(row.get("cause")) for row in rows)
    return "input" in stages or any(word in causes for word in ("batch", "label", "target"))
