"""Changed files of every kind are read right or refused; nothing else ever happens.

A few hundred changes here, the same on every run; ``scripts/fuzz.py`` looks for hours.
"""

from __future__ import annotations

import io
import random
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faults.hostile import Hostile, read_watched, targets, watched

NAMES = (
    "manifest", "batch.json", "batch.safetensors", "m.safetensors", "evidence.json", "ledger.jsonl",
    "zip", "ledger beside", "pickle", "checkpoint", "checkpoint safetensors", "states", "notes",
    "findings", "page", "table",
)  # fmt: skip


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    made = targets(folder)
    for target in made.values():  # what is imported late is imported now
        for seed in target.seeds:
            target.read(seed)
    return folder, made


def test_every_target_is_here(bench):
    assert set(bench[1]) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_true_file_is_read(bench, name):
    folder, made = bench
    assert all(read_watched(made[name], seed, folder) for seed in made[name].seeds)


@pytest.mark.parametrize("name", NAMES)
def test_changed_files_are_read_or_refused(bench, name):
    folder, made = bench
    target = made[name]

    @settings(
        max_examples=40, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(rng=st.randoms(use_true_random=False), rounds=st.integers(1, 3))
    def hold(rng: random.Random, rounds):
        data = target.seeds[0]
        for _ in range(rounds):
            data = target.mutate(data, rng)
        read_watched(target, data, folder)

    hold()


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_the_watch_sees_what_it_is_for(bench, tmp_path):
    """Files that do what the readers must not let them do, read by a reader that does."""
    folder, made = bench
    out = io.BytesIO()
    torch.save({"a": Touch(str(tmp_path / "ran"))}, out)
    with pytest.raises(Hostile), watched(folder):
        torch.load(io.BytesIO(out.getvalue()), weights_only=False)
    with pytest.raises(Hostile), watched(folder):
        Path("/etc/passwd").read_bytes()
    with pytest.raises(MemoryError), watched(folder):
        bytearray(2**33)
    read_watched(made["checkpoint"], out.getvalue(), folder)
    with zipfile.ZipFile(io.BytesIO(out.getvalue())) as archive:
        stream = archive.read(next(n for n in archive.namelist() if n.endswith("data.pkl")))
    read_watched(made["pickle"], stream, folder)
    assert not (tmp_path / "ran").exists()
