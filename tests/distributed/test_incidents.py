"""Incidents of real ranks: one incident of several bundles, replayed alone and together."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.incident_step import Huge, Step
from tests.distributed.launch import ROOT, Launched, launch
from workbench.checkpoints import find_checkpoints, scan
from workbench.diagnose import diagnose
from workbench.evidence import Bundle, open_bundle
from workbench.evidence.incidents import incident_of
from workbench.evidence.redact import redact
from workbench.numerics import jsonio
from workbench.replay import Replay
from workbench.replay.source import Source

HERE = Path(__file__).parent
REFERENCE = "tests.distributed.incident_step:Step"


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Launched:
    done = launch(
        HERE / "worker_incident.py", 2, tmp_path_factory.mktemp("incidents"), timeout_s=240
    )
    assert done.code == 0, done.output[-4000:]
    for rank in (0, 1):
        said = done.said(rank)
        assert all(said[name] == [] for name in said if name != "checkpoint"), said
    return done


def bundle_of(launched: Launched, name: str, rank: int) -> Bundle:
    (found,) = (launched.directory / name).glob(f"*-rank{rank:05d}.bundle")
    return open_bundle(found)


def workbench(*words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "workbench", *words, "--json"],
        capture_output=True, text=True, cwd=ROOT, check=True,
    )  # fmt: skip
    return jsonio.loads(done.stdout)


def test_every_rank_names_the_bundle_of_the_rank_that_went_bad_first(launched: Launched) -> None:
    bundle = bundle_of(launched, "ddp", 1).path
    told = f"First   rank 1 went bad first: {bundle}\n        workbench diagnose {bundle} --step"
    assert launched.output.count(told) == 1  # rank 0 says it; rank 1's own bundle is that one


def test_ddp_ranks_make_one_incident(launched: Launched) -> None:
    """Full evidence where it went bad first, light elsewhere; one identifier and one file."""
    first, other = bundle_of(launched, "ddp", 1), bundle_of(launched, "ddp", 0)
    assert first.manifest.incident == other.manifest.incident != ""
    assert (first.manifest.level, other.manifest.level) == ("full", "light")
    incident = incident_of(other)
    assert [(m.rank, m.role, m.stage) for m in incident.members] == [
        (1, "first", "loss"),
        (0, "received", "reduce"),
    ]
    assert incident.absent == []
    path = launched.directory / "ddp" / "run-step00000003.incident.json"
    written = jsonio.loads(path.read_bytes())
    assert written["incident"] == first.manifest.incident
    assert written["written_by"] == 0
    assert [(row["rank"], row["bundle"]) for row in written["ranks"]] == [
        (1, first.path.name),
        (0, other.path.name),
    ]


def test_a_bundle_alone_names_those_that_are_absent(launched: Launched, tmp_path: Path) -> None:
    one = bundle_of(launched, "ddp", 0)
    moved = shutil.copytree(one.path, tmp_path / one.path.name)
    incident = incident_of(open_bundle(moved))
    assert incident.absent == [1]
    assert incident.members[0].rank == 1
    assert incident.members[0].path is None
    assert "rank 1" in incident.sentence()


def test_list_and_inspect_show_one_incident(launched: Launched) -> None:
    listed = workbench("list", str(launched.directory / "ddp"))
    assert len(listed["bundles"]) == 2
    (one,) = listed["incidents"]
    assert (one["ranks"], one["full"], one["absent"]) == ([0, 1], [1], [])
    inspected = workbench("inspect", str(bundle_of(launched, "ddp", 0).path))
    paths = {row["rank"]: row["path"] for row in inspected["incident"]["ranks"]}
    assert Path(paths[1]) == bundle_of(launched, "ddp", 1).path.resolve()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_ddp_rank_replays_in_one_process(launched: Launched, rank: int) -> None:
    replay = Replay(bundle_of(launched, "ddp", rank), step=Step)
    reproduction = replay.verdict()
    assert reproduction.verdict == "bitwise", reproduction
    compared = "recorded, not computed again" if rank == 0 else "not compared"
    assert any(compared in one for one in reproduction.differences)
    assert any("equal bit sums of 1 of 1 bucket" in one for one in reproduction.differences)


def test_other_gradients_than_those_given_to_the_reduction_are_not_bitwise(
    launched: Launched, tmp_path: Path
) -> None:
    source = Source.from_bundle(bundle_of(launched, "ddp", 0), Step)
    (bucket,) = source.evidence["digests"]["contribution"]["buckets"]
    assert sorted(bucket["parameters"]) == ["a.bias", "a.weight", "b.bias", "b.weight"]
    bucket["sum"] += 1  # one bit of one gradient
    reproduction = Replay.from_source(source).verdict()
    assert reproduction.verdict == "same_mask"
    assert any("had other bits before" in one for one in reproduction.differences)


def test_the_rank_that_made_it_is_told_from_the_one_that_received_it(launched: Launched) -> None:
    made = diagnose(bundle_of(launched, "ddp", 1), step=Step, counterfactuals=False)
    (origin,) = made.origins
    assert (origin["rank"], origin["kind"], origin["cause"]) == (1, "birth", "log_of_negative")
    assert origin["rank_local"] is True
    received = diagnose(bundle_of(launched, "ddp", 0), step=Step, counterfactuals=False)
    (origin,) = received.origins
    assert (origin["rank"], origin["kind"], origin["cause"]) == (1, "collective", "rank_local")
    assert received.data["ranks"]["received"] == [0]
    assert received.data["contamination"]["collective"] is True
    assert received.data["contamination"]["parameters"] == []
    name = bundle_of(launched, "ddp", 1).path.name
    assert f"workbench diagnose {name} --step {REFERENCE}" in origin["fix"]
    said = {answer["key"]: answer["sentence"] for answer in received.data["answers"]}
    assert said["contaminated"].startswith("Stopped before the update: no parameter")
    assert "the update was skipped by the gate" in said["ranks"]
    assert made.data["ranks"]["desync"] == []


def test_what_overflows_only_in_the_sum_is_said_of_the_reduction(launched: Launched) -> None:
    bundle = bundle_of(launched, "summed", 1)
    assert bundle.first_bad.stage == "reduce"
    assert bundle.evidence()["reduce"]["bad_before"] is False
    found = diagnose(bundle, step=Huge, counterfactuals=False)
    (origin,) = found.origins
    assert (origin["kind"], origin["stage"], origin["rank"]) == ("collective", "reduce", 1)
    assert (origin["cause"], origin["range"]) == ("float32_overflow", "overflow")
    assert found.data["reproduction"]["verdict"] == "bitwise"


def test_ranks_that_parted_are_named_with_the_step(launched: Launched) -> None:
    found = diagnose(bundle_of(launched, "desync", 0), step=Step, counterfactuals=False)
    parameters = next(d for d in found.data["ranks"]["desync"] if d["what"] == "parameters")
    assert parameters["cause"] == "rank_desync"
    assert (parameters["equal_after"], parameters["parted_by"]) == (1, 2)
    assert parameters["names"] == ["b.bias"]
    assert sorted(map(tuple, parameters["groups"])) == [(0,), (1,)]
    answer = next(a for a in found.data["answers"] if a["key"] == "ranks")
    assert "rank_desync" in answer["sentence"]


def test_a_light_bundle_borrows_what_is_the_same(launched: Launched, tmp_path: Path) -> None:
    """Parameters of a large model are written once; alone, the light bundle says what it needs."""
    light = bundle_of(launched, "lent", 1)
    assert not light.has("state/model.safetensors")
    assert Replay(light, step=Step).verdict().verdict == "bitwise"
    alone = open_bundle(shutil.copytree(light.path, tmp_path / light.path.name))
    reproduction = Replay(alone, step=Step).verdict()
    assert reproduction.verdict == "unverifiable"
    assert "rank 0" in reproduction.sentence


@pytest.mark.parametrize("rank", [0, 1])
def test_an_fsdp_rank_replays_on_the_unsharded_model(launched: Launched, rank: int) -> None:
    """Parts are put together, and the mixed-precision policy is applied again: same loss bits."""
    bundle = bundle_of(launched, "fsdp", rank)
    replay = Replay(bundle, step=Step)
    result = replay.run(until="reduce")
    assert result.loss_bits == bundle.evidence()["digests"]["loss_bits"]
    assert replay.session.runner.model.a.weight.shape == (16, 8)
    reproduction = replay.verdict()
    assert reproduction.verdict == ("bitwise" if rank == 1 else "unverifiable")
    assert any("parts of 2 of 2 ranks" in one for one in reproduction.differences)
    assert any("mixed precision" in one for one in reproduction.differences)
    if rank == 0:
        assert "with the recorded bits before their reduction" in reproduction.sentence


def test_parts_of_one_rank_alone_are_said_to_be_incomplete(
    launched: Launched, tmp_path: Path
) -> None:
    one = bundle_of(launched, "fsdp", 1)
    alone = open_bundle(shutil.copytree(one.path, tmp_path / one.path.name))
    reproduction = Replay(alone, step=Step).verdict()
    assert reproduction.verdict == "unverifiable"
    assert "rank 0" in reproduction.sentence


def test_tensor_parallel_is_recorded_with_its_parts(launched: Launched) -> None:
    bundle = bundle_of(launched, "tensor", 1)
    said = bundle.json("ranks.json")["parallel"]
    assert said["kinds"] == ["tensor"]
    assert said["mesh"] == {"tp": [1, 2]}
    shards = bundle.pytree("state/model")["shards"]
    assert shards["a.weight"]["placements"] == ["Shard(0)"]
    assert shards["a.weight"]["runs"] == [[[8, 16]], [[0, 8]]]
    assert shards["b.weight"]["placements"] == ["Shard(1)"]
    found = diagnose(bundle, step=Step, counterfactuals=False)
    assert found.origins[0]["cause"] == "log_of_negative"
    assert any("split over ranks" in one for one in found.data["reproduction"]["differences"])


def test_a_pipeline_stage_says_why_it_is_not_replayed_alone(launched: Launched) -> None:
    bundle = bundle_of(launched, "pipeline", 1)
    assert bundle.first_bad.stage == "loss"
    assert bundle.ledger()[-1]["pp_rank"] == 1
    assert len(bundle.pytree("batch")["micro_batches"]) == 2
    found = diagnose(bundle, step=Step)
    assert found.data["reproduction"]["verdict"] == "unverifiable"
    assert "pipeline stage 1" in found.data["reproduction"]["differences"][0]
    first = [m for m in incident_of(bundle).members if m.role == "first"]
    assert [m.rank for m in first] == [1]


def replayed_together(bundle: Bundle, folder: Path, *words: str) -> dict[str, Any]:
    """What ``torchrun … -m workbench replay`` prints with ``--json``."""
    given = (str(bundle.path), "--step", REFERENCE, "--json", *words)
    done = launch(Path("workbench"), 2, folder, "replay", *given, module=True)
    assert done.code == 0, done.output[-3000:]
    assert "Worst exit code of the ranks: 0." in done.output
    begin = done.output.index('{\n  "backend"')
    data, _ = json.JSONDecoder().raw_decode(done.output[begin:])
    assert data["schema"] == "workbench.replay-ranks/1"
    assert [row["rank"] for row in data["ranks"]] == [0, 1]
    return data


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_torchrun_replays_all_ranks(launched: Launched, tmp_path: Path, name: str) -> None:
    """Every rank's verdict in one table; the reduction is computed again, with the same bits."""
    data = replayed_together(bundle_of(launched, name, 0), tmp_path)
    assert data["verdicts"] == {"0": "bitwise", "1": "bitwise"}
    assert data["ranks"][0]["gradients_compared"]
    assert data["ranks"][0]["first_bad"]["stage"] == "reduce"
    assert data["until"] == "reduce"


