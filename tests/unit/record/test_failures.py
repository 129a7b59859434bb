"""A run whose disk stays full does not fill its memory with what failed."""

from __future__ import annotations

from workbench.record.failures import MOST, Failures


def test_the_last_sentences_are_held_and_all_are_counted() -> None:
    failures = Failures()
    for number in range(MOST + 5):
        failures.add(f"step {number}")
    assert len(failures) == MOST and failures[0] == "step 5"
    assert failures.total == MOST + 5


def test_what_a_step_added_is_told_once_also_when_older_ones_went() -> None:
    failures = Failures()
    for number in range(MOST):
        failures.add(f"before {number}")
    begun = failures.total
    assert failures.since(begun) == []
    for sentence in ("ledger", "bundle", "ledger"):
        failures.add(sentence)
    assert failures.since(begun) == ["ledger", "bundle"]
