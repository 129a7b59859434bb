import itertools
import json
import re

import nbformat
import pytest

from tests.unit.charts.fabricated import HOSTILE, ledger
from tests.unit.reports.fabricated import DIGEST, incident, notebook
from workbench.errors import BundleError, UsageError
from workbench.numerics import jsonio
from workbench.reports.extract import extract_about, extract_findings
from workbench.reports.page import About, packed_plotly, write_page

ADDRESS = re.compile(
    r"""https?:|wss?:|ftp:|//[a-z0-9-]+\.[a-z]|src=["']?/|href=["']?[^#"']""", re.I
)


@pytest.fixture(scope="module")
def page():
    return write_page(notebook(), About([("Bundle digest", DIGEST)], {"schema": "x"}, "Made now."))


def without_plotly(html):
    return html.replace(packed_plotly(), "")


def test_page_has_no_external_address(page):
    assert ADDRESS.findall(without_plotly(page)) == []


def test_page_carries_one_copy_of_plotly_and_stays_small(page):
    assert page.count(packed_plotly()) == 1
    assert len(page.encode()) < 2_500_000
    assert len(page.encode()) - len(packed_plotly()) < 250_000


def test_page_of_200_layers_stays_within_5_MB():
    html = write_page(notebook(incident(count=200)))
    assert html.count(packed_plotly()) == 1
    assert len(html.encode()) < 5_000_000


def test_no_folder_or_host_is_on_a_page_whatever_said_it():
    node = notebook()
    trace = 'File "/home/alice/My Project/train.py", line 3, in forward'
    outputs = [
        nbformat.v4.new_output("stream", name="stderr", text="warning in /scratch/alice/x.py:1"),
        nbformat.v4.new_output("error", ename="E", evalue="/home/alice/a", traceback=[trace]),
    ]
    node.cells.append(nbformat.v4.new_code_cell("open('/home/alice/x')", outputs=outputs))
    node.metadata["workbench"] = {"failure": {"text": "cannot read /home/alice/y", "anchor": ""}}
    rows = [("Parameters", "step='/home/alice/train.py:Step'")]
    data = {"parameters": {"step": "/home/alice/train.py:Step"}}
    html = without_plotly(write_page(node, About(rows, data)))
    assert "alice" not in html
    assert "train.py:Step" in html and "train.py&#34;, line 3" in html


def test_policy_comes_before_anything_it_governs(page):
    policy = page.index("Content-Security-Policy")
    assert "default-src 'none'; script-src 'sha256-" in page
    assert "unsafe-eval" not in page[:2000]
    assert "script-src 'unsafe-inline'" not in page
    assert policy < page.index("<style>")
    assert policy < page.index("<script")


def test_every_chart_is_first_a_drawing_and_a_table(page):
    figures = re.findall(r"<figure class=\"chart\".*?</figure>", page, re.S)
    assert len(figures) == 2
    for figure in figures:
        assert "<svg" in figure
        assert "<details><summary>Table of this chart" in figure
        assert re.search(r'data-chart="[a-z-]+-data" hidden', figure)


def test_headings_language_and_table_headers(page):
    assert page.startswith('<!doctype html>\n<html lang="en">')
    assert page.count("<h1>") == 1
    assert page.count("<th scope=") > 50
    assert "<th>" not in page
    levels = [int(level) for level in re.findall(r"<h([1-6])", page)]
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))


def test_contents_are_plain_anchors_that_exist(page):
    anchors = re.findall(r'href="#([^"]+)"', page)
    assert {"stages", "origin", "how-to-check-this-report"} <= set(anchors)
    for anchor in anchors:
        assert f'id="{anchor}"' in page


def test_ids_are_unique(page):
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_first_screen_has_the_seven_rows_and_the_chain(page):
    first = page[: page.index("<h2>Stages")]
    for name in (
        "Where",
        "Contaminated",
        "Ranks",
        "Reproduced",
        "Prevent",
        "Resume from",
        "Not shown",
        "How it happened",
    ):
        assert f">{name}<" in first
    assert "softmax gave 3 zeros" in first


