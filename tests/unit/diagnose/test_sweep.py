"""Sweeps: real cells, real processes, one table that says no more than it shows."""

import multiprocessing
import re
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest
import torch

from tests.unit.diagnose.half_steps import Dies, Half, LogOfNegative, record, reference
from workbench.diagnose.dependence import bad_sentence, finite_sentence
from workbench.diagnose.mask_sets import pack_masks, relation
from workbench.diagnose.sweep import each_alone, grid, parse_values, run_sweep
from workbench.diagnose.sweep_conclusion import conclusion
from workbench.errors import UsageError
from workbench.evidence import open_bundle, read_table


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    return record(Half, tmp_path_factory.mktemp("half"))


@pytest.fixture
def here():
    """Cells in this process: the same code, without starting torch anew for each."""
    with ThreadPoolExecutor(1) as executor:
        yield executor


def test_a_list_of_conditions_in_processes_of_their_own(half, tmp_path):
    cells = [{"autocast": "off"}, {"max_grad_norm": 1.0}]
    swept = run_sweep(half, cells, step=reference(Half), directory=tmp_path, jobs=2)
    original, off, clip = swept.rows
    assert (original["name"], original["result"], original["verdict"]) == (
        "original", "unchanged", "bitwise",
    )  # fmt: skip
    assert (off["result"], off["mask"], off["verdict"], off["diagnostic"]) == (
        "gone", "finite", None, True,
    )  # fmt: skip
    assert (clip["result"], clip["stage"], clip["tensor"], clip["mask"]) == (
        "unchanged", "loss", "loss", "equal",
    )  # fmt: skip
    assert list(clip["without_effect"]) == ["max_grad_norm"]
    assert "clipping happens after backward" in clip["without_effect"]["max_grad_norm"]
    assert swept.to_data()["conclusion"] == (
        "Finite with 1 of 1 change: autocast off. What the failure depends on is narrowed down "
        "by that; nothing is repaired. The original, run again after it, still failed."
    )
    (finding,) = swept.findings
    assert finding["sentence"] == (
        "Finite with autocast off. The failure depends on autocast; this does not show that "
        "autocast is its cause."
    )
    assert finding["original_after"]["stage"] == "loss"


def test_a_cell_whose_process_dies_is_a_row(tmp_path):
    path = record(Dies, tmp_path / "run")
    cells = [{"autocast": "off"}]
    swept = run_sweep(path, cells, step=reference(Dies), directory=tmp_path / "out")
    assert [row["result"] for row in swept.rows] == ["unchanged", "died"]
    assert "exit code 7" in swept.rows[1]["error"]
    again = run_sweep(path, cells, step=reference(Dies), directory=tmp_path / "out", resume=True)
    assert [row["kept"] for row in again.rows] == [True, False]


def test_finished_cells_are_kept_for_the_same_bundle_code_and_conditions(half, here, tmp_path):
    def rows(cells, **how):
        return run_sweep(
            half, cells, step=Half, directory=tmp_path, executor=here, resume=True, **how
        ).rows

    first = rows([{"autocast": "off"}])
    second = rows([{"autocast": "off"}, {"autocast": "bfloat16"}])
    assert [row["kept"] for row in first] == [False, False]
    assert [row["kept"] for row in second] == [True, True, False]
    assert second[1]["loss"] == first[1]["loss"] and second[1]["mask"] == "finite"
    assert [row["kept"] for row in rows([{"autocast": "off"}], repeats=2)] == [False, False]
    fresh = run_sweep(half, [], step=Half, directory=tmp_path, executor=here)
    assert [row["kept"] for row in fresh.rows] == [False]


