"""A live chart is one widget that is changed, and carries none of plotly's script."""

from __future__ import annotations

from pathlib import Path

import plotly
import plotly.graph_objects as go
import pytest

from workbench.widgets.figure import LiveFigure
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
    return made


def test_a_change_keeps_the_figure_and_all_of_the_new_content(live, placed):
    live.show(go.Figure(data=[go.Scatter(y=[1, 2]), go.Bar(y=[2, 1])]), 700)
    assert placed == [live.widget]
    assert [trace.type for trace in live.widget.data] == ["scatter", "bar"]
    assert live.widget.layout.width == 700


def test_what_a_new_figure_does_not_have_is_taken_away(live):
    live.show(go.Figure(data=[go.Scatter(y=[3], name="n")], layout={"title": "t"}), 600)
    live.show(go.Figure(data=[go.Scatter(y=[3])]), 600)
    assert live.widget.data[0].name is None
    assert live.widget.layout.title.text is None


def test_a_page_that_is_loaded_anew_is_told_of_the_content_of_now(live):
    live.show(go.Figure(data=[go.Scatter(y=[1]), go.Bar(y=[2])], layout={"title": "B"}), 700)
    state = live.widget.get_state()
    assert [trace["type"] for trace in state["_widget_data"]] == ["scatter", "bar"]
    assert state["_widget_layout"]["title"]["text"] == "B"


def test_the_script_is_sent_when_the_page_asks_for_it_and_not_before(live):
    sent = []
    live.widget.send = lambda content, buffers=None: sent.append((content, buffers))
    assert len(live.widget.get_state()["_esm"]) < 10_000
    live.widget._handle_custom_msg({"ask": "something else"}, [])
    live.widget._handle_custom_msg("plotly", [])
    assert sent == []
    live.widget._handle_custom_msg({"ask": "plotly"}, [])
    [(content, [script])] = sent
    assert content == {"plotly": live.widget._plotly_version}
    assert script == (Path(plotly.__file__).parent / "package_data/widgetbundle.js").read_bytes()
    live.widget._handle_custom_msg({"ask": "plotly"}, [])
    assert len(sent) == 1, "what was asked before the answer came is answered by it"
