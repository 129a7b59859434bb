"""The whole way: a bundle, a papermill run, one HTML file."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import nbformat
import pytest

from tests.unit.charts.fabricated import HOSTILE, findings, write_bundle
from workbench.errors import CannotRunError, UsageError
from workbench.evidence import open_bundle
from workbench.numerics import jsonio
from workbench.reports import extract_findings, report
from workbench.reports.exporter import WorkbenchExporter
from workbench.reports.extract import extract_about

VARIES = re.compile(r"<!-- varies: begin -->.*?<!-- varies: end -->", re.S)


@pytest.fixture(scope="module")
def made(bundle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    home = folder / "home"
    home.mkdir()
    told = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        path = report(
            bundle,
            output=folder / "report.html",
            parameters={"author": "M. Curie"},
            notebook=folder / "report.ipynb",
            progress=told.append,
        )
    return path, told, home


def test_report_is_complete_and_says_how_it_was_made(made, bundle):
    path, told, _ = made
    html = path.read_text(encoding="utf-8")
    assert "This report is incomplete" not in html
    assert html.count('class="chart"') == 3
    assert "M. Curie" in html
    about = extract_about(path)
    assert about["complete"] is True
    assert about["bundle"] == {"name": bundle.name, "digest": open_bundle(bundle).digest}
    assert about["parameters"] == {"author": "M. Curie", "bundle": bundle.name}
    assert "workbench report run7-step00018342.bundle -p author" in html
    assert told[-1] == "Writing: How to check this report"


def test_report_carries_the_saved_findings(made):
    carried = extract_findings(made[0])
    assert carried["origins"] == findings()["origins"]
    assert "Findings saved beside the bundle" in made[0].read_text(encoding="utf-8")


def test_report_tells_nothing_of_the_machine(made, bundle):
    html = made[0].read_text(encoding="utf-8")
    for private in (str(bundle.parent), str(Path.cwd()), sys.executable):
        assert private not in html


def test_run_leaves_no_trace_in_the_users_home(made):
    left = [path for path in made[2].rglob("*") if path.is_file()]
    assert left == []
    assert sorted(path.name for path in made[0].parent.iterdir()) == [
        "home",
        "report.html",
        "report.ipynb",
    ]


def test_kept_notebook_is_strict_and_exports_to_the_same_page(made):
    text = made[0].with_suffix(".ipynb").read_text(encoding="utf-8")
    jsonio.loads(text)
    assert "widget" not in json.loads(text)["metadata"]
    html, resources = WorkbenchExporter().from_notebook_node(nbformat.reads(text, 4))
    assert resources["output_extension"] == ".html"
    assert VARIES.sub("", html) == VARIES.sub("", made[0].read_text(encoding="utf-8"))


def test_second_run_gives_the_same_bytes(made, bundle, tmp_path):
    again = report(bundle, output=tmp_path / "again.html", parameters={"author": "M. Curie"})
    first, second = (path.read_text(encoding="utf-8") for path in (made[0], again))
    assert VARIES.sub("", first) == VARIES.sub("", second)


def test_no_code_of_the_bundle_is_run(tmp_path, monkeypatch):
    marker = tmp_path / "imported"
    (tmp_path / "evil_step.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    bundle = write_bundle(
        tmp_path / "bundles", with_findings=False, reference="evil_step:Step", hostile=True
    )
    html = report(bundle, output=tmp_path / "r.html").read_text(encoding="utf-8")
    assert not marker.exists()
    assert "Needs a replay, which was not run." in html
    assert "Not replayed yet." in html
    assert str(tmp_path) not in html
    assert HOSTILE not in html


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise ValueError('too <b>large')", "ValueError: too <b>large"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed by signal 9"),
        ("import os; os._exit(3)", "its process ended"),
    ],
)
def test_failed_run_still_gives_a_page_with_what_ran(bundle, template, tmp_path, code, reason):
    output = tmp_path / "report.html"
    with pytest.raises(CannotRunError, match='cell "second" failed') as caught:
        report(bundle, template=template(code), output=output, notebook=tmp_path / "kept.ipynb")
    assert reason in str(caught.value)
    html = output.read_text(encoding="utf-8")
    assert "This report is incomplete:" in html
    assert re.findall(r'<pre class="output ">(\w+) ran', html) == ["first"]
    assert "Third (did not run)" in html
    assert "First (did not run)" not in html
    assert "<b>large" not in html
    assert extract_about(output)["complete"] is False
    kept = nbformat.read(tmp_path / "kept.ipynb", 4)
    states = {c.metadata.get("name"): c.metadata.papermill.status for c in kept.cells}
    assert (states["first"], states["second"], states["third"]) == (
        "completed",
        "failed",
        "not_run",
    )


def test_page_without_a_first_screen_still_says_what_was_recorded(bundle, template, tmp_path):
    with pytest.raises(CannotRunError):
        report(bundle, template=template("1 / 0"), output=tmp_path / "r.html")
    html = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<h1>Report of run7-step00018342.bundle</h1>" in html
    assert "<p>✕ The loss became NaN. Caught at loss, step 18,342.</p>" in html
    assert 'href="#cell-second"' in html
    assert 'id="cell-second"' in html


def test_error_of_ours_keeps_its_exit_code(bundle, template, tmp_path):
    code = "from workbench.errors import CheckFailedError\nraise CheckFailedError('moved')"
    with pytest.raises(Exception, match="moved") as caught:
        report(bundle, template=template(code), output=tmp_path / "r.html")
    assert caught.value.exit_code == 5


def test_cell_that_takes_too_long_is_stopped(bundle, template, tmp_path):
    with pytest.raises(CannotRunError, match="longer than the time"):
        report(
            bundle,
            template=template("import time; time.sleep(600)"),
            output=tmp_path / "r.html",
            timeout_s=2,
        )


def test_nothing_runs_and_nothing_is_replaced_when_a_parameter_is_wrong(bundle, tmp_path):
    output = tmp_path / "report.html"
    output.write_text("before")
    for wrong in ({"colour": "red"}, {"show_samples": "yes"}, {"step": 3}):
        with pytest.raises(UsageError):
            report(bundle, output=output, parameters=wrong)
    with pytest.raises(UsageError, match="given twice"):
        report(bundle, output=output, step="a:B", parameters={"step": "c:D"})
    with pytest.raises(UsageError, match="about one bundle, and 2 were given"):
        report([bundle, bundle], output=output)
    assert output.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