def test_a_damaged_cell_is_run_again(half, here, tmp_path):
    def kept():
        rows = run_sweep(half, [], step=Half, directory=tmp_path, executor=here, resume=True).rows
        return rows[0]["kept"], rows[0]["result"], rows[0]["mask"]

    assert kept() == (False, "unchanged", "equal")
    assert kept() == (True, "unchanged", "equal")
    (path,) = (tmp_path / "cells").iterdir()
    whole = path.read_text()
    for damage in (
        "{",
        whole.replace('"runs"', '"walks"'),
        whole.replace('"shape": []', '"shape": [999999999999999]'),
        re.sub(r'"pos_inf": ".*?"', '"pos_inf": "eJzt"', whole),
    ):
        assert damage != whole
        path.write_text(damage)
        assert kept() == (False, "unchanged", "equal")
        assert kept() == (True, "unchanged", "equal")


def test_a_pool_of_processes(half, tmp_path):
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        swept = run_sweep(half, [{"autocast": "off"}], step=Half, directory=tmp_path, executor=pool)
    assert [row["result"] for row in swept.rows] == ["unchanged", "gone"]


def test_a_grid_with_repeats_and_origins(half, here, tmp_path):
    threads = torch.get_num_threads()
    other = 1 if threads != 1 else 2
    cells = grid({"autocast": ["float16", "bfloat16"], "threads": [threads, other]})
    swept = run_sweep(
        half, cells, step=Half, repeats=2, trace=True, directory=tmp_path, executor=here
    )
    by_name = {row["name"]: row for row in swept.rows}
    assert len(swept.rows) == 4  # one combination is the original itself
    assert by_name[f"threads {other}"]["same_each_time"] is True
    assert by_name["original"]["op"] is not None and by_name["original"]["repeats"] == 2
    assert by_name["autocast bfloat16"]["origin"] is None
    both = next(f for f in swept.findings if len(f["changed"]) == 2)
    assert "depends on these conditions together" in both["sentence"]


def test_tables_and_tree(half, here, tmp_path):
    from workbench.charts.sweep_arrays import sweep_tree

    cells = each_alone({"autocast": ["off"], "device": ["cuda:77"]})
    swept = run_sweep(half, cells, step=Half, repeats=2, directory=tmp_path, executor=here)
    swept.save(tmp_path)
    table = read_table(tmp_path, "cells")
    assert table["result"] == ["unchanged", "gone", "error"]
    assert "cuda:77" in table["error"][2]
    tree = sweep_tree(tmp_path)
    assert tree["cells"]["result"].values.tolist() == ["unchanged", "gone", "error"]
    assert tree["runs"]["loss"].dims == ("cell", "repeat")
    assert tree["runs"]["loss"].sel(cell=1).isnull().sum() == 0
    assert tree["stages"]["status"].sel(cell=0, stage="loss").item() == "bad"
    assert tree["stages"]["status"].sel(cell=2, stage="loss").item() == "not_run"


def test_wrong_use(half):
    with pytest.raises(UsageError, match="colour"):
        run_sweep(half, [{"colour": "red"}], step=Half)
    with pytest.raises(UsageError, match="repeats"):
        run_sweep(half, [], step=Half, repeats=0)


def test_values_on_the_command_line():
    found = parse_values(["autocast=off,bfloat16", "keep_samples=0,2/1-3", "threads=1"])
    assert found == {
        "autocast": ["off", "bfloat16"],
        "keep_samples": [(0, 2), (1, 2, 3)],
        "threads": [1],
    }
    assert parse_values(["float32_modules=a.b,c/d"]) == {"float32_modules": [("a.b", "c"), ("d",)]}
    with pytest.raises(UsageError, match="autocast"):
        parse_values(["autocast"])


def test_a_failure_that_no_precision_takes_away(tmp_path, here):
    path = record(LogOfNegative, tmp_path / "run")
    cells = [{"dtype": "float64"}, {"keep_samples": [0]}]
    swept = run_sweep(path, cells, step=LogOfNegative, directory=tmp_path, executor=here)
    assert {row["result"] for row in swept.rows} == {"unchanged"}
    assert swept.findings == []
    assert open_bundle(path).digest == swept.bundle


