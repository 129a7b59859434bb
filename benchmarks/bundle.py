"""What a bundle costs beside the raw file: ``python benchmarks/bundle.py [--rounds N] [--json]``.

* Writing 100 MB and 1 GB: the bytes written raw and synced; a tensor file with its sha256, synced;
  a whole sealed bundle of that one file, with manifest and directories synced; ``torch.save`` and
  ``safetensors.torch.save_file``, synced, without a digest.
* Writing 300 small tensors (4.9 MB), nothing synced: raw, a tensor file with its sha256, the peers.
* Reading one tensor out of 1 GB, warm: the same bytes read raw; through the bundle, where the first
  read of a file checks the digest of all of it; through ``safe_open``; and listing all names.

Incompressible float32 values. All variants of a table alternate in one process, in shuffled order.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measuring import Tables, facts, interleaved
from safetensors import safe_open
from safetensors.torch import save_file

from workbench.evidence import BundleWriter, open_bundle
from workbench.evidence.files import write_file
from workbench.evidence.safetensors_file import encode

MB = 10**6
FILE = "state/model.safetensors"
Tensors = dict[str, torch.Tensor]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-gigabyte", action="store_true", help="leave out what takes 1 GB")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tables = Tables(facts(rounds=options.rounds), options.json)
    sizes = [100 * MB] if options.no_gigabyte else [100 * MB, 1000 * MB]
    with tempfile.TemporaryDirectory() as d:
        work = Path(d)
        for size in sizes:
            tensors = values(20, size // 80)
            rows = interleaved(writers(work, tensors, sync=True), options.rounds, "raw")
            tables.add(f"writing {size // MB} MB, synced", rows)
        small = values(300, 4_096)
        rows = interleaved(writers(work, small, sync=False), options.rounds * 5, "raw")
        tables.add("writing 300 tensors of 16 kB, not synced", rows)
        rows = interleaved(readers(work, values(20, sizes[-1] // 80)), options.rounds, "raw")
        tables.add(f"reading one tensor of 20 out of {sizes[-1] // MB} MB", rows)
    tables.end()
    return 0


def values(count: int, elements: int) -> Tensors:
    """Tensors of random float32."""
    return {f"layers.{k}.weight": torch.randn(elements) for k in range(count)}


def writers(work: Path, tensors: Tensors, *, sync: bool) -> dict[str, Callable[[], Any]]:
    """What writes the tensors, by name; each replaces a file of its own."""
    buffers = [t.numpy().data.cast("B") for t in tensors.values()]

    def fresh(name: str) -> Path:
        path = work / name
        path.unlink(missing_ok=True)
        return path

    def raw() -> None:
        descriptor = os.open(fresh("raw"), os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            for start in range(0, len(buffers), 512):
                part = buffers[start : start + 512]
                done = os.writev(descriptor, part)
                for buffer in part:  # a call takes 2 GB at most
                    if done < len(buffer):
                        os.write(descriptor, buffer[max(done, 0) :])
                    done -= len(buffer)
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def peer(name: str, save: Callable[[Tensors, Path], Any]) -> None:
        path = fresh(name)
        save(tensors, path)
        if sync:
            with path.open("rb") as file:
                os.fsync(file.fileno())

    def bundle() -> None:
        shutil.rmtree(work / "bundles", ignore_errors=True)
        writer = BundleWriter(work / "bundles", "one")
        writer.add_tensors(FILE, tensors)
        writer.update(run_id="benchmark", step=0)
        writer.seal()

    found: dict[str, Callable[[], Any]] = {
        "raw": raw,
        "tensor file with sha256": lambda: write_file(fresh("own"), encode(tensors), sync=sync),
        "torch.save": lambda: peer("torch", torch.save),
        "safetensors.save_file": lambda: peer("safetensors", save_file),
    }
    return found | {"whole bundle": bundle} if sync else found


def readers(work: Path, tensors: Tensors) -> dict[str, Callable[[], Any]]:
    """What reads one tensor, by name; the file stays in the system's cache."""
    writer = BundleWriter(work / "read", "one")
    writer.add_tensors(FILE, tensors)
    writer.update(run_id="benchmark", step=0)
    path = writer.seal()
    name = "layers.11.weight"
    size = tensors[name].numel() * 4
    where = path / FILE
    into = bytearray(size)

    def raw() -> None:
        with where.open("rb", buffering=0) as file:
            file.seek(where.stat().st_size - size)
            file.readinto(into)

    checked = open_bundle(path)
    checked.tensors(FILE, [name])

    def first() -> torch.Tensor:
        return open_bundle(path).tensors(FILE, [name])[name]

    def later() -> torch.Tensor:
        return checked.tensors(FILE, [name])[name]

    def theirs() -> torch.Tensor:
        with safe_open(where, "pt") as file:
            return file.get_tensor(name) + 0  # it maps the file: touch every page

    return {
        "raw": raw,
        "first tensor (digest of its file)": first,
        "later tensor": later,
        "safe_open, its pages read": theirs,
        "names of a bundle": lambda: open_bundle(path).tensor_index(FILE),
    }


if __name__ == "__main__":
    sys.exit(main())
