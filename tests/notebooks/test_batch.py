"""Many bundles: resumed, several at a time, one damaged, and stopped from outside."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from workbench.errors import UsageError
from workbench.reports import report, report_batch
from workbench.reports.extract import extract_about

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def folder(bundle, tmp_path):
    """A folder of two bundles and a damaged one."""
    made = tmp_path / "incidents"
    for name in ("a", "b", "broken"):
        shutil.copytree(bundle, made / f"{name}.bundle")
    (made / "broken.bundle" / "manifest.json").write_text("{")
    return made


def test_a_damaged_bundle_stops_no_other_and_a_second_run_keeps_what_is_made(
    folder, template, tmp_path
):
    own = template("print('second ran')")
    told = []
    bundles = sorted(folder.iterdir())
    make = {"template": own, "directory": tmp_path / "out", "progress": told.append}
    done = report_batch(bundles, **make, jobs=2)
    assert [made.state for made in done.reports] == ["made", "made", "failed"]
    assert done.exit_code == 3
    assert "a.bundle: Writing: Second" in told
    index = done.index.read_text(encoding="utf-8")
    assert re.findall(r'href="([^"#]+)"', index) == ["a.html", "b.html"]
    assert "Complete: 2 of 3 reports." in index
    assert "manifest.json" in index

    (tmp_path / "out" / "b.html").unlink()
    told.clear()
    again = report_batch(bundles, **make)
    assert [made.state for made in again.reports] == ["kept", "made", "failed"]
    assert "a.bundle: kept, made before from the same inputs: a.html" in told

    own.write_text(own.read_text().replace("second ran", "second ran anew"))
    anew = report_batch(bundles[:1], **make)
    assert [made.state for made in anew.reports] == ["made"]


def test_other_parameters_and_changed_findings_are_other_inputs(bundle, tmp_path):
    from workbench.reports.run import prepare

    copy = tmp_path / "c.bundle"
    shutil.copytree(bundle, copy)
    first = prepare(copy).inputs
    assert prepare(bundle).bundles[0].digest == prepare(copy).bundles[0].digest
    assert prepare(copy, parameters={"author": "M. Curie"}).inputs != first
    code = tmp_path / "step.py"
    code.write_text("class S: ...")
    step = prepare(copy, step=f"{code}:S").inputs
    code.write_text("class S: pass")
    assert len({first, step, prepare(copy, step=f"{code}:S").inputs}) == 3
    (tmp_path / "c.bundle.findings").mkdir()
    (tmp_path / "c.bundle.findings" / "findings.json").write_text("{}")
    assert prepare(copy).inputs != first


def test_wrong_parameters_and_templates_run_nothing(folder, tmp_path):
    bundles = sorted(folder.iterdir())
    for wrong in (
        {"parameters": {"colour": "red"}},
        {"template": "incident-comparison"},
        {"jobs": 0},
    ):
        with pytest.raises(UsageError):
            report_batch(bundles, directory=tmp_path / "out", **wrong)
    with pytest.raises(UsageError, match="at least one bundle"):
        report_batch([], directory=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_stopped_from_outside_leaves_a_page_and_no_process(
    bundle, template, tmp_path, number, code
):
    pid = tmp_path / "pid"
    own = template(f"""
        import os, pathlib, time
        pathlib.Path({str(pid)!r}).write_text(str(os.getpid()))
        time.sleep(300)
    """)
    output = tmp_path / "r.html"
    words = ["report", bundle, "--template", own, "-o", output]
    process = subprocess.Popen(
        [sys.executable, "-m", "workbench", *map(str, words)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (pid.exists() and pid.read_text()):
        assert process.poll() is None
        time.sleep(0.1)
    kernel = int(pid.read_text())
    process.send_signal(number)
    _, said = process.communicate(timeout=120)
    assert process.returncode == code
    assert "Stopped. What ran is in" in said
    html = output.read_text(encoding="utf-8")
    assert 'cell "second" was not finished' in html.replace("&#34;", '"')
    assert "first ran" in html
    assert "(stopped)" in html
    assert "Third (did not run)" in html
    assert extract_about(output)["complete"] is False
    with pytest.raises(ProcessLookupError):
        os.kill(kernel, 0)


def test_the_documented_template_runs(bundle, tmp_path):
    text = (ROOT / "docs" / "templates.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)
    own = tmp_path / "my-templates"
    own.mkdir()
    (own / "loss-history.py").write_text(snippet)
    told = []
    page = report(
        bundle,
        template=own,
        output=tmp_path / "losses.html",
        parameters={"last": 5},
        progress=told.append,
    )
    html = page.read_text(encoding="utf-8")
    assert told[1:] == ["Reading the bundle", *told[2:]]
    assert "Recorded losses, the incident last." in html
    assert html.count('<th scope="row"') >= 5
    assert "--template loss-history.py" in html
    assert str(tmp_path) not in html


def test_a_template_may_import_a_module_beside_it(bundle, template, tmp_path):
    (tmp_path / "beside.py").write_text("WORD = 'from beside'\n")
    own = template("import beside\nprint(beside.WORD)")
    html = report(bundle, template=own, output=tmp_path / "r.html").read_text(encoding="utf-8")
    assert "from beside" in html
