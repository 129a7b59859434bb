import pytest

from tests.unit.reports.fabricated import incident
from workbench.reports import answers


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("✕ The loss became NaN.", ("The loss became NaN.", "bad")),
        ("! Nothing non-finite. Alert: x", ("Nothing non-finite. Alert: x", "alert")),
        ("· Nothing tripped.", ("Nothing tripped.", "")),
        ("The loss became NaN.", ("The loss became NaN.", "bad")),
    ],
)
def test_headline_and_tone_come_from_the_summary(line, expected):
    assert answers.headline(incident(summary=[line])) == expected


def test_lines_are_read_without_their_label():
    made = incident(
        summary=["h", "Why     zero.", "Sure?   Yes.", "Reach   None.", "Resume  ckpt."]
    )
    assert answers.reproduced(made) == "Yes."
    assert answers.contaminated(made) == "None."
    assert answers.resume(made) == "ckpt."


def test_title_of_ones_own_wins():
    assert answers.title(incident(about={"title": "Mine"})) == "Mine"
    assert answers.title(incident()) == "Non-finite incident NF-3f2a91 · run7, step 18,342"


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (1762933959.0, "12 Nov 2025, 07:52 UTC"),
        ("2025-11-12T08:52:39+01:00", "12 Nov 2025, 07:52 UTC"),
        ("never", ""),
        (None, ""),
    ],
)
def test_time_is_that_of_the_step(time, text):
    records = [{"step": 18342, "rank": 0, "time": time}]
    assert answers.when(incident(ledger=records)) == text


def test_caught_and_born_are_kept_apart():
    text = answers.where(incident())
    assert text.startswith("Caught at loss (loss) · step 18,342")
    assert "Born at aten.mul.Tensor in loss, train.py:31." in text


def test_other_ranks_are_not_spoken_for():
    assert "bundles of other ranks were not read" in answers.ranks(incident())
    one = incident(manifest={"world": 1}, ledger=[])
    assert answers.ranks(one) == "One process."


def test_prevention_is_named_diagnostic_and_has_its_placebo():
    text = answers.prevent(incident())
    tried = "Tried as a diagnostic, log_softmax instead of log(softmax): The failure is gone."
    assert tried in text
    assert "The same kind of change elsewhere: It fails the same way." in text


def test_fix_that_was_not_tried_is_said_so():
    data = incident().findings
    data["counterfactuals"] = []
    data["origins"][0]["fix"] = "Use log_softmax."
    assert answers.prevent(incident(findings=data)) == "Use log_softmax. Not tried here."


def test_without_replay_nothing_is_claimed():
    data = incident().findings
    data.update(origins=[], counterfactuals=[], chain=[], reproduction={"verdict": None})
    made = incident(findings=data)
    assert answers.prevent(made) == answers.NEEDS_REPLAY
    assert "Born" not in answers.where(made)


def test_limits_and_what_counterfactuals_leave_open_are_both_named():
    text = answers.not_shown(incident())
    assert "Nothing is known about other seeds" in text
    assert "That training stays finite after this step." in text