def test_findings_come_back_as_they_were(page, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(page, encoding="utf-8")
    assert extract_findings(path) == incident().findings
    assert extract_about(page) == {"schema": "x", "rows": [["Bundle digest", DIGEST]]}


def test_page_that_is_no_report_is_refused(tmp_path):
    with pytest.raises(BundleError, match="carries no findings"):
        extract_findings("<html></html>")
    for marked in ("<![doctype [x]]>", "<![", "<![endif]-->", "<!doctype [<!x>]>"):
        with pytest.raises(BundleError, match="carries no findings"):
            extract_findings(f"<p>before{marked}after")
    with pytest.raises(BundleError, match="cannot be read"):
        extract_findings(tmp_path)
    with pytest.raises(UsageError, match=r"no report '.*missing\.html'"):
        extract_findings(tmp_path / "missing.html")


def test_hostile_names_stay_text_in_every_part():
    html = without_plotly(write_page(notebook(incident(hostile=True))))
    assert "<img" not in html
    assert "</script><img" not in html
    # scripts: the data blocks, the drawing script; nothing the names brought along
    assert len(re.findall(r"<script\b", html)) == html.count("</script>")
    opened = {tag.lower() for tag in re.findall(r"<([a-zA-Z][a-zA-Z0-9]*)", html)}
    assert "img" not in opened
    assert extract_findings(html)["first_bad"]["run_id"] == HOSTILE


def test_same_notebook_gives_same_bytes(page):
    about = About([("Bundle digest", DIGEST)], {"schema": "x"}, "Made now.")
    assert write_page(notebook(), about) == page


def test_output_of_others_is_text_and_pictures_only():
    node = notebook()
    node.cells.append(
        nbformat.v4.new_code_cell(
            "frame",
            outputs=[
                nbformat.v4.new_output(
                    "display_data",
                    data={"text/html": "<script>x()</script>", "text/plain": "a < b"},
                ),
                nbformat.v4.new_output("stream", name="stderr", text="\x1b[31mred\x1b[0m <b>"),
                nbformat.v4.new_output("display_data", data={"image/png": "iVBORw0KGgo=\n"}),
                nbformat.v4.new_output("display_data", data={"image/png": '"><script>'}),
            ],
        )
    )
    html = write_page(node)
    assert "x()" not in html
    assert "a &lt; b" in html
    assert ">red &lt;b&gt;</pre>" in html
    assert 'src="data:image/png;base64,iVBORw0KGgo="' in html


def test_plotly_figure_of_a_template_of_ones_own_is_drawn():
    from workbench.charts import CHARTS

    figure = json.loads(CHARTS["timeline"].figure(ledger()).to_json())
    node = notebook()
    node.cells.append(
        nbformat.v4.new_code_cell(
            "figure",
            outputs=[
                nbformat.v4.new_output(
                    "display_data",
                    data={"application/vnd.plotly.v1+json": figure, "text/plain": "figure"},
                )
            ],
        )
    )
    html = write_page(node)
    assert 'data-chart="chart-figure-data"' in html
    assert "learning rate</th><td>scatter" in html


def test_unfinished_run_says_so_and_greys_what_did_not_run():
    node = notebook(last="origin")
    for cell in node.cells:
        if cell.metadata.get("name") == "counterfactuals":
            cell.metadata["workbench"]["state"] = "failed"
    node.metadata["workbench"] = {
        "failure": {"text": 'cell "counterfactuals" failed (out of memory).', "anchor": ""}
    }
    html = write_page(node)
    assert 'role="alert"' in html
    assert "This report is incomplete:" in html
    assert 'class="notrun">Timeline (did not run)' in html
    assert 'class="notrun">Origin' not in html
    assert html.count("This section did not run.") == 5
    assert "<strong>(failed)</strong>" in html


def test_sections_say_what_is_missing():
    bare = incident(
        findings=None,
        findings_text="",
        layers=None,
        events=None,
        ledger=[],
        summary=["✕ The loss became NaN. Caught at loss."],
        origin_note="Diagnosis did not run here.",
    )
    html = write_page(notebook(bare))
    for text in (
        "Ranges come from a replay",
        "holds no ledger",
        "Not known. Diagnosis did not run",
        "Needs a replay, which was not run.",
    ):
        assert text in html
    assert 'id="wb-findings"' not in html
    assert "wb-plotly" not in html


def test_notebook_outputs_are_strict_json():
    jsonio.loads(nbformat.writes(notebook()))
