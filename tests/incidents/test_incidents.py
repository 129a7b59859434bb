"""The incidents of this folder: recorded, replayed, diagnosed, compared with their labels."""

from __future__ import annotations

import pytest

from tests.incidents._running import (
    HERE,
    copy_incidents,
    disagreements,
    incident_files,
    labels_of,
    run_folder,
)

STEMS = [path.stem for path in incident_files(HERE)]
LABELS = labels_of(HERE)
FAILURES = [stem for stem in STEMS if not LABELS.get(stem, {}).get("negative")]
LOOK_ALIKES = [stem for stem in STEMS if LABELS.get(stem, {}).get("negative")]

KNOWN: dict[str, tuple[set[str], str]] = {}
"""Where the diagnosis is known to disagree with a label: the fields, and why."""

KINDS = {
    "nw01_numpy_view_write": "unseen_write",
    "cap01_schedule_table_outside_model": "captured_tensor",
    "om07_momentum_buffer_from_bad_shard": "poisoned_optimizer_state",
    "fb01_frozen_batchnorm_nan_buffer": "poisoned_buffer",
    "pp01_tied_weight_nan_in_module_list": "poisoned_parameter",
    "lb01_infinite_survival_time": "poisoned_batch",
    "at20_mask_times_minus_inf": "conversion",
    "gp01_cholesky_not_positive_definite": "exception",
    "rl03_scale_underflow_raises": "exception",
    "rn02_zero_length_sequence_raises": "exception",
    "df01_log_snr_at_zero_terminal_snr": "birth",
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = copy_incidents(HERE, tmp_path_factory.mktemp("incidents"))
    return run_folder(folder)["incidents"]


def test_every_file_has_a_label_and_every_label_a_file():
    assert set(STEMS) == set(LABELS)


def test_there_are_enough_of_both_kinds():
    assert len(FAILURES) >= 30
    assert len(LOOK_ALIKES) >= 8


@pytest.mark.parametrize("stem", FAILURES)
def test_answer_is_the_label(rows, stem):
    fields, reason = KNOWN.get(stem, (set(), ""))
    assert disagreements(rows[stem]) == fields, (
        reason or rows[stem]["error"] or rows[stem]["origins"]
    )


@pytest.mark.parametrize("stem", LOOK_ALIKES)
def test_look_alike_reports_nothing(rows, stem):
    fields, reason = KNOWN.get(stem, (set(), ""))
    assert disagreements(rows[stem]) == fields, (
        reason or rows[stem]["error"] or rows[stem]["origins"]
    )


def test_known_disagreements_name_incidents_that_exist():
    assert set(KNOWN) <= set(STEMS)


@pytest.mark.parametrize("stem", STEMS)
def test_replay_is_bitwise_and_survives_the_trace(rows, stem):
    assert (rows[stem]["verdict"], rows[stem]["survives_instrumentation"]) == ("bitwise", True)


@pytest.mark.parametrize(("stem", "kind"), KINDS.items())
def test_kind_of_the_first_origin(rows, stem, kind):
    assert rows[stem]["origins"][0]["kind"] == kind


def test_two_independent_origins_are_both_named(rows):
    found = [(o["op"], o["module"]) for o in rows["tw01_two_origins_in_one_step"]["origins"]]
    assert found == [("aten.log.default", "left.2"), ("aten.div.Tensor", "right.2")]


# an incident on a library's own layers has its line there: peft's LoRA layer
IN_A_LIBRARY = {"lr01_lora_on_gpt2_overflows_in_half": "layer.py:"}


def test_source_lines_lie_in_the_incident_or_are_empty(rows):
    outside = {
        (stem, origin["source"])
        for stem, row in rows.items()
        for origin in (*row["origins"], *row["absorbed"])
        if origin["source"]
        and not origin["source"].startswith((f"{stem}.py:", IN_A_LIBRARY.get(stem, f"{stem}.py:")))
    }
    assert not outside
