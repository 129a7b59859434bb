"""`workbench.findings/1`: claims with their evidence, their conditions and their limits.

Reading and saving them loads no torch; ``document`` makes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import BundleError
from workbench.evidence.wording import command_line
from workbench.numerics import jsonio

if TYPE_CHECKING:
    from workbench.evidence import Bundle, Table

SCHEMA = "workbench.findings/1"
_MOST_BYTES = 64 << 20
_PACKED = "findings/findings.json"
_EVENTS = "trace/events.json"


@dataclass
class Findings:
    """The findings of one incident.

    Attributes:
        data: The ``workbench.findings/1`` object as plain data.
        events: Event table of the traced replay, or None when there was none.
        layers: Range table of the traced replay, or None.
    """

    data: dict[str, Any]
    events: Table | None = None
    layers: Table | None = None

    @property
    def summary(self) -> list[str]:
        """The five lines."""
        return list(self.data["summary"])

    @property
    def replayed(self) -> bool:
        """Whether a replay stands behind them."""
        return bool((self.data.get("reproduction") or {}).get("verdict"))

    @property
    def origins(self) -> list[dict[str, Any]]:
        """The origins, first in time first."""
        return list(self.data["origins"])

    def to_json(self, *, indent: int | None = None) -> str:
        """Encode as strict JSON; non-finite numbers are tagged."""
        return jsonio.dumps(self.data, indent=indent)

    def _repr_html_(self) -> str:
        from html import escape

        lines = "".join(f"<div>{escape(line)}</div>" for line in self.summary)
        return f'<div class="wb-findings" style="white-space:pre-wrap">{lines}</div>'

    def save(self, directory: Path) -> Path:
        """Write ``findings.json`` and the trace's tables beside a bundle; returns the directory."""
        from workbench.evidence.made import write_made
        from workbench.evidence.table import write_table

        directory.mkdir(parents=True, exist_ok=True)
        if self.events is not None and self.layers is not None:
            write_table(directory / "trace", "events", self.events)
            write_table(directory / "trace", "layers", self.layers)
        part = directory / ".findings.json.part"
        part.write_text(self.to_json(indent=1) + "\n", encoding="utf-8")
        part.replace(directory / "findings.json")
        write_made(directory)
        return directory

    @classmethod
    def load(cls, bundle: Bundle, *, tables: bool = True) -> Findings | None:
        """Read the findings saved beside a bundle, else those that were packed with it.

        Args:
            bundle: The bundle.
            tables: Whether the trace's tables are read too, which loads torch.

        Returns:
            None when there are none, or when they are about other bytes than this bundle's.

        Raises:
            BundleError: The file is there but is not a findings document.
        """
        path = bundle.findings_dir / "findings.json"
        beside = path.is_file()
        if not beside and _PACKED not in bundle.packed_findings():
            return None
        if beside and path.stat().st_size > _MOST_BYTES:
            raise BundleError(
                f"The file '{path}' has more than {_MOST_BYTES >> 20} MiB, and no findings have, "
                f"so it was not read. `{command_line('diagnose', bundle.path)}` writes it anew."
            )
        data = jsonio.loads(path.read_bytes() if beside else bundle.read_packed_findings(_PACKED))
        about = data.get("bundle") if isinstance(data, dict) else None
        if not isinstance(about, dict) or data.get("schema") != SCHEMA:
            raise BundleError(
                f"The file '{path}' is not a '{SCHEMA}' document, so it cannot be shown beside "
                f"the bundle. `{command_line('diagnose', bundle.path)}` writes it anew."
            )
        if about.get("digest") != bundle.digest:
            return None
        found = cls(data)
        if tables:
            found._load_tables(bundle, beside)
        return found

    def _load_tables(self, bundle: Bundle, beside: bool) -> None:
        packed = not beside and f"findings/{_EVENTS}" in bundle.packed_findings()
        if not packed and not (beside and (bundle.findings_dir / _EVENTS).is_file()):
            return
        from workbench.evidence.table import read_table

        if packed:
            self.events = read_table(bundle, "findings/trace/events")
            self.layers = read_table(bundle, "findings/trace/layers")
        else:
            self.events = read_table(bundle.findings_dir / "trace", "events")
            self.layers = read_table(bundle.findings_dir / "trace", "layers")
