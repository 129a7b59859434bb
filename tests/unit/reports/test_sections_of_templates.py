"""Sections of the other templates, from results that are written down here."""

import pytest

from tests.unit.charts.fabricated import HOSTILE
from tests.unit.reports.fabricated import incident
from workbench.numerics import jsonio
from workbench.reports import bisects, comparisons, ladders, sweeps, trajectories
from workbench.reports.render import render_blocks

CELL = {
    "name": "original",
    "changed": {},
    "diagnostic": False,
    "result": "unchanged",
    "verdict": "bitwise",
    "stage": "loss",
    "tensor": "loss",
    "loss": float("nan"),
    "mask": "equal",
    "same_each_time": None,
    "without_effect": [],
    "error": None,
    "seconds": 1.5,
    "kept": False,
}


def cell(name, result="gone", **changes):
    finite = result == "gone"
    return CELL | {
        "name": name,
        "diagnostic": True,
        "result": result,
        "stage": None if finite else "loss",
        "tensor": None if finite else "loss",
        "mask": "finite" if finite else "equal",
        **changes,
    }


def sweep(cells, **changes):
    data = {"schema": "workbench.sweep/1", "bundle": "", "cells": [CELL, *cells], "findings": []}
    values = {"autocast": ["off"], "deterministic": ["on"]}
    made = incident(conditions={"autocast": "float16", "deterministic": "off"})
    return sweeps.SweepReport(made, data, None, values, **{"combined": False, **changes})


def facts(section):
    (block,) = [b for b in section.blocks if b["type"] == "facts"]
    return {name: text for name, text, _ in block["rows"]}


def title(section):
    (block,) = [b for b in section.blocks if b["type"] == "title"]
    return block


def test_sweep_counts_what_ends_the_failure_and_names_what_did_not_run():
    died = cell("dtype float64", "died", error="out of memory", tensor=None)
    section = sweeps.first_screen(sweep([cell("autocast off"), died]))
    said = title(section)["headline"]
    assert said == "The failure is reproduced here; it is gone with 1 of 2 changed conditions."
    assert facts(section)["Gone with"] == "autocast off."
    assert facts(section)["Not run"] == "dtype float64 (out of memory)"


def test_sweep_that_does_not_fail_here_says_so():
    report = sweep([])
    report.sweep["cells"] = [CELL | {"tensor": None, "stage": None, "result": "gone"}]
    said = title(sweeps.first_screen(report))
    assert said["headline"].startswith("It did not fail here")
    assert said["tone"] == ""


def test_sweep_travels_without_what_differs_from_run_to_run():
    text = sweeps.first_screen(sweep([cell("autocast off")])).findings
    assert "seconds" not in text
    assert jsonio.loads(text)["sweep"]["cells"][1]["result"] == "gone"


def test_two_combined_conditions_make_a_matrix():
    cells = [
        cell("both", changed={"autocast": "off", "deterministic": "on"}),
        cell("autocast off", changed={"autocast": "off"}),
        cell("deterministic on", "unchanged", changed={"deterministic": "on"}),
    ]
    matrix = sweeps.cells(sweep(cells, combined=True)).blocks[0]
    assert matrix["headers"] == ["autocast", "deterministic off", "deterministic on"]
    assert matrix["rows"] == [
        ["autocast float16", "✕ As recorded.", "✕ It fails the same way."],
        ["autocast off", "✓ The failure is gone.", "✓ The failure is gone."],
    ]


def bisect(origin, **changes):
    data = {
        "direction": "forward",
        "block": "up.1" if origin else None,
        "part": "'up.1' (Conv2d)" if origin else "",
        "origin": origin,
        "probes": [{"what": "boundaries of 5 blocks", "result": "+inf"}],
        "probe_count": 1,
        "ops": 22,
        "ops_looked_at": 3,
        "used_full_trace": False,
        "notes": [],
    }
    return bisects.BisectReport(incident(), data, **changes)


def test_bisect_of_a_clean_step_names_no_block():
    section = bisects.first_screen(bisect(None))
    assert title(section)["headline"] == "Nothing non-finite reaches a sink of this step here."
    assert "Block" not in facts(section)


def test_bisect_says_what_needed_blocks_do_and_do_not_show():
    origin = {"op": "aten.convolution.default", "where": "module", "module": "up.1"}
    needed = {
        "needed": ["up.1"],
        "original_fails": False,
        "monotone": False,
        "probes": [],
        "unfit": {"norm": "another shape"},
        "notes": ["Diagnostic."],
    }
    report = bisect(origin, changes={"precision": needed}, skipped={"remove": "not asked for"})
    said = facts(bisects.first_screen(report))["Needs float32"]
    assert said == "up.1. The original, run again, is finite too: this says nothing."
    text = render_blocks(bisects.changes(report).blocks)
    assert "the answer is one of several" in text
    assert "Blocks replaced by identity: not asked for." in text


def ladder(fails, first=None, **changes):
    rungs = [
        {
            "backend": name,
            "original": name == "off",
            "fails": bad,
            "first_bad": {"stage": "loss", "tensor": "loss"} if bad else None,
            "error": None,
            "first_parting": None,
            "partings": [],
        }
        for name, bad in zip(("off", "eager", "inductor"), fails, strict=False)
    ]
    data = {
        "recorded_backend": "off",
        "aligned": True,
        "unaligned": {},
        "stale_caches": [],
        "changed_trigger": [],
        "reproductions": rungs,
        "first_different": first,
        "conclusion": f"The backend {first}.",
        "first_module": None,
        "compiler_bisector": None,
        "notes": [],
        **changes,
    }
    return ladders.LadderReport(incident(), data)


