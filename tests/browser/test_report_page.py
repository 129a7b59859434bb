"""The report as a reader meets it: offline, under its policy, without scripts, printed."""

from __future__ import annotations

import re
from itertools import pairwise

import nbformat
import pytest

from tests.browser.report_browser import needs_chromium, opened
from tests.unit.charts.fabricated import HOSTILE
from tests.unit.reports.fabricated import incident, notebook
from workbench.reports.page import About, write_page

pytestmark = [pytest.mark.browser, needs_chromium]
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(write_page(notebook()), encoding="utf-8")
    return path


def hostile_page():
    """Markup and script in every text that comes from a bundle, a user or a failed run."""
    made = incident(hostile=True, name=HOSTILE)
    made.first_bad |= {"kind": "exception", "sink": "exception", "message": HOSTILE}
    made.manifest |= {"run_id": HOSTILE, "notes": [HOSTILE], "dropped": {HOSTILE: HOSTILE}}
    made.conditions |= {HOSTILE: HOSTILE}
    made.completeness |= {HOSTILE: HOSTILE}
    made.findings["bundle"]["id"] = HOSTILE
    made.findings["limits"].append(HOSTILE)
    node = notebook(made)
    failed = nbformat.v4.new_code_cell(HOSTILE, metadata={"name": HOSTILE})
    failed.metadata["workbench"] = {"state": "failed"}
    failed.outputs = [
        nbformat.v4.new_output("stream", name="stderr", text=HOSTILE),
        nbformat.v4.new_output("error", ename=HOSTILE, evalue=HOSTILE, traceback=[HOSTILE]),
        nbformat.v4.new_output("display_data", data={"text/html": HOSTILE, "text/plain": HOSTILE}),
    ]
    node.cells += [failed, nbformat.v4.new_markdown_cell(f"## {HOSTILE}\n\n{HOSTILE}")]
    node.metadata["workbench"] = {
        "failure": {"text": HOSTILE, "recorded": [HOSTILE], "anchor": HOSTILE}
    }
    rows = [("Parameters", f"{HOSTILE}={HOSTILE!r}"), (HOSTILE, HOSTILE)]
    data = {"bundle": {"name": HOSTILE, "digest": HOSTILE}, "parameters": {HOSTILE: HOSTILE}}
    return write_page(node, About(rows, data, HOSTILE))


@pytest.fixture(scope="module", params=["with policy", "policy taken out"])
def hostile(request, tmp_path_factory):
    html = hostile_page()
    if request.param == "policy taken out":
        html, found = POLICY.subn("", html)
        assert found == 1
    path = tmp_path_factory.mktemp("hostile") / "report.html"
    path.write_text(html, encoding="utf-8")
    return path


def test_charts_are_drawn_offline_and_nothing_else_is_asked_for(report):
    with opened(report) as (page, said, asked):
        assert said == []
        assert [url for url in asked if not url.startswith(("file:", "blob:", "data:"))] == []
        assert page.locator(".plot .main-svg").count() >= 2
        assert page.locator(".static:visible").count() == 0
        place = page.locator("#chart-ranges-activations .plot")
        assert place.bounding_box()["height"] >= 300
        # the bars, the marks and the limit lines are really there
        assert page.locator("#chart-ranges-activations .barlayer path").count() >= 39
        assert (
            page.locator(
                "#chart-ranges-activations .point path, #chart-ranges-activations .points path"
            ).count()
            >= 2
        )
        page.emulate_media(color_scheme="light")
        light = place.screenshot()
        page.emulate_media(color_scheme="dark")
        page.wait_for_timeout(500)
        assert place.screenshot() != light


def test_every_text_of_the_first_screen_is_inside_the_window(report):
    with opened(report) as (page, _, _):
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 1200
        bottom = page.locator("#chart-ranges-activations .plot").bounding_box()
        assert bottom["y"] + bottom["height"] < 900


@pytest.mark.parametrize("width", [360, 968, 1800])
def test_nothing_is_wider_than_the_window(report, width):
    with opened(report, viewport={"width": width, "height": 800}) as (page, _, _):
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_dark_page_has_dark_paper_and_light_ink(report):
    with opened(report, color_scheme="dark") as (page, said, _):
        assert said == []
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == "rgb(17, 17, 17)"
        colour = page.locator(".plot .xtick text").first.evaluate("e => getComputedStyle(e).fill")
        assert colour == "rgb(154, 160, 166)"


