"""Verdicts in sentences: one for each, and none says more than was seen."""

from __future__ import annotations

import pytest

from workbench.evidence.verdicts import (
    reproduction_sentence,
    result_sentence,
    result_words,
    verdict_sentence,
)


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
        (
            {
                "verdict": "bitwise",
                "differences": [
                    "kernel differs (recorded 6.1, here 6.8)",
                    "packages.torch differs (recorded 2.12.0, here 2.13.0)",
                    "device differs (recorded cuda:0, here cpu)",
                ],
            },
            "same non-finite values. On another device: recorded cuda:0, here cpu.",
        ),
        (
            {"verdict": "bitwise", "differences": ["kernel differs (recorded 6.1, here 6.8)"]},
            "same non-finite values.",
        ),
    ],
)
def test_verdicts(reproduction, text):
    assert reproduction_sentence(reproduction).endswith(text)


def test_where_nothing_tripped_no_sameness_of_bad_values_is_claimed():
    for verdict in ("bitwise", "same_mask", "not_reproduced"):
        said = verdict_sentence(verdict, sink=None, max_relative=1e-7)
        assert "non-finite" not in said
        assert reproduction_sentence({"verdict": verdict, "tripped": False}).startswith(said[:16])


def test_what_a_counterfactual_showed_is_one_text_alone_and_within_a_sentence():
    for result in ("gone", "moved", "benign_skip", "unchanged"):
        words = result_words(result)
        assert result_sentence(result) == f"{words[0].upper()}{words[1:]}."
    assert result_sentence("moved", "loss") == "It moves to loss."
    assert "unknown to this version" in result_sentence("else")
