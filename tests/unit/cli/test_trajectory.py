"""trajectory: the kept steps, replayed from the command line."""

from __future__ import annotations

STEP = ("--step", "tiny.py:LogOfZero")


def test_the_way_to_the_incident(cli, kept):
    folder, bundle = kept
    data = cli("trajectory", bundle, *STEP, "--json").json
    assert data["schema"] == "workbench.trajectory/1"
    assert (data["start"], data["last"], data["departure"]) == (0, 2, None)
    assert [row["loss_equal"] for row in data["steps"]] == [True, True, True]
    assert [row["recovery_point"] for row in data["steps"]] == [True, False, True]
    shown = cli("trajectory", bundle, *STEP)
    assert "From step 0 on, all as recorded: 3 steps." in shown.out
    assert (folder / f"{bundle}.findings" / "trajectory" / "ranges.json").is_file()


def test_without_kept_steps_it_says_what_to_record(cli, here):
    done = cli("trajectory", here[1], *STEP)
    assert done.code == 4
    assert "recovery_every" in done.err


def test_it_runs_no_code_that_is_not_trusted(cli, kept):
    done = cli("trajectory", kept[1], "--json")
    assert (done.code, done.out) == (4, "")
    assert "--trust import" in done.err
