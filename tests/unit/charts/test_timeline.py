import json
import math

import pytest

from tests.unit.charts.fabricated import ledger
from workbench.charts import timeline
from workbench.errors import UsageError


def traces(figure):
    return {trace.name: trace for trace in figure.data}


def test_four_rows_share_the_step_axis():
    figure = timeline.figure(ledger(), 18342)
    names = [trace.name for trace in figure.data if trace.mode != "markers"]
    assert names == ["loss", "gradient norm", "loss scale", "learning rate"]
    assert {trace.xaxis for trace in figure.data} <= {None, "x"}


def test_non_finite_values_are_marks_never_gaps():
    found = traces(timeline.figure(ledger(), 18342))
    assert list(found["loss NaN"].x) == [18342]
    assert list(found["gradient norm +Inf"].x) == [18313, 18328]
    for trace in found.values():
        assert all(math.isfinite(value) for value in trace.y if value is not None)


def test_skips_are_ticks_with_their_reason():
    ticks = traces(timeline.figure(ledger(), 18342))["withheld updates"]
    assert list(ticks.x) == [18313, 18328, 18342]
    assert "skipped by the loss scaler" in ticks.hovertext[0]
    assert "withheld by the gate" in ticks.hovertext[2]


def test_incident_is_a_vertical_line_with_its_step():
    figure = timeline.figure(ledger(), 18342)
    (line,) = figure.layout.shapes
    assert (line.x0, line.x1) == (18342, 18342)
    assert "incident, step 18,342" in [note.text for note in figure.layout.annotations]


def test_two_hundred_steps_before_by_default():
    figure = timeline.figure(ledger(500), 18303 + 499)
    assert min(figure.data[0].x) == 18303 + 299


def test_field_that_was_never_recorded_is_said_so():
    records = [{"step": i, "loss": 1.0 + i} for i in range(4)]
    notes = [note.text for note in timeline.figure(records).layout.annotations]
    assert "loss scale: not recorded" in notes


@pytest.mark.parametrize(
    "values",
    [[1.0], [math.nan], [0.0, 0.0], [1e300, -1e300], [1e-30, 1e30], [-1.0, -5.0], [5e-324, 1.0]],
)
def test_odd_series_give_finite_axes(values):
    records = [{"step": i, "loss": value} for i, value in enumerate(values)]
    figure = timeline.figure(records, 0)
    json.loads(figure.to_json(), parse_constant=pytest.fail)
    low, high = figure.layout.yaxis.range
    assert math.isfinite(low)
    assert math.isfinite(high)
    assert low < high
    assert "nan" not in timeline.drawing(records, 0).markup().lower().replace("is nan", "")


def test_table_names_the_incident_and_the_value():
    rows = timeline.table(ledger(), 18342).rows
    assert rows[-1][:2] == ("18,342", "NaN")
    assert "incident" in rows[-1][-1]
    assert rows[10][2] == "+Inf"


def test_same_input_gives_same_bytes():
    figures = [timeline.figure(ledger(), 18342).to_json() for _ in range(2)]
    assert figures[0] == figures[1]
    assert timeline.drawing(ledger()).markup() == timeline.drawing(ledger()).markup()


def test_empty_ledger_says_what_to_do():
    with pytest.raises(UsageError, match="no record of rank 3"):
        timeline.figure(ledger(), rank=3)


def test_a_log_axis_names_powers_of_ten_and_nothing_between_them():
    from workbench.charts.ticks import decades, ticks_of

    assert decades(2.0, 5000.0, 4, powers=False)["ticktext"] == ["10", "100", "1,000"]
    far = decades(1e-7, 3e38, 7, powers=True)
    assert len(far["tickvals"]) <= 7 and far["ticktext"][-1] == "10<sup>35</sup>"
    assert "1" in far["ticktext"]
    axis = {"type": "log", "range": [-7, 38], **far}
    last = ticks_of(axis, 200.0)[-1]
    assert (last.text, last.power, round(last.place)) == ("10", "35", 35)
    assert decades(2.0, 60.0, 4, powers=False)["ticktext"] == ["2", "5", "10", "20"]


def test_a_figure_alone_stands_on_the_ground_its_colours_are_made_for():
    from workbench.charts import style

    for theme in ("light", "dark"):
        assert style.layout(theme, 300)["paper_bgcolor"] == style.PALETTES[theme].paper
    assert style.PALETTES["light"].paper != style.PALETTES["dark"].paper