def test_all_ranks_run_on_through_the_update_without_the_bad_sample(
    launched: Launched, tmp_path: Path
) -> None:
    """A changed condition on all ranks; where all are finite the original is run again."""
    words = ("--set", "keep_samples=0,1,3")
    data = replayed_together(bundle_of(launched, "fsdp", 0), tmp_path, *words)
    assert data["diagnostic"]
    assert data["changed"] == {"keep_samples": [0, 1, 3]}
    for row in data["ranks"]:
        assert row["first_bad"] is None
        assert row["updated"] == ["yes"]
        assert {one["stage"]: one["status"] for one in row["stages"]}["after_update"] == "clean"
        assert row["original_after"]["first_bad"] is not None


def test_ranks_that_cannot_begin_say_the_code_that_torchrun_hides(
    launched: Launched, tmp_path: Path
) -> None:
    bundle = bundle_of(launched, "ddp", 0)
    alone = shutil.copytree(bundle.path, tmp_path / bundle.path.name)
    words = (str(alone), "--step", REFERENCE)
    done = launch(Path("workbench"), 2, tmp_path / "out", "replay", *words, module=True)
    assert done.code == 1
    assert done.output.count("No bundle of rank 1 lies beside") == 1
    assert "Worst exit code of the ranks: 4 (torchrun ends with 1)." in done.output


