"""A chart's first view, drawn without plotly, is what plotly draws: same ticks, same places."""

from __future__ import annotations

import json
import math
from pathlib import Path

import plotly
import pytest

from tests.browser.report_browser import needs_chromium, opened
from tests.unit.charts.fabricated import ledger
from workbench.charts import timeline
from workbench.charts.still import still
from workbench.charts.timeline_view import timeline_view

pytestmark = [pytest.mark.browser, needs_chromium]
SCRIPT = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
WIDTH, HEIGHT = 1192, 346
# Where each text ends or is centred, and where each line, mark and grid line lies.
SEEN = """(root) => {
  const near = (value) => Math.round(value);
  const texts = [...root.querySelectorAll('text')].map((text) => {
    const box = text.getBoundingClientRect(), at = root.getBoundingClientRect();
    const said = text.textContent.replace(/\\u200b/g, '');
    return [said, near(box.right - at.left), near(box.bottom - at.top)];
  }).filter(([said]) => said !== '');
  const marks = [...root.querySelectorAll('.trace path')].map((path) => {
    const box = path.getBoundingClientRect(), at = root.getBoundingClientRect();
    return [box.left - at.left, box.top - at.top, box.width, box.height].map(near);
  });
  return { texts: texts.sort(), marks: marks.sort() };
}"""


def records(losses, rate=3e-4, scale=1024.0):
    return [
        {"step": 7 * i, "loss": loss, "loss_scale": scale * (1 + i), "learning_rates": [[rate]]}
        for i, loss in enumerate(losses)
    ]


LEDGERS = {
    "fabricated": ledger(),
    "long": ledger(steps=190),
    "an alert": [
        {**one, "alerts": [{"message": "odd"}] if i == 20 else []} for i, one in enumerate(ledger())
    ],
    "large": records([1e9, 2.3e9, math.inf, 4e9], rate=2.5e-7),
    "within a decade": records([0.11 * 61**0.25 * k for k in (1, 9, 30, 61)], scale=1e-6),
    "two decades": records([0.02, 0.5, 3.0, math.nan], rate=0.0),
    "many decades": records([1e-20, 1.0, 1e12, -math.inf], rate=1e-12),
    "negative": records([-3.2, -1.0, -70.5], rate=7.0),
    "one": records([2.5]),
}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("still") / "page.html"
    path.write_text(
        f'<meta charset="utf-8"><style>body {{ margin: 0 }}</style>'
        f'<div id="still"></div><div id="live"></div><script src="file://{SCRIPT}"></script>'
    )
    with opened(path, wait=False) as (page, said, asked):
        yield page
    assert said == [] and all(one.startswith("file:") for one in asked)


@pytest.mark.parametrize("name", LEDGERS)
def test_the_first_view_stands_where_plotly_draws(page, name):
    view = timeline_view(LEDGERS[name], LEDGERS[name][-1]["step"])
    spec = timeline.spec(view, "light", HEIGHT, LEDGERS[name][0]["step"])
    figure = timeline.as_figure(spec)
    figure.layout.width = WIDTH
    page.evaluate(
        """async ([figure, markup]) => {
          await Plotly.newPlot('live', figure.data, figure.layout);
          document.getElementById('still').innerHTML = markup;
        }""",
        [json.loads(figure.to_json()), still(spec, WIDTH)],
    )
    live = page.locator("#live").evaluate(SEEN)
    drawn = page.locator("#still svg").evaluate(SEEN)
    assert [said for said, *_ in drawn["texts"]] == [said for said, *_ in live["texts"]]
    for (said, *here), (_, *there) in zip(drawn["texts"], live["texts"], strict=True):
        assert here == pytest.approx(there, abs=2), said
    assert len(drawn["marks"]) == len(live["marks"])
    for here, there in zip(drawn["marks"], live["marks"], strict=True):
        assert here == pytest.approx(there, abs=2)
