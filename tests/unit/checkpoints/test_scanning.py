"""Scans find every bad float of every kind of checkpoint, and run nothing of what they read."""

from __future__ import annotations

import json
import math
import os
import pickle
import zipfile

import pytest
import torch
import torch.distributed.checkpoint as distributed_checkpoint
from safetensors.torch import save_file
from torch import nn

from workbench.checkpoints import checkpoint_at, find_checkpoints, scan
from workbench.errors import CheckpointError, UsageError


def trained(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[2].weight = nn.Parameter(torch.randn(4, 2).t())  # strides of its own
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    model(torch.randn(5, 6)).sum().backward()
    optimizer.step()
    return model, optimizer


def state(model, optimizer):
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}


def spoil_buffer(model, optimizer):
    model[1].running_var[1] = math.inf
    return "running_var"


def spoil_strided(model, optimizer):
    with torch.no_grad():
        model[2].weight[1, 3] = math.nan
    return "2.weight"


def spoil_moment(model, optimizer):
    optimizer.state[model[0].weight]["exp_avg_sq"][2, 2] = -1.0
    return "exp_avg_sq"


def spoil_rate(model, optimizer):
    optimizer.param_groups[0]["lr"] = math.nan
    return "lr"


SPOIL = [None, spoil_buffer, spoil_strided, spoil_moment, spoil_rate]


@pytest.mark.parametrize("spoil", SPOIL)
@pytest.mark.parametrize("kind", ["torch", "distributed"])
def test_bad_floats_are_found_by_name(tmp_path, spoil, kind):
    model, optimizer = trained()
    name = spoil(model, optimizer) if spoil else None
    path = tmp_path / ("checkpoint-7.pt" if kind == "torch" else "checkpoint-7")
    if kind == "torch":
        torch.save(state(model, optimizer), path)
    else:
        distributed_checkpoint.save(state(model, optimizer), checkpoint_id=path, no_dist=True)
    checkpoint = checkpoint_at(path)
    assert (checkpoint.kind, checkpoint.step) == (kind, 7)
    result = scan(checkpoint)
    assert result.error is None
    assert result.finite == (spoil is None)
    assert [name in entry.name for entry in result.bad] == ([True] if name else [])
    if spoil is None:
        floats = [t for t in model.state_dict().values() if t.is_floating_point()]
        moments = [t for s in optimizer.state.values() for t in s.values()]
        assert result.elements == sum(t.numel() for t in [*floats, *moments])


def test_a_trainers_folder_and_a_sharded_index(tmp_path):
    model, optimizer = trained()
    folder = tmp_path / "checkpoint-20"
    folder.mkdir()
    weights = {k: v.contiguous() for k, v in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors")
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    torch.save({"nan": float("nan")}, folder / "rng_state.pth")
    assert scan(checkpoint_at(folder)).finite
    optimizer.state[model[0].bias]["exp_avg"].fill_(math.nan)
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    (bad,) = scan(checkpoint_at(folder)).bad
    assert bad.name.startswith("checkpoint-20/optimizer.pt:")
    assert bad.counts["nan"] == 4

    save_file({"a": torch.ones(2)}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"b": torch.tensor([math.inf])}, tmp_path / "model-00002-of-00002.safetensors")
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": names}))
    found = {c.name: c for c in find_checkpoints(tmp_path)}
    assert set(found) == {"checkpoint-20", index.name}  # shards are no checkpoints of their own
    (bad,) = scan(found[index.name]).bad
    assert bad.name.endswith(":b")


