"""Opening and reading a bundle: bounded, checked, and without running anything it names.

Opening, the ledger and every other text need no torch: it is loaded with the first tensor, so that
recorded facts are on screen before it.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from workbench.errors import BundleError, UsageError
from workbench.evidence.conditions import Conditions
from workbench.evidence.packed_names import PACK_KEY, logical_names
from workbench.evidence.paths import open_store
from workbench.evidence.pending import wait_for
from workbench.evidence.safetensors_header import DTYPES, Header
from workbench.evidence.schema import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    FirstBad,
    Manifest,
    check_name,
    decode_manifest,
    known_rank,
    strict_json,
)
from workbench.evidence.store import Store
from workbench.evidence.wording import command_line
from workbench.numerics import jsonio

if TYPE_CHECKING:
    from torch import Tensor

    from workbench.evidence.pytree import Resolve

Depth = Literal["size", "open", "digest"]
"""How much of each file ``Bundle.verify`` looks at."""

MAX_TEXT_BYTES: Final = 1 << 30
_PIECE: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class FileCheck:
    """How one listed file was found.

    Attributes:
        rel: Its name.
        status: ``"ok"``, ``"missing"``, ``"size"``, ``"unreadable"`` or ``"digest"``.
        size: Bytes listed.
        found: Bytes found, or None.
    """

    rel: str
    status: str
    size: int
    found: int | None


def open_bundle(path: str | os.PathLike[str]) -> Bundle:
    """Open a bundle: a directory, or the same directory in an uncompressed zip.

    Reads the manifest only.

    Raises:
        UsageError: Nothing is there, or a folder that is no bundle.
        BundleError: A bundle that is damaged, hostile or newer.
    """
    return Bundle(path)


class Bundle:
    """The sealed evidence of one incident.

    Attributes:
        path: Where it is.
        manifest: What it says about itself.
        manifest_bytes: The bytes of its ``manifest.json``.
        digest: ``"sha256:…"`` of the manifest, and through its file table of everything in it.
    """

    def __init__(self, path: str | os.PathLike[str], store: Store | None = None) -> None:
        """Read the manifest; see ``open_bundle``. ``store`` is where its files lie, if not here."""
        if not isinstance(path, str | os.PathLike):
            raise UsageError(
                f"{path!r:.80} is no path of a bundle, so nothing was opened. Give the path of a "
                "bundle's directory or zip, or a Bundle where one is taken."
            )
        self.path = Path(path)
        wait_for(self.path)  # where a recorder of this very process is still writing it
        self._store = open_store(self.path) if store is None else store
        self.manifest_bytes = self._store.read_small(MANIFEST, MAX_MANIFEST_BYTES)
        self.manifest: Manifest = decode_manifest(self.manifest_bytes, str(self.path))
        self.digest = "sha256:" + hashlib.sha256(self.manifest_bytes).hexdigest()
        self._checked: set[str] = set()

    def __repr__(self) -> str:
        """Path, kind and fingerprint."""
        return f"<Bundle {str(self.path)!r} {self.kind} {self.fingerprint}>"

    @property
    def id(self) -> str:
        """Random identifier."""
        return self.manifest.id

    @property
    def kind(self) -> str:
        """``nonfinite``, ``alert`` or ``captured``."""
        return self.manifest.kind

    @property
    def fingerprint(self) -> str:
        """``"NF-xxxxxx"``."""
        return self.manifest.fingerprint

    @property
    def first_bad(self) -> FirstBad | None:
        """What was caught."""
        return self.manifest.first_bad

    @property
    def conditions(self) -> Conditions:
        """The original conditions."""
        return self.manifest.conditions

    @property
    def completeness(self) -> dict[str, str]:
        """Per recovery goal, ``"complete"`` or what is missing and why."""
        return self.manifest.completeness

    @property
    def sealed(self) -> bool:
        """Whether writing came to its end."""
        return self.manifest.sealed

    @property
    def findings_dir(self) -> Path:
        """The sibling directory that results go to.

        Raises:
            BundleError: It, or something in it, is a link: what that leads to is not the bundle's.
        """
        folder = self.path.with_name(self.path.name.removesuffix(".zip") + ".findings")
        inside = folder.iterdir() if folder.is_dir() and not folder.is_symlink() else ()
        for path in (folder, *inside):
            if path.is_symlink():
                raise BundleError(
                    f"{str(path)!r} is a link where results of a bundle lie. Whoever made the "
                    "bundle may have made the link, too, and results would be read from and "
                    "written to wherever it leads, so it is not followed. Remove the link; the "
                    "bundle itself is not touched by this."
                )
        return folder

    def files(self) -> list[str]:
        """Names of all listed files."""
        return sorted(self.manifest.files)

    def has(self, rel: str) -> bool:
        """Whether a file is listed."""
        return rel in self.manifest.files

    def json(self, rel: str) -> Any:
        """A JSON file, checked against its digest.

        Raises:
            BundleError: Not listed, damaged, or not strict JSON.
        """
        return strict_json(self.read_bytes(rel), rel, str(self.path))

    def text(self, rel: str) -> str:
        """A text file, checked against its digest."""
        return self.read_bytes(rel).decode("utf-8", "replace")

    def lines(self, rel: str) -> list[Any]:
        """A file of JSON lines."""
        return jsonio.load_lines(self.read_bytes(rel))

    def ledger(self) -> list[dict[str, Any]]:
        """The L1 records kept, oldest first; a rank that no run has is None."""
        records = self.lines("ledger.jsonl") if self.has("ledger.jsonl") else []
        if not all(isinstance(record, dict) for record in records):
            raise BundleError(
                f"The ledger of {str(self.path)!r} holds a line that is no record, so none of it "
                "is shown. It was not written by a recorder; get a fresh copy of the bundle."
            )
        return [known_rank(record) for record in records]

    def evidence(self) -> dict[str, Any]:
        """The L2 record; empty when none was written."""
        return self._table("evidence.json")

    def environment(self) -> dict[str, Any]:
        """The environment it was recorded in; empty when none was written."""
        return self._table("environment.json")

    def tensors(self, rel: str, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        """Tensors of a safetensors file, on the CPU, with strides and aliasing restored.

        The file's digest is checked the first time anything of it is read.

        Args:
            rel: File name.
            names: Only these; all when None.

        Raises:
            BundleError: Not listed or damaged.
        """
        from workbench.evidence.packing import unpack_tensors
        from workbench.evidence.safetensors_file import SafetensorsFile

        self._check(rel)
        with self._open(rel) as file:
            header = SafetensorsFile(file, self._entry(rel).size, rel)
            specs = self._specs(header, rel)
            wanted = logical_names(header.names(), specs) if names is None else list(names)
            return unpack_tensors(header.read, specs, wanted)

    def tensor_index(self, rel: str) -> dict[str, dict[str, Any]]:
        """``{name: {"dtype", "shape"}}`` of a safetensors file; reads its header only."""
        with self._open(rel) as file:
            header = Header(file, self._entry(rel).size, rel)
            specs = self._specs(header, rel)
            found: dict[str, dict[str, Any]] = {}
            for name in logical_names(header.entries, specs):
                spec = specs.get(name, {})
                stored = header.entries.get(name)
                found[name] = {
                    "dtype": spec.get("dtype") or (DTYPES[stored[0]] if stored else None),
                    "shape": spec.get("shape") or (list(stored[1]) if stored else None),
                }
            return found

    def tensor_specs(self, rel: str) -> dict[str, Any]:
        """What the file keeps about its tensors beyond their values: strides, aliasing, layout."""
        with self._open(rel) as file:
            return self._specs(Header(file, self._entry(rel).size, rel), rel)

    def pytree(self, stem: str, resolve: Resolve | None = None) -> Any:
        """A tree from ``<stem>.json`` and ``<stem>.safetensors``.

        Args:
            stem: Name without ending.
            resolve: See ``pytree.unflatten``.
        """
        from workbench.evidence.pytree import unflatten

        rel = f"{stem}.safetensors"
        return unflatten(
            self.json(f"{stem}.json"), self.tensors(rel) if self.has(rel) else {}, resolve
        )

    def read_bytes(self, rel: str) -> bytes:
        """A whole file, checked against its size and digest.

        Raises:
            BundleError: Not listed, damaged, or too large to be a text.
        """
        entry = self._entry(rel)
        if entry.size > MAX_TEXT_BYTES:
            raise BundleError(
                f"{rel!r} of {str(self.path)!r} is listed with {entry.size} bytes, too large to be "
                "a text, so it was not read. Get a fresh copy; the other files can still be used."
            )
        with self._open(rel) as file:
            data = file.read(entry.size + 1)
        if len(data) != entry.size or hashlib.sha256(data).hexdigest() != entry.sha256:
            raise self._damaged(rel)
        return data

    def verify(self, depth: Depth = "digest") -> list[FileCheck]:
        """Check every listed file, in the manifest's order.

        Args:
            depth: ``"size"`` looks at presence and size, ``"open"`` opens each file too, and
                ``"digest"`` reads all of it.
        """
        return [self._verify(rel, depth) for rel in self.manifest.files]

    def pieces(self, rel: str) -> Iterator[bytes]:
        """The bytes of a file, piece by piece; its digest is checked after the last one.

        Raises:
            BundleError: Not listed or damaged.
        """
        digest = hashlib.sha256()
        with self._open(rel) as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
                yield piece
        if digest.hexdigest() != self._entry(rel).sha256:
            raise self._damaged(rel)

    def _verify(self, rel: str, depth: Depth) -> FileCheck:
        entry = self.manifest.files[rel]
        found = self._store.size(rel)
        if found is None:
            return FileCheck(rel, "missing", entry.size, None)
        if found != entry.size:
            return FileCheck(rel, "size", entry.size, found)
        if depth == "size":
            return FileCheck(rel, "ok", entry.size, found)
        try:
            with self._open(rel) as file:
                file.read(1)
        except (BundleError, OSError):
            return FileCheck(rel, "unreadable", entry.size, found)
        if depth == "open":
            return FileCheck(rel, "ok", entry.size, found)
        try:
            self._checked.discard(rel)
            self._check(rel)
        except BundleError:
            return FileCheck(rel, "digest", entry.size, found)
        return FileCheck(rel, "ok", entry.size, found)

    def _check(self, rel: str) -> None:
        if rel in self._checked:
            return
        for _ in self.pieces(rel):
            pass
        self._checked.add(rel)

    def packed_findings(self) -> list[str]:
        """Names below ``findings/`` that ``pack`` took along; they are results, not evidence."""
        return self._store.names("findings/")

    def read_packed_findings(self, rel: str) -> bytes:
        """A result that ``pack`` took along. No digest of the bundle covers it."""
        return self._store.read_small(check_name(rel), MAX_TEXT_BYTES)

    def _entry(self, rel: str) -> Any:
        entry = self.manifest.files.get(rel)
        if entry is None:
            reason = self.manifest.dropped.get(rel)
            why = f" It was left out: {reason}." if reason else ""
            raise BundleError(
                f"The bundle {str(self.path)!r} has no file {rel[:120]!r}.{why} "
                f"`{command_line('inspect', self.path)}` lists what it has."
            )
        return entry

    def _open(self, rel: str) -> io.RawIOBase:
        entry = self._entry(rel)
        check_name(rel)
        found = self._store.size(rel)
        if found != entry.size:
            raise self._damaged(rel)
        return self._store.open(rel, entry.size)

    def _specs(self, header: Header, rel: str) -> dict[str, Any]:
        text = header.metadata.get(PACK_KEY)
        specs = jsonio.loads(text) if text else {}
        if not isinstance(specs, dict) or not all(isinstance(s, dict) for s in specs.values()):
            raise self._damaged(rel)
        return specs

    def _table(self, rel: str) -> dict[str, Any]:
        found = self.json(rel) if self.has(rel) else {}
        if not isinstance(found, dict):
            raise BundleError(
                f"{rel!r} of {str(self.path)!r} is not a JSON object, so nothing of it is shown. "
                "Get a fresh copy; the other files can still be used."
            )
        return found

    def _damaged(self, rel: str) -> BundleError:
        return BundleError(
            f"{rel} does not match its digest in {str(self.path)!r}. Nothing from it is shown, "
            "since it is not what was recorded. The other files can still be used; "
            f"`{command_line('verify', self.path)}` checks each of them."
        )
