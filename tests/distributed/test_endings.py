"""A rank that raises, is killed or leaves its step: the others end with an error that names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.launch import launch
from workbench.record.ranks.watch import LEAVE_S, REPLY_S

WORKER = Path(__file__).with_name("worker_endings.py")
AT = 3
SLOW_S = 15.0
"""What a loaded machine may add to a stated time."""


def run(tmp_path: Path, ranks: int, mode: str) -> list[dict[str, Any]]:
    done = launch(WORKER, ranks, tmp_path, mode, timeout_s=120)
    assert not done.timed_out, done.output[-3000:]
    said = [done.said(rank) for rank in range(ranks)]
    assert all(said[:-1]), done.output[-3000:]
    return said


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_raises_inside_forward(tmp_path, ranks):
    said = run(tmp_path, ranks, "raise")
    own = said[-1]
    assert (own["error"], own["text"]) == ("ValueError", "a sample of this rank cannot be read")
    assert any("the evidence of this step is in" in note for note in own["notes"])
    assert own["stages"] == [None] * AT + ["forward"]
    for other in said[:-1]:
        assert other["error"] == "RankError"
        assert (other["rank"], other["step"], other["exception"]) == (ranks - 1, AT, "ValueError")
        assert "a sample of this rank cannot be read" in other["text"]
        # told at the gate of that step, or before it began
        assert other["step_index"] in (AT, AT + 1)
        assert other["seconds"] < LEAVE_S + SLOW_S  # their process group's time-out is 60 s


def test_a_rank_that_is_killed(tmp_path):
    said = run(tmp_path, 4, "kill")
    assert said[-1] == {}
    for other in said[:-1]:
        assert (other["error"], other["rank"], other["step"]) == ("RankError", 3, AT)
        assert "was lost" in other["text"]
        assert other["seconds"] < REPLY_S + LEAVE_S + SLOW_S


def test_a_rank_that_skips_by_itself(tmp_path):
    """The hang of dd02: an error with a name on both ranks, well within the time-out of 8 s."""
    said = run(tmp_path, 2, "desync")
    for one in said:
        assert one["error"] == "RankError"
        assert "out of step" in one["text"]
        assert "rank 1 left step 3" in one["text"]
        assert one["seconds"] < 8.0 + LEAVE_S + SLOW_S
    assert said[0]["rank"] == 1