def test_minus_infinity_alone_is_a_mask_but_never_in_optimizer_state(tmp_path):
    mask = torch.full((3, 3), -math.inf).triu(1)
    path = tmp_path / "a.pt"
    torch.save({"model": {"mask": mask, "w": torch.ones(2)}}, path)
    result = scan(checkpoint_at(path))
    assert result.finite
    assert result.constants == ["model.mask"]
    assert "taken for masks" in result.sentence
    torch.save({"state": {0: {"exp_avg": mask}}}, path)
    assert not scan(checkpoint_at(path)).finite


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float16, torch.bfloat16, torch.float8_e5m2, torch.complex64],
)
def test_every_float_dtype_is_read(tmp_path, dtype):
    good = torch.ones(5).to(dtype)
    bad = good.clone()
    bad[3] = torch.tensor(math.inf).to(dtype)
    torch.save({"w": bad}, tmp_path / "a.pt")
    torch.save({"w": good}, tmp_path / "b.pt")
    assert scan(checkpoint_at(tmp_path / "a.pt")).bad[0].counts["finite"] == 4
    assert scan(checkpoint_at(tmp_path / "b.pt")).finite


def test_objects_of_a_trainer_are_read_as_facts_and_never_built(tmp_path):
    """A file whose loading would run a command is scanned like any other."""

    class Evil:
        def __reduce__(self):
            return (os.system, (f"touch {tmp_path / 'ran'}",))

    torch.save(
        {"state_dict": {"w": torch.tensor([math.nan])}, "hparams": Evil()}, tmp_path / "a.pt"
    )
    result = scan(checkpoint_at(tmp_path / "a.pt"))
    assert [entry.name for entry in result.bad] == ["state_dict.w"]
    assert not (tmp_path / "ran").exists()


def _zip(path, description):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", description)
    return path


def _cut(path):
    torch.save({"w": torch.ones(1000)}, path)
    path.write_bytes(path.read_bytes()[:-700])
    return path


def _overlong(path):
    """A zip whose directory says that its description goes on beyond the end of the file."""
    data = bytearray(_zip(path, pickle.dumps({}, protocol=2)).read_bytes())
    entry = data.index(b"PK\x01\x02")
    data[entry + 20 : entry + 28] = (100_000).to_bytes(4, "little") * 2
    path.write_bytes(data)
    return path


def _endless():
    value = []
    for _ in range(60):
        value = [value, value]
    return pickle.dumps(value, protocol=2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_cut, "is damaged"),
        (_overlong, "is damaged"),
        (lambda path: _zip(path, b"\x80\x02}q\x00"), "exhausted before seeing STOP"),
        (lambda path: _zip(path, b"\x80\x02c"), "cannot be read"),
        (lambda path: _zip(path, _endless()), "parts"),
        (lambda path: path.write_bytes(b"not a checkpoint") and path, "torch.save"),
        (lambda path: path.write_bytes(pickle.dumps({"w": 1.0})) and path, "torch.save"),
    ],
)
def test_damaged_and_hostile_files_are_one_error(tmp_path, monkeypatch, make, words):
    monkeypatch.setattr("workbench.checkpoints.stored.MOST_PARTS", 10_000)
    result = scan(checkpoint_at(make(tmp_path / "checkpoint-1.pt")))
    assert not result.finite
    assert words in result.error


def test_an_index_that_points_outside_is_refused(tmp_path):
    inside = tmp_path / "run"
    inside.mkdir()
    index = inside / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))
    with pytest.raises(CheckpointError, match="outside"):
        checkpoint_at(index).files()
    assert "outside" in scan(checkpoint_at(index)).error


def test_names_give_steps_and_links_are_left_out(tmp_path):
    torch.save({"w": torch.ones(1)}, tmp_path / "epoch=1-step=200.ckpt")
    (tmp_path / "last.ckpt").symlink_to(tmp_path / "epoch=1-step=200.ckpt")
    torch.save({"w": torch.ones(1)}, tmp_path / "iter_0000100.pt")
    (tmp_path / "notes.txt").write_text("x")
    assert [(c.name, c.step) for c in find_checkpoints(tmp_path)] == [
        ("iter_0000100.pt", 100), ("epoch=1-step=200.ckpt", 200),
    ]  # fmt: skip
    with pytest.raises(UsageError, match="not a directory"):
        find_checkpoints(tmp_path / "absent")