@pytest.mark.parametrize(
    ("fails", "first", "said"),
    [
        ((True, True, True), None, "fails in 3 of 3 runs. The backend None."),
        ((True, True, False), "inductor", "fails in 2 of 3 runs. The backend inductor."),
        ((False, False), None, "is finite in 2 of 2 runs. The backend None."),
        ((True,), None, "fails in 1 of 1 run. The backend None."),
    ],
)
def test_ladder_says_both_whether_it_fails_and_whether_it_differs(fails, first, said):
    assert said in title(ladders.first_screen(ladder(fails, first)))["headline"]


def test_ladder_that_could_not_compile_says_why():
    report = ladder((True, False))
    report.rungs[1]["error"] = "no C++ compiler"
    assert facts(ladders.first_screen(report))["Did not run"] == "Eager."
    assert "did not run: no C++ compiler" in render_blocks(ladders.runs(report).blocks)


def trajectory(**changes):
    row = {
        "loss": 1.0,
        "loss_equal": True,
        "gradient_norm": 1.0,
        "loss_scale": None,
        "learning_rate": 0.1,
        "absmax": 1.0,
        "update_ratio": 0.1,
        "recovery_point": True,
        "bad": None,
    }
    steps = [row | {"step": 3}, row | {"step": 4, "loss": float("nan"), "bad": "loss: loss"}]
    data = {
        "start": 3,
        "last": 4,
        "departure": None,
        "outlier": None,
        "steps": steps,
        "sentences": ["From step 3 on, all as recorded: 2 steps.", "No envelope: it takes 4."],
        **changes,
    }
    ranges = [
        {
            "step": 3 + i,
            "parameter": "w",
            "absmax": v,
            "rms": 1.0,
            "gradient_absmax": float("nan"),
            "update_ratio": 0.1,
        }
        for i, v in enumerate((1.0, 64.0))
    ]
    return trajectories.TrajectoryReport(incident(), data, ranges)


def test_trajectory_names_the_first_bad_step_and_what_grew():
    report = trajectory()
    assert facts(trajectories.first_screen(report))["First bad"] == "Step 4, loss: loss."
    (table,) = trajectories.ranges(report).blocks
    assert table["rows"] == [["w", "largest magnitude", "1", "64", "64×"]]


def test_trajectory_that_departs_says_where():
    gone = {"step": 4, "what": "optimizer_state", "names": [], "repeats": None, "sentence": "x"}
    section = trajectories.first_screen(trajectory(departure=gone, sentences=["Departs."]))
    assert facts(section)["As recorded"] == "Departs at step 4, in optimizer state."
    assert title(section)["tone"] == "alert"


def comparison(a, b, masks=None, **changes):
    data = {
        "rows": [],
        "conditions": [],
        "environment": [],
        "note": "",
        "compared_tensors": 2,
        "bitwise": 1,
        "parts_at": "gradient:w",
        **changes,
    }
    return comparisons.ComparisonReport(a, b, data, masks or {})


def test_comparison_of_alike_and_other_failures():
    same = comparison(incident(), incident(digest="sha256:other"), {"loss": ("a1", "a1")})
    section = comparisons.first_screen(same)
    assert title(section)["headline"].startswith("The same failure in both: born at ")
    assert facts(section)["Non-finite"] == "The same elements in loss."
    other = incident(digest="sha256:other")
    other.findings["origins"][0]["op"] = "aten.div.Tensor"
    section = comparisons.first_screen(comparison(incident(), other, {"loss": ("a1", "b2")}))
    assert title(section)["headline"].startswith("Two failures: A is born at ")
    assert "Op" in facts(section)["Differs"]
    assert facts(section)["Non-finite"] == "Other elements in loss."


def test_comparison_does_not_compare_births_that_are_not_known():
    plain = incident(digest="sha256:other", findings=None)
    said = title(comparisons.first_screen(comparison(incident(), plain)))["headline"]
    assert "not both are diagnosed" in said


def test_comparison_looks_at_masks_before_values():
    row = {
        "name": "w",
        "only": "",
        "bitwise": False,
        "same_masks": False,
        "shape_a": [3],
        "shape_b": [3],
        "masks": [{"kind": "nan", "a": 1, "b": 0}, {"kind": "pos_inf", "a": 0, "b": 0}],
        "max_abs": 0.5,
        "max_rel": 0.25,
        "file": "gradients.safetensors",
    }
    report = comparison(incident(), incident(), {"w": ("aa", "")}, rows=[row])
    masks, tensors, *_ = comparisons.tensors(report).blocks
    assert masks["rows"] == [["w", "aa…", "not bad", "bad in A only"]]
    assert tensors["rows"][0][2] == "NaN: 1 in A, 0 in B"


def test_history_says_how_far_two_runs_are_equal():
    a, b = incident(), incident()
    assert "are equal at the" in facts(comparisons.first_screen(comparison(a, b)))["History"]
    b.ledger = [dict(record) for record in b.ledger]
    b.ledger[-3]["loss"] = 1e9
    said = facts(comparisons.first_screen(comparison(a, b)))["History"]
    assert f"differ at step {b.ledger[-3]['step']:,}" in said


def test_hostile_names_are_text_in_every_section():
    cells = [cell(HOSTILE, "error", error=HOSTILE, tensor=HOSTILE)]
    made = incident(hostile=True)
    report = sweep(cells)
    report.incident = made
    shown = [
        sweeps.first_screen(report),
        sweeps.cells(report),
        comparisons.first_screen(comparison(made, made)),
        comparisons.facts(comparison(made, made)),
        ladders.first_screen(ladder((True,), HOSTILE)),
        trajectories.first_screen(trajectory(sentences=[HOSTILE])),
    ]
    for section in shown:
        assert HOSTILE not in render_blocks(section.blocks)
