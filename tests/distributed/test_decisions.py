"""All ranks decide alike, and the record says which rank, bucket and parameters were bad."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.launch import Launched, launch

WORKER = Path(__file__).with_name("worker_decisions.py")
Said = list[dict[str, Any]]


@pytest.fixture(scope="module", params=[2, 4])
def launched(request, tmp_path_factory) -> Launched:
    folder = tmp_path_factory.mktemp(f"ranks{request.param}")
    done = launch(WORKER, request.param, folder, timeout_s=240)
    assert done.code == 0, done.output[-4000:]
    return done


@pytest.fixture
def said(launched: Launched, request) -> Said:
    ranks = len(list(launched.directory.glob("rank*.json")))
    name = request.node.originalname.removeprefix("test_")
    return [launched.said(rank)[name] for rank in range(ranks)]


def alike(said: Said, key: str) -> Any:
    values = [one[key] for one in said]
    assert all(value == values[0] for value in values), (key, values)
    return values[0]


def test_nan_loss(said):
    """One rank's NaN loss: one decision, no update anywhere, the same parameters afterwards."""
    last = len(said) - 1
    assert alike(said, "updated") == [True, True, False, True]
    assert alike(said, "skipped_by") == ["none", "none", "gate", "none"]
    assert alike(said, "run") and alike(said, "digest")
    # one all-reduce a step, and one all-gather in the step that tripped
    assert alike(said, "collectives") == 4 + 1
    (decision,) = alike(said, "decisions")
    assert (decision["rank"], decision["stage"], decision["action"]) == (last, "loss", "skip")
    assert decision["tripped"] == list(range(last + 1))
    assert [one["stages"][2] for one in said] == ["reduce"] * last + ["loss"]
    for rank, one in enumerate(said):
        (reduce,) = one["reduce"]
        assert (reduce["how"], reduce["contaminated"]) == ("ddp", True)
        assert reduce["bad_before"] == (rank == last)
        assert one["places"] == [[rank, last + 1, rank]]
        assert one["failures"] == []
    (bucket,) = said[last]["reduce"][0]["buckets"]
    assert sorted(bucket["parameters"]) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert (bucket["bucket"], bucket["groups"]) == (0, ["optimizer0.group0"])
    evidence = said[last]["evidence"]
    assert evidence["decision"]["bad_before_reduction"] == [last]
    assert evidence["decision"]["bad_after_reduction"] == list(range(last + 1))
    assert (evidence["stage"], evidence["stopped_at"]) == ("loss", "loss")
    assert said[last]["first_bad"]["rank"] == last


def test_nan_loss_raises(said):
    """Under ``raise`` every rank raises in the same step and names the rank it came from."""
    last = len(said) - 1
    assert alike(said, "digest") and alike(said, "ended") == 2
    for one in said:
        step, text, _ = one["raised"]
        assert step == 1
        assert f"Caught at loss, step 1, rank {last}" in text
    assert said[last]["raised"][2]  # it has a bundle


def test_low_level(said):
    """The same in the user's own loop: no rank leaves the others waiting."""
    assert alike(said, "went") == [0, 2, 3]
    assert alike(said, "updated") == [True, False, True, True]
    assert alike(said, "digest")
    assert alike(said, "collectives") == 4 + 1


def test_all_leave(said):
    """A block that all ranks leave without a backward is no incident."""
    assert alike(said, "updated") == [True, False, True]
    assert alike(said, "stages") == [None, None, None]
    assert alike(said, "digest")


def test_scaler_skips(said):
    """Consecutive skips: scales, alerts and both optimizers move alike."""
    last = len(said) - 1
    assert alike(said, "skipped_by") == ["none", "scaler", "scaler", "scaler", "none", "none"]
    assert alike(said, "scales")[:2] == [4.0, 4.0]
    assert alike(said, "scale") < alike(said, "scales")[2] < 4.0
    assert "consecutive_skips" in alike(said, "alerts")[3]
    assert alike(said, "digest")
    assert [one["reduce"][0]["bad_before"] for one in said] == [False] * last + [True]
    (bucket,) = said[last]["reduce"][0]["buckets"]
    assert (bucket["parameters"], bucket["groups"]) == (["2.weight"], ["optimizer1.group0"])


def test_overflow_in_reduction(said):
    """Finite on every rank, not finite as a sum: stage ``reduce``, and no rank is to blame."""
    assert alike(said, "updated") == [True, False, True]
    assert alike(said, "stages") == [None, "reduce", None]
    (decision,) = alike(said, "decisions")
    assert (decision["stage"], decision["tripped"]) == ("reduce", list(range(len(said))))
    (reduce,) = alike(said, "reduce")
    assert (reduce["bad_before"], reduce["contaminated"], reduce["buckets"]) == (False, True, [])
    assert alike(said, "hook") == 3  # the user's own hook ran, once a step
    assert alike(said, "digest")


def test_requests_and_alerts(said):
    """A request to one rank and a jump of one rank's loss make bundles on all."""
    assert alike(said, "kinds") == [["captured", 2], ["alert", 7]]
    assert "look at this" in [one["reasons"][0] for one in said]  # whichever rank came first
    assert all(one["reasons"][0].endswith("look at this") for one in said)
    assert [one["alerts"][7] for one in said][-1] == ["loss_factor"]
    assert all(one["alerts"][7] == ["other_rank"] for one in said[:-1])


def test_buffers(said):
    """Buffers as forward used them; a buffer bad on one rank is decided on after the update."""
    last = len(said) - 1
    assert alike(said, "mean")  # rank 0's, though each rank had its own before forward
    assert [one["stages"][3] for one in said] == [None] * last + ["after_update"]
    decision = alike(said, "decisions")[-1]
    assert (decision["at"], decision["rank"], decision["tripped"]) == ("after_update", last, [last])


def test_fsdp(said):
    """FSDP2 with mixed precision: the same values, and a bad gradient is seen before it is sent."""
    last = len(said) - 1
    assert alike(said, "same") is True
    assert alike(said, "updated") == [True, False, True]
    assert [one["stages"][4] for one in said] == ["reduce"] * last + ["backward"]
    (reduce,) = said[last]["reduce"]
    assert (reduce["how"], reduce["bad_before"]) == ("fsdp2", True)
    assert [set(one["parameters"]) for one in reduce["buckets"]] == [{"0.weight", "0.bias"}]
    assert all(one["reduce"][0]["bad_before"] is False for one in said[:last])


def test_invariance(said):
    """Parameters and random state have the same bits with and without the recorder."""
    for one in said:
        assert one["bare"] == one["recorded"]
