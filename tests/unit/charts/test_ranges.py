import json
import math

import pytest

from tests.unit.charts.fabricated import HOSTILE, FakeTable, layers_table
from workbench.charts import ranges
from workbench.errors import UsageError


def traces(figure):
    return {trace.name: trace for trace in figure.data}


def annotations(figure):
    return [note.text for note in figure.layout.annotations]


def test_marks_stand_on_the_strip_with_sign_and_count():
    found = traces(ranges.figure(layers_table(12)))
    assert list(found["NaN"].x) == [11]
    assert list(found["NaN"].text) == ["1"]
    assert list(found["−Inf"].x) == [10]
    assert list(found["−Inf"].text) == ["3"]
    assert found["NaN"].yaxis == "y2"
    assert "+Inf" not in found


@pytest.mark.parametrize("count", [50, 399, 3_000])
def test_marks_are_never_thinned(count):
    table = layers_table(count, bad=False)
    table.columns["nan"][:] = 2
    figure = ranges.figure(table)
    drawn = round(figure.layout.xaxis.range[1] + 0.4)
    assert len(traces(figure)["NaN"].x) == drawn
    assert drawn == count if count <= 400 else 40 <= drawn <= 400


def test_no_number_handed_to_plotly_is_non_finite():
    text = ranges.figure(layers_table(12)).to_json()
    json.loads(text, parse_constant=pytest.fail)
    for trace in ranges.figure(layers_table(12)).data:
        values = [v for v in (*trace.x, *trace.y) if v is not None]
        assert all(math.isfinite(value) for value in values)


def test_limits_of_the_dtype_are_named_at_their_line():
    figure = ranges.figure(layers_table(12))
    assert "largest float16, 65504" in annotations(figure)
    drawn = [shape.y0 for shape in figure.layout.shapes]
    assert 65504.0 in drawn
    assert any(value == pytest.approx(2**-24) for value in drawn)


def test_far_limits_are_named_but_do_not_stretch_the_axis():
    figure = ranges.figure(layers_table(12, dtype="float32"))
    assert any("far above: largest float32" in text for text in annotations(figure))
    assert figure.layout.yaxis.range[1] < 10


def test_unknown_dtype_has_no_limit_line_and_the_chart_is_still_drawn():
    assert ranges.figure(layers_table(12, dtype="mystery7")).layout.shapes == ()


def test_zero_tensor_is_counted_in_the_hover_not_plotted():
    table = layers_table(5, bad=False)
    for name in ("min", "max", "absmax", "mean_square"):
        table.columns[name][2] = 0.0
    table.columns["zeros"][2] = 8192
    figure = ranges.figure(table)
    assert 2 not in figure.data[0].x
    assert "8,192" in ranges.table(table).rows[2][6]


def test_hover_says_module_shape_dtype_counts_range_and_source():
    text = ranges.figure(layers_table(12)).data[0].hovertext[0]
    for part in (
        "blocks.0.norm",
        "[8, 128, 8]",
        "float16",
        "all 8,192 finite",
        "min −0.4",
        "max 0.5",
        "model.py:80",
    ):
        assert part in text


def test_second_run_is_dashed_and_found_by_name():
    first, second = layers_table(8), layers_table(8, bad=False)
    second.columns["module"] = second.columns["module"][::-1]
    found = traces(ranges.figure(first, other=second))
    line = found["diagnostic run, largest magnitude"]
    assert line.line.dash == "dash"
    assert line.y[0] == pytest.approx(second.columns["absmax"][-1])


def test_same_input_gives_same_bytes():
    assert ranges.figure(layers_table(12)).to_json() == ranges.figure(layers_table(12)).to_json()
    assert ranges.drawing(layers_table(12)).markup() == ranges.drawing(layers_table(12)).markup()


def test_themes_differ_only_in_colours():
    light = ranges.figure(layers_table(12)).to_json()
    dark = ranges.figure(layers_table(12), theme="dark").to_json()
    from workbench.charts.style import swaps

    for old, new in swaps().items():
        light = light.replace(old, new)
    assert light == dark


def test_hostile_names_are_escaped_for_plotly_and_svg():
    figure, picture = (
        make(layers_table(12, hostile=True)) for make in (ranges.figure, ranges.drawing)
    )
    assert "<img" not in figure.to_json().replace("\\u003c", "<")
    assert "<img" not in picture.markup()
    assert HOSTILE in [row[0] for row in ranges.table(layers_table(12, hostile=True)).rows]


def test_drawing_shows_every_mark_and_limit():
    markup = ranges.drawing(layers_table(12)).markup()
    assert "1 ✕" in markup or "✕ 1" in markup
    assert "3 ▼" in markup or "▼ 3" in markup
    assert "largest float16, 65504" in markup


def test_empty_kind_says_what_to_do():
    with pytest.raises(UsageError, match="no 'parameters'"):
        ranges.figure(layers_table(3), "parameters")
    with pytest.raises(UsageError, match="no 'activations'"):
        ranges.figure(FakeTable({"tensor": [], "order": []}))


def test_table_adds_the_other_run():
    rows = ranges.table(layers_table(4), other=layers_table(3, bad=False))
    assert rows.headers[-3:] == ("Diagnostic run: max |x|", "NaN or Inf", "Source")
    assert rows.rows[3][-3] == "not run"
