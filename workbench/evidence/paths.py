"""From a path to a bundle's store, and to the bundles below a directory."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from workbench.errors import BundleError, UsageError
from workbench.evidence.schema import MANIFEST
from workbench.evidence.store import DirectoryStore, Store, ZipStore
from workbench.evidence.wording import command_line


def open_store(path: Path) -> Store:
    """Where the files of the bundle at a path lie.

    Raises:
        UsageError: Nothing is there, or a folder that is no bundle.
        BundleError: It cannot be reached, or is no store of a bundle.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise UsageError(
            f"There is no bundle at {str(path)!r}, so nothing was opened. Look for a slip in the "
            "path; `workbench list DIRECTORY` shows the bundles below a directory."
        ) from error
    except OSError as error:
        raise BundleError(
            f"The bundle {str(path)!r} cannot be reached ({error.strerror or type(error).__name__})"
            ", so nothing of it is shown. Check its permissions, or get a copy."
        ) from error
    if stat.S_ISDIR(mode):
        if not (path.suffix == ".bundle" or os.path.lexists(path / MANIFEST)):
            raise UsageError(
                f"{str(path)!r} is a folder and no bundle: it has no {MANIFEST}, and nothing was "
                f"opened. `{command_line('list', path)}` shows the bundles in it."
            )
        return DirectoryStore(path)
    if stat.S_ISREG(mode):
        return ZipStore(path)
    raise BundleError(
        f"{str(path)!r} is neither a directory nor a file, so it is no bundle. "
        "`workbench list` shows the bundles below a directory."
    )


def find_bundles(directory: str | os.PathLike[str]) -> list[Path]:
    """Bundles below a directory, newest first; damaged ones are listed like others.

    Hidden directories, and directories inside bundles, are not searched.
    """
    found: list[tuple[float, str]] = []
    for folder, subfolders, files in os.walk(directory):
        inside = [name for name in subfolders if name.endswith(".bundle")]
        zips = [name for name in files if name.endswith(".bundle.zip")]
        subfolders[:] = [
            name for name in subfolders if name not in inside and not name.startswith(".")
        ]
        for name in inside + zips:
            path = Path(folder) / name
            if name.startswith("."):
                continue
            try:
                marker = path / MANIFEST if name in inside else path
                found.append((-marker.lstat().st_mtime, str(path)))
            except OSError:
                continue
    return [Path(path) for _, path in sorted(found)]
