import pytest

from tests.unit.reports.fabricated import incident
from workbench.reports import wording


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
    assert wording.headline(incident(summary=[line])) == expected


def test_lines_are_read_without_their_label():
    made = incident(summary=["h", "Why     zero.", "Resume  ckpt. Before that, try: x."])
    assert wording.line(made, "Why") == "zero."
    assert wording.resume(made) == "ckpt."
    assert wording.line(made, "Reach") == ""


def test_an_answer_that_is_not_there_is_a_gap():
    assert wording.answer(incident(), "where").startswith("Answer where")
    assert wording.answer(incident(answers=[]), "where") == "Not known."


def test_title_of_ones_own_wins():
    assert wording.title(incident(about={"title": "Mine"})) == "Mine"
    assert wording.title(incident()) == "Non-finite incident NF-3f2a91 · run7, step 18,342"


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
    assert wording.when(incident(ledger=records)) == text


def test_limits_and_what_counterfactuals_leave_open_are_both_named():
    text = wording.not_shown(incident())
    assert "Nothing is known about other seeds" in text
    assert "That training stays finite after this step." in text
