"""A live chart that the page does not draw any more is made anew; one that answers is kept."""

from __future__ import annotations

import plotly.graph_objects as go
import pytest

from workbench.widgets.figure import MOST_REMADE, LiveFigure
from workbench.widgets.guard import Guard


@pytest.fixture
def placed():
    return []


@pytest.fixture
def live(placed):
    def failed(_region, problem):
        raise AssertionError(problem)

    made = LiveFigure(lambda _x: None, Guard(failed), placed.append)
    made.show(go.Figure(data=[go.Scatter(y=[1, 2])]), 600)
    made.widget._view_count = 1
    return made


def change(live):
    live.show(go.Figure(data=[go.Scatter(y=[1, 2]), go.Scatter(y=[2, 1])]), 600)
    return live.widget._last_layout_edit_id


def test_a_change_that_the_page_answered_keeps_the_figure(live, placed):
    edit = change(live)
    live.widget._js2py_layoutDelta = {"layout_delta": {}, "layout_edit_id": edit}
    live._check(live.widget, edit)
    assert placed == [live.widget]


def test_a_change_without_an_answer_makes_it_anew_with_all_of_it(live, placed):
    edit = change(live)
    live._check(live.widget, edit)
    assert len(placed) == 2 and placed[1] is live.widget
    assert len(live.widget.data) == 2 and live.widget.layout.width == 600


def test_a_figure_that_is_not_in_the_page_is_left_alone(live, placed):
    live.widget._view_count = 0
    live._check(live.widget, change(live))
    assert len(placed) == 1


def test_it_is_given_up_after_some_tries(live, placed):
    for _ in range(MOST_REMADE + 3):
        live.widget._view_count = 1
        live._check(live.widget, 99)
    assert len(placed) == 1 + MOST_REMADE