def test_redacted_bundles_of_an_incident_are_still_one(launched: Launched, tmp_path: Path) -> None:
    for rank in (0, 1):
        bundle = bundle_of(launched, "ddp", rank)
        redact(bundle, tmp_path / bundle.path.name)
    copy = open_bundle(tmp_path / bundle.path.name)
    assert copy.manifest.incident == bundle.manifest.incident
    incident = incident_of(copy)
    assert [(m.rank, m.role) for m in incident.members] == [(1, "first"), (0, "received")]
    assert incident.absent == []
    said = copy.json("ranks.json")
    assert said["parallel"]["kinds"] == ["ddp"]
    assert said["sums"]["optimizer"] == {}
    assert "first_bad" not in said["decision"]


def test_a_checkpoint_of_two_ranks_is_scanned_and_loaded_by_one(launched: Launched) -> None:
    """The states room reads the folder of torch.distributed.checkpoint; one process resumes."""
    from torch.distributed.checkpoint import load

    (known,) = find_checkpoints(launched.directory / "checkpoints")
    result = scan(known)
    assert result.finite, result
    step = Step()
    model = step.build_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    state = {"model": model.state_dict()}
    load(state, checkpoint_id=str(known.path), no_dist=True)
    model.load_state_dict(state["model"])
    saved = launched.said(0)["checkpoint"]
    here = {name: float(value.sum()) for name, value in model.state_dict().items()}
    assert here == pytest.approx(saved, rel=1e-5)
