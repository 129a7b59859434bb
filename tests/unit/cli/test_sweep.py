"""sweep: a table, its tables on disk, and minimal sets, from the command line."""

from __future__ import annotations

import pytest

STEP = ("--step", "tiny.py:LogOfZero")


def test_a_sweep_as_json_and_as_a_table(cli, here):
    folder, bundle = here
    words = ("sweep", bundle, *STEP, "--set", "keep_samples=0/1", "--jobs", "2")
    data = cli(*words, "--json").json
    assert data["schema"] == "workbench.sweep/1"
    assert [row["name"] for row in data["cells"]] == [
        "original", "keep samples 0", "keep samples 1",
    ]  # fmt: skip
    assert data["cells"][0]["result"] == "unchanged"
    finite = [row for row in data["cells"] if row["mask"] == "finite"]
    assert len(data["findings"]) == len(finite)
    for finding in data["findings"]:
        assert finding["original_after"]["stage"] == "loss"
        assert (
            "this does not show that which samples are in the batch is its cause"
            in (finding["sentence"])
        )
    for name in ("cells", "runs", "stages", "sweep"):
        assert (folder / f"{bundle}.findings" / "sweep" / f"{name}.json").is_file()
    again = cli(*words, "--resume", "-o", f"{bundle}.findings/sweep")
    assert again.code == 0
    assert "● " in again.out and "◇ " in again.out and "caught at" in again.out
    assert again.err.count(" of ") == 0  # nothing was left to run


def test_minimal_sets(cli, here):
    _, bundle = here
    data = cli("sweep", bundle, *STEP, "--minimal", "--set", "dtype=float64", "--json").json
    found = data["conditions"]
    assert found["schema"] == "workbench.minimal/1"
    assert found["candidates"] == ["dtype"]
    assert found["fixing"]["set"] in (["dtype"], None)
    assert found["sentences"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--set"),
        (["--set", "colour=red"], "colour"),
        (["--set", "autocast=off,red"], "red"),
        (["--repeats", "0", "--set", "autocast=off"], "--repeats"),
    ],
)
def test_wrong_use(cli, here, words, said):
    done = cli("sweep", here[1], *STEP, *words)
    assert done.code == 2
    assert said in done.err


def test_it_runs_no_code_that_is_not_trusted(cli, here):
    done = cli("sweep", here[1], "--set", "autocast=off", "--json")
    assert (done.code, done.out) == (4, "")
    assert "--trust import" in done.err