@pytest.mark.parametrize(
    ("original", "other", "word"),
    [
        ([0, "n", "n"], [0, "n", "n"], "equal"),
        ([0, "n", "n"], [0, "n", 0], "subset"),
        ([0, "n", 0], [0, "n", "n"], "superset"),
        ([0, "n", 0], [0, 0, "n"], "disjoint"),
        (["n", "n", 0], [0, "n", "n"], "overlap"),
        ([0, "n", 0], [0, "p", 0], "disjoint"),
        ([0, "n", 0], [0, 0, 0], "finite"),
        ([0, 0, 0], ["m", 0, 0], "superset"),
    ],
)
def test_signs_are_classes_in_mask_relations(original, other, word):
    values = {"n": float("nan"), "p": float("inf"), "m": -float("inf"), 0: 0.0}

    def packed(row):
        return pack_masks([("loss", torch.tensor([values[v] for v in row]))])

    assert relation(packed(original), packed(other)) == word


def test_mask_relations_across_shapes_sinks_and_sizes():
    bad = torch.full((3,), float("nan"))
    assert relation(pack_masks([("a", bad)]), pack_masks([("a", bad[:2])])) == "unknown"
    assert relation(pack_masks([("a", bad)]), pack_masks([("b", bad)])) == "disjoint"
    assert relation(pack_masks([("exception:ValueError", None)]),
                    pack_masks([("exception:ValueError", None)])) == "equal"  # fmt: skip
    assert relation(None, pack_masks([("a", bad)])) == "unknown"
    assert relation(None, {}) == "finite"


def row(name, result, *idle, changed=("k",), tensor="loss", stage="loss", error=None):
    return {
        "name": name,
        "result": result,
        "changed": dict.fromkeys(changed),
        "without_effect": dict.fromkeys(idle, "why"),
        "tensor": tensor,
        "stage": stage,
        "error": error,
    }


ORIGINAL = row("original", "unchanged", changed=())


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "nothing was learnt"),
        ([ORIGINAL], "Only the original was run: it is bad at loss."),
        ([ORIGINAL, row("a", "unchanged", "k")], "No change that can act here"),
        ([ORIGINAL, row("a", "unchanged")], "it does not depend on that alone"),
        (
            [ORIGINAL, row("a", "unchanged"), row("b", "moved")],
            "any one of a and b alone. With b it is bad elsewhere.",
        ),
        ([ORIGINAL, row("a", "gone"), row("b", "unchanged")], "Finite with 1 of 2 changes: a."),
        ([ORIGINAL, row("a", "gone"), row("b", "died")], "No answer from b."),
        ([row("original", "gone", changed=())], "says nothing about the failure"),
        ([row("original", "varies", changed=())], "no cell settles anything"),
        ([row("original", "died", error="SIGKILL", changed=())], "no answer here (SIGKILL)"),
        (
            [row("original", "unchanged", changed=(), tensor=None), row("a", "appears")],
            "it turns bad with a",
        ),
    ],
)
def test_a_sweep_always_closes_with_what_was_learnt(rows, said):
    assert said in conclusion(rows)


def test_what_a_run_says_when_nothing_that_was_changed_can_act():
    said = bad_sentence({"max_grad_norm": 1.0}, "loss (loss)", moved=False, idle=["max_grad_norm"])
    assert "says nothing about what was changed" in said
    kept = bad_sentence({"keep_samples": (7,)}, "loss (loss)", moved=False)
    assert "what was kept is enough" in kept and "does not depend" not in kept
    moved = bad_sentence({"dtype": "float16"}, "forward (exception)", moved=True)
    assert moved.startswith("Bad elsewhere, at forward (exception), with dtype float16")
    finite = finite_sentence({"sdpa": "math"}, True, ["sdpa"])
    assert "nothing that was changed can act here" in finite
