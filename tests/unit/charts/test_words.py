import math

import pytest

from workbench.charts.drawing import Drawing
from workbench.charts.words import counts, number, shorten, verdict
from workbench.errors import UsageError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (18342, "18,342"),
        (-3, "−3"),
        (0.0, "0"),
        (41216.0, "41,216"),
        (3.4028234e38, "3.403e38"),
        (5.960464e-8, "5.96e−8"),
        (1e-6, "1e−6"),
        (-0.25, "−0.25"),
        (math.nan, "NaN"),
        (math.inf, "+Inf"),
        (-math.inf, "−Inf"),
        (None, "–"),
        ("text", "text"),
        (True, "True"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text


def test_counts_name_each_kind():
    found = {"nan": 1, "pos_inf": 0, "neg_inf": 3, "finite": 8188}
    assert counts(found) == "1 NaN, 3 −Inf of 8,192"
    assert counts({"finite": 4}) == "all 4 finite"
    assert counts({}) == "no element"


def test_long_names_keep_both_ends_and_the_width():
    name = "encoder.blocks.11.attention.output.projection"
    cut = shorten(name, 20)
    assert len(cut) == 20
    assert (cut[:5], cut[-5:]) == ("encod", "ction")


@pytest.mark.parametrize(
    ("reproduction", "text"),
    [
        (None, "Not replayed yet."),
        ({"verdict": None}, "Not replayed yet."),
        ({"verdict": "bitwise", "survives_instrumentation": True}, "Still fails with probes on."),
        ({"verdict": "bitwise", "survives_instrumentation": False}, "a hint, not evidence."),
        (
            {
                "verdict": "not_reproduced",
                "differences": [{"field": "device", "recorded": "H100", "here": "cpu"}],
            },
            "device recorded H100, here cpu.",
        ),
    ],
)
def test_verdicts(reproduction, text):
    assert verdict(reproduction).endswith(text)


def test_drawing_travels_as_data_and_refuses_parts_it_does_not_know():
    picture = Drawing(10, 10, "a & b")
    picture.text(1, 2, "<script>", "wb-tick")
    again = Drawing.from_dict(picture.as_dict())
    assert again.markup() == picture.markup()
    assert "<script>" not in again.markup()
    assert "a &amp; b" in again.markup()
    for element in (["script", {}, "x"], ["text", {"onload": "x"}, ""]):
        with pytest.raises(UsageError, match="no drawing of this package has"):
            Drawing.from_dict({**picture.as_dict(), "elements": [element]})


def test_a_name_in_a_drawing_cannot_turn_the_text_around_it():
    picture = Drawing(10, 10, "title\u202e")
    picture.text(1, 2, "layer\u202e\x1b", "wb-tick")
    assert not set(picture.markup()) & {"\u202e", "\x1b"}