def test_readable_with_scripts_blocked(report):
    with opened(report, scripts=False) as (page, _, _):
        assert page.locator(".static svg:visible").count() == 2
        assert page.locator(".plot:visible").count() == 0
        assert "softmax gave 3 zeros" in page.inner_text("#summary")
        page.locator("#chart-ranges-activations summary").click()
        table = page.locator("#chart-ranges-activations table")
        assert table.is_visible()
        assert "blocks.9.mlp.down" in table.inner_text()


def test_readable_where_a_policy_blocks_scripts(report, tmp_path):
    html, found = re.subn(r"script-src [^;]*; ", "", report.read_text(encoding="utf-8"))
    assert found == 1
    path = tmp_path / "blocked.html"
    path.write_text(html, encoding="utf-8")
    with opened(path, wait=False) as (page, _, _):
        assert page.locator(".static svg:visible").count() == 2
        assert page.locator(".plot:visible").count() == 0


def test_hostile_names_are_text(hostile):
    with opened(hostile) as (page, said, _):
        assert [line for line in said if "error" in line] == []
        assert page.evaluate("window.hacked") is None
        assert page.locator("main img").count() == 0
        assert page.locator("a[href^=javascript], [onerror], [onclick]").count() == 0
        assert page.locator("a[href]:not([href^='#'])").count() == 0
        # as text, in the title, the rows, the banner, the traceback, the code and the end
        for place in ("h1", ".facts", ".banner", "pre.error", ".cell[open] pre", "footer"):
            if place.startswith(".cell"):
                page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
            texts = page.locator(place).all_inner_texts()
            assert any("window.hacked=1" in text for text in texts), place
        assert HOSTILE in page.inner_text("h1")
        # in the hover of the chart as well
        page.evaluate(
            """() => { const place = document.querySelector('#chart-ranges-activations .plot');
                       Plotly.Fx.hover(place, [{curveNumber: 0, pointNumber: 1}]); }"""
        )
        shown = page.locator("#chart-ranges-activations .hoverlayer")
        assert "script" in shown.text_content()
        assert shown.locator("a, img").count() == 0
        assert page.evaluate("window.hacked") is None


@pytest.mark.parametrize("touch", [{}, {"has_touch": True, "is_mobile": True}])
def test_charts_buttons_lie_below_the_plot_not_over_its_marks(report, touch):
    with opened(report, viewport={"width": 1200, "height": 900}, **touch) as (page, _, _):
        place = page.locator("#chart-ranges-activations .plot")
        bar = place.locator(".modebar").bounding_box()
        below = "all => Math.max(...all.map(m => m.getBoundingClientRect().bottom))"
        marks = place.locator(".points path, .point path").evaluate_all(below)
        plot = place.locator(".bglayer, .gridlayer").evaluate_all(below)
        assert bar["y"] >= max(marks, plot)
        if touch:  # always there: not over the names either
            assert bar["y"] >= place.locator(".xtick text").evaluate_all(below)


def test_a_screen_reader_finds_landmarks_headings_in_order_and_named_tables(report):
    with opened(report) as (page, _, _):
        assert page.get_by_role("main").count() == 1
        assert page.get_by_role("contentinfo").count() == 1
        assert page.get_by_role("navigation", name="Contents").count() == 1
        assert page.get_by_role("heading", level=1).count() == 1
        levels = page.locator("h1, h2, h3").evaluate_all("all => all.map(h => +h.tagName[1])")
        assert all(later - earlier <= 1 for earlier, later in pairwise(levels))
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        names = page.locator("table").evaluate_all("all => all.map(t => t.caption?.innerText)")
        assert names and all(names)
        assert page.locator("th:not([scope])").count() == 0
        assert page.locator("[data-chart]:not([aria-label])").count() == 0


def test_printed_first_screen_fits_one_page(report, tmp_path):
    with opened(report) as (page, _, _):
        page.emulate_media(media="print")
        assert page.locator(".static svg:visible").count() == 2
        assert page.locator(".plot:visible").count() == 0
        assert page.locator(".evidence:visible, .contents:visible, .cell:visible").count() == 0
        # A4 less its margins, in CSS pixels
        page.set_viewport_size({"width": 688, "height": 1017})
        assert page.locator("#summary").bounding_box()["height"] < 1017
        assert page.pdf(path=tmp_path / "report.pdf", format="A4").startswith(b"%PDF")
