"""Packing a bundle, and what was found out about it, into one file."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Final

from workbench.errors import BundleError, UsageError
from workbench.evidence.reader import Bundle
from workbench.evidence.schema import MANIFEST, check_name

FINDINGS: Final = "findings/"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the same bundle gives the same zip
_PIECE: Final = 8 << 20


def pack(bundle: Bundle, out: str | os.PathLike[str], *, findings: bool = True) -> Path:
    """Pack a bundle into one uncompressed zip; each file is checked against its digest on the way.

    Args:
        bundle: An open bundle.
        out: The zip to write.
        findings: Take the sibling findings directory along, as ``findings/…``, so that whoever has
            no code sees the results too.

    Returns:
        The zip's path.

    Raises:
        BundleError: A file that does not match the manifest.
        UsageError: ``out`` exists already.
    """
    target = Path(out)
    if os.path.lexists(target):
        raise UsageError(
            f"{str(target)!r} exists already. A packed bundle is evidence and is not overwritten; "
            "choose another name."
        )
    part = target.with_name(f".{target.name}.part")
    part.unlink(missing_ok=True)
    try:
        with zipfile.ZipFile(part, "x", zipfile.ZIP_STORED, allowZip64=True) as archive:
            _write(archive, MANIFEST, bundle.manifest_bytes)
            for rel in bundle.files():
                info = _info(rel, bundle.manifest.files[rel].size)
                with archive.open(info, "w", force_zip64=True) as file:
                    for piece in bundle.pieces(rel):
                        file.write(piece)
            if findings:
                _add_findings(archive, bundle)
        part.rename(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return target


def _add_findings(archive: zipfile.ZipFile, bundle: Bundle) -> None:
    root = bundle.findings_dir
    if not root.is_dir():
        return
    for folder, subfolders, names in os.walk(root):
        subfolders.sort()
        for name in sorted(names):
            path = Path(folder) / name
            rel = path.relative_to(root).as_posix()
            try:
                check_name(rel)
            except BundleError:
                continue  # results have names of ours; anything else is not one
            if path.is_symlink() or not path.is_file():
                continue
            info = _info(FINDINGS + rel, path.stat().st_size)
            with path.open("rb") as source, archive.open(info, "w", force_zip64=True) as file:
                while piece := source.read(_PIECE):
                    file.write(piece)


def _write(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    with archive.open(_info(name, len(data)), "w", force_zip64=True) as file:
        file.write(data)


def _info(name: str, size: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.file_size = size
    info.external_attr = 0o100644 << 16
    return info
