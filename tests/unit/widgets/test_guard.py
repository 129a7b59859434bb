from __future__ import annotations

import pytest

from workbench.errors import UsageError
from workbench.widgets.guard import Guard


def broken():
    raise ZeroDivisionError("a bug")


@pytest.fixture
def reports():
    return []


@pytest.fixture
def guard(reports):
    return Guard(lambda region, problem: reports.append((region, problem)))


def test_under_test_a_failure_is_raised_and_reported(guard, reports):
    with pytest.raises(ZeroDivisionError):
        guard.wrap("rail", broken)("any", argument=1)
    assert reports[0][0] == "rail"


def test_a_bug_of_ours_is_shown_with_a_trace_to_copy(guard, reports, monkeypatch):
    monkeypatch.delenv("WORKBENCH_RAISE")
    guard.wrap("rail", broken)()
    region, problem = reports[0]
    assert (region, problem.text) == ("rail", "This panel failed; the others work.")
    assert "ZeroDivisionError: a bug" in problem.trace
    assert isinstance(guard.last_error, ZeroDivisionError)


def test_an_error_of_the_user_is_shown_in_its_own_words(guard, reports, monkeypatch):
    monkeypatch.delenv("WORKBENCH_RAISE")

    def refused():
        raise UsageError("Give a stage.")

    guard.wrap("rail", refused)()
    assert (reports[0][1].text, reports[0][1].trace) == ("Give a stage.", "")


def test_one_broken_region_leaves_the_others_alive(panel, monkeypatch):
    monkeypatch.delenv("WORKBENCH_RAISE")
    monkeypatch.setattr(panel.runs, "draw", lambda state: broken())
    panel.run_to_first_bad()
    panel.wait()
    assert panel.state.problem("runs").text == "This panel failed; the others work."
    assert "Original" in panel.rail._whose.value
    assert "ZeroDivisionError" in panel.drawers.widget.value
