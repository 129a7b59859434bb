import math

import pytest

from workbench.evidence import (
    byte_size,
    clean,
    count_words,
    counted,
    joined,
    kind_word,
    number,
    shape,
)
from workbench.evidence.wording import command_line


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (18342, "18,342"),
        (0, "0"),
        (-3, "−3"),
        (math.nan, "NaN"),
        (math.inf, "+Inf"),
        (-math.inf, "−Inf"),
        (65504.0, "65,504"),
        (9.1, "9.1"),
        (-41.23456, "−41.23"),
        (0.0, "0"),
        (2.98e-7, "2.98e-7"),
        (1.5e30, "1.5e30"),
        (None, "unknown"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text


def test_shapes_kinds_and_sizes():
    assert shape([8, 128, 768]) == "[8, 128, 768]"
    assert shape([]) == "[]"
    assert [kind_word(k) for k in ("nan", "+inf", "-inf")] == ["NaN", "+Inf", "−Inf"]
    assert [byte_size(n) for n in (12, 1500, 3_100_000_000)] == ["12 bytes", "1.5 kB", "3.1 GB"]


def test_counts():
    assert count_words({"nan": 1, "finite": 0}) == "1 NaN of 1"
    assert count_words({}) == "no element"
    assert count_words({"nan": 2, "neg_inf": 3, "finite": 8187}) == "2 NaN and 3 −Inf of 8,192"
    assert count_words({"finite": 8192}) == "all 8,192 finite"


def test_a_number_with_its_noun():
    assert [counted(n, "rank") for n in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]
    assert counted(8192, "bad entry", "bad entries") == "8,192 bad entries"


def test_a_command_can_be_copied():
    assert command_line("verify", "my runs/a.bundle") == "workbench verify 'my runs/a.bundle'"
    assert command_line("open", "a; rm -rf b") == "workbench open 'a; rm -rf b'"


def test_lists():
    assert joined([]) == ""
    assert joined(["a"]) == "a"
    assert joined(["a", "b", "c"]) == "a, b and c"
    assert joined(list("abcde"), 2) == "a, b and 3 more"


def test_text_from_outside_is_one_short_line():
    assert clean("a\nb\x1b[31m\u202ec") == "a b [31m c"
    long = clean("x" * 50 + "middle" + "y" * 500, 41)
    assert len(long) == 41
    assert long[20] == "…"
    assert (long[0], long[-1]) == ("x", "y")


def test_control_and_direction_characters_are_shown_and_line_breaks_kept():
    from workbench.evidence.wording import visible

    assert visible("a\u202eb\x1b[31m\x00\nc\td") == "a\ufffdb\ufffd[31m\ufffd\nc\td"


def test_where_an_origin_is_and_what_a_bundle_lacks():
    from workbench.evidence.wording import lacking, origin_place

    assert origin_place({"where": "module", "module": "", "stage": "backward"}) == (
        "the model, backward"
    )
    assert origin_place({"where": "module", "module": "enc.2", "stage": "forward"}) == "enc.2"
    assert origin_place({"where": "loss", "stage": "loss"}) == "loss"
    assert origin_place({"stage": "backward"}) == "backward"
    assert lacking("missing batch: reduced to statistics by redact") == (
        "the bundle has no batch (reduced to statistics by redact)"
    )
    assert lacking("missing parts of the batch: a lambda").startswith("the bundle lacks parts of")
    assert lacking("missing optimizer state") == "the bundle has no optimizer state"
