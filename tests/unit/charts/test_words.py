import math

import pytest

from workbench.charts.drawing import Drawing
from workbench.charts.words import number, shorten
from workbench.errors import UsageError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (18342, "18,342"),
        (-3, "−3"),
        (0.0, "0"),
        (41216.0, "41,216"),
        (3.4028234e38, "3.403e38"),
        (5.960464e-8, "5.96e-8"),
        (1e-6, "1e-6"),
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


def test_long_names_keep_both_ends_and_the_width():
    name = "encoder.blocks.11.attention.output.projection"
    cut = shorten(name, 20)
    assert len(cut) == 20
    assert (cut[:5], cut[-5:]) == ("encod", "ction")


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
