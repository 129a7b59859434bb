"""What kinds of checkpoint there are, and where their tensors lie.

Torch is loaded only once tensors are asked for: ``checkpoints latest`` stands in launch scripts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from workbench.checkpoints.pickled import MOST_DESCRIPTION, Record, read_pickle
from workbench.errors import CheckpointError, StrictJsonError, UsageError
from workbench.numerics import jsonio

if TYPE_CHECKING:
    from workbench.checkpoints.stored import Stored

Kind = Literal["torch", "safetensors", "sharded", "folder", "distributed"]

TORCH_ENDINGS: Final = frozenset({".pt", ".pth", ".ckpt", ".bin"})
INDEX_ENDING: Final = ".safetensors.index.json"
MOST_INDEX: Final = 64 * 2**20
STATES_FILE: Final = "workbench-checkpoints.json"
QUARANTINED: Final = "quarantined."
"""Put before the name of what was moved out of the way of loaders."""
EVIDENCE: Final = (".bundle", ".findings")
"""Folders of incidents: they hold tensors, and are no checkpoints."""
_STEP: Final = re.compile(r"(?:step|checkpoint|global_step|iter(?:ation)?|epoch)[-_=]?(\d+)", re.I)
_NUMBER: Final = re.compile(r"(\d+)")
_RANDOM_STATES: Final = re.compile(r"(^|[-_.])rng[-_.]|^random_states")
"""Files of random states: numpy's are arrays within pickles, and none is a parameter."""


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint, a file or a folder.

    Attributes:
        path: Where it lies.
        kind: ``torch`` (one file of ``torch.save``), ``safetensors`` (one file), ``sharded`` (an
            index over several), ``folder`` (a trainer's folder of such files), ``distributed``
            (torch.distributed.checkpoint).
        step: The training step its name gives, or None.
    """

    path: Path
    kind: Kind
    step: int | None

    @property
    def name(self) -> str:
        """The name within its directory."""
        return self.path.name

    def files(self) -> list[Path]:
        """Every file of it, in a stable order."""
        if not self.path.is_dir():
            if self.kind == "sharded":
                return [self.path, *_shards(self.path)]
            return [self.path]
        return sorted(p for p in self.path.rglob("*") if p.is_file() and not p.is_symlink())

    def fingerprint(self) -> list[list[Any]]:
        """Name, size and time of change of every file: tells whether it was written again."""
        found = []
        for file in self.files():
            stat = file.stat()
            relative = file.relative_to(self.path.parent)
            found.append([str(relative), stat.st_size, stat.st_mtime_ns])
        return found

    def tensors(self) -> Iterator[Stored]:
        """Every tensor and float in it, without loading any.

        Raises:
            CheckpointError: Damaged, hostile, or a file whose tensors cannot be found.
            OSError: A file cannot be read.
        """
        if self.kind == "distributed":
            yield from _distributed(self.path)
            return
        for file in self.files():
            prefix = "" if file == self.path else str(file.relative_to(self.path.parent))
            for stored in _of_file(file):
                name = f"{prefix}:{stored.name}" if prefix else stored.name
                yield type(stored)(**{**vars(stored), "name": name})


def find_checkpoints(directory: str | Path) -> list[Checkpoint]:
    """Every checkpoint in a directory, oldest first: by step where all names give one, else by age.

    What was moved into quarantine is left out.

    Args:
        directory: Where a run keeps its checkpoints.

    Raises:
        UsageError: No such directory.
    """
    root = Path(directory)
    if not root.is_dir():
        raise UsageError(
            f"{str(root)!r} is not a directory, so no checkpoints were looked for. Give the "
            "directory that training saves its checkpoints in."
        )
    if root.name.endswith(EVIDENCE):
        raise UsageError(
            f"{str(root)!r} is the evidence of an incident, whose tensors are bad as they should "
            "be, so no checkpoints were looked for in it. Give the directory that training saves "
            "its checkpoints in."
        )
    found = [c for path in sorted(root.iterdir()) if (c := checkpoint_at(path)) is not None]
    if all(one.step is not None for one in found):
        return sorted(found, key=lambda one: (one.step, one.name))
    return sorted(found, key=lambda one: (_age(one.path), one.name))


def checkpoint_at(path: Path) -> Checkpoint | None:
    """The checkpoint at a path, or None where there is none.

    Args:
        path: A file or a folder.
    """
    if path.name.startswith((".", QUARANTINED)) or path.is_symlink():
        return None
    if path.name.endswith(EVIDENCE):
        return None
    if path.is_dir():
        if (path / ".metadata").is_file():
            return Checkpoint(path, "distributed", step_of(path.name))
        holds = any(_is_weights(p) for p in path.iterdir() if p.is_file())
        return Checkpoint(path, "folder", step_of(path.name)) if holds else None
    if not path.is_file():  # a pipe would be waited for, and a device has no end
        return None
    if path.name.endswith(INDEX_ENDING):
        return Checkpoint(path, "sharded", step_of(path.name))
    if path.suffix == ".safetensors":
        return None if _in_an_index(path) else Checkpoint(path, "safetensors", step_of(path.name))
    return Checkpoint(path, "torch", step_of(path.name)) if path.suffix in TORCH_ENDINGS else None


def step_of(name: str) -> int | None:
    """The training step a name gives: ``checkpoint-500``, ``epoch=1-step=200``, ``iter_0100``."""
    named = list(_STEP.finditer(name))
    steps = [m for m in named if not m.group(0).lower().startswith("epoch")]
    if steps or named:
        return int((steps or named)[-1].group(1))
    numbers = _NUMBER.findall(name)
    return int(numbers[-1]) if len(numbers) == 1 else None


def _age(path: Path) -> int:
    return path.stat().st_mtime_ns


def _is_weights(path: Path) -> bool:
    return path.suffix in TORCH_ENDINGS or path.suffix == ".safetensors"


def _in_an_index(path: Path) -> bool:
    indices = path.parent.glob(f"*{INDEX_ENDING}")
    return any(path in _shards(index) for index in indices if index.is_file())


def _shards(index: Path) -> list[Path]:
    if index.stat().st_size > MOST_INDEX:
        raise CheckpointError(
            f"The index {str(index)!r} has {index.stat().st_size} bytes, more than any index of "
            "tensors needs, so it was not read. Check the file."
        )
    try:
        content = jsonio.loads(index.read_bytes())
        names = sorted(set(content["weight_map"].values()))
        plain = all(isinstance(name, str) and Path(name).name == name for name in names)
    except (StrictJsonError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"The index {str(index)!r} is damaged ({type(error).__name__}), so its files are not "
            "known. Get a fresh copy."
        ) from error
    if not plain:
        raise CheckpointError(
            f"The index {str(index)!r} names a file outside of its own folder, so nothing was "
            "read. An index lists files beside it only; check where it comes from."
        )
    return [index.parent / name for name in names]


def _of_file(path: Path) -> Iterator[Stored]:
    from workbench.checkpoints.stored import safetensors_tensors, torch_tensors

    if path.suffix == ".safetensors":
        yield from safetensors_tensors(path)
    elif path.suffix in TORCH_ENDINGS and not _holds_no_model(path.name):
        yield from torch_tensors(path)


def _holds_no_model(name: str) -> bool:
    return name == "training_args.bin" or _RANDOM_STATES.search(name) is not None


def _distributed(folder: Path) -> Iterator[Stored]:
    """The tensors of a torch.distributed.checkpoint folder, shard by shard."""
    metadata = folder / ".metadata"
    size = metadata.stat().st_size
    if size > MOST_DESCRIPTION:
        raise CheckpointError(
            f"The description {str(metadata)!r} has {size} bytes, more than is read of one. Check "
            "the file."
        )
    tree = read_pickle(metadata.read_bytes(), str(metadata))
    state = tree.state if isinstance(tree, Record) else None
    places = state.get("storage_data") if isinstance(state, dict) else None
    if not isinstance(places, dict):
        raise CheckpointError(
            f"The description {str(metadata)!r} does not say where tensors lie, so the checkpoint "
            "cannot be scanned. Check that it was saved by torch.distributed.checkpoint."
        )
    for key, info in places.items():
        yield from _item(folder, _field(key, "fqn"), info)


def _item(folder: Path, name: Any, info: Any) -> Iterator[Stored]:
    relative, start, size = (_field(info, key) for key in ("relative_path", "offset", "length"))
    plain = isinstance(relative, str) and Path(relative).name == relative
    if not plain or not isinstance(start, int) or not isinstance(size, int):
        raise CheckpointError(
            f"The description of {str(folder)!r} gives no file, offset and length for "
            f"{str(name)[:200]!r}, so the checkpoint is damaged. Get a fresh copy."
        )
    from workbench.checkpoints.stored import safetensors_tensors, torch_tensors

    file = folder / relative
    if file.suffix == ".safetensors":
        yield from safetensors_tensors(file)
    else:
        yield from torch_tensors(file, start, size, str(name))


def _field(record: Any, name: str) -> Any:
    state = record.state if isinstance(record, Record) else None
    return state.get(name) if isinstance(state, dict) else None
