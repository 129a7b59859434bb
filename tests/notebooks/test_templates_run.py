"""Every template on three real incidents and on a damaged bundle, through papermill."""

from __future__ import annotations

import re
import subprocess
import sys

import nbformat
import pytest

from workbench.errors import BundleError, CannotRunError, UsageError
from workbench.numerics import jsonio
from workbench.reports import extract_findings, report
from workbench.reports.extract import extract_about
from workbench.reports.templates import find_template, names

pytestmark = pytest.mark.slow
QUICK = {
    "sweep": {"conditions": "autocast=off deterministic=on", "minimal": False},
    "backend-ladder": {"backends": "eager"},
    "layer-bisect": {"precision": False},
}
"""Parameters that keep a run short; what they leave out is asked for in single tests below."""

OF_BUNDLES = [name for name in names() if find_template(name).bundles]
"""Templates about bundles; those about folders and stores have tests of their own."""

SAYS = {
    ("incident", "forward"): "Born at aten.convolution.default in up.1",
    ("incident", "backward"): "ReciprocalBackward0",
    ("incident", "batch"): "bad label",
    ("sweep", "forward"): "it is gone with 1 of 2 changed conditions",
    ("sweep", "batch"): "it is gone with 0 of 1 changed condition.",
    ("layer-bisect", "forward"): "up.1, in forward.",
    ("layer-bisect", "backward"): "Born at aten.mul.Tensor in inverse",
    ("layer-bisect", "batch"): "Outside of the model",
    ("trajectory", "backward"): "Step 2, backward: gradient:gain.",
    ("trajectory", "batch"): "From step 0 on, all as recorded: 3 steps.",
    ("backend-ladder", "backward"): "Not different from uncompiled code: ",
    ("incident-comparison", "forward"): "Two failures: A is born at aten.convolution.default",
    ("incident-comparison", "backward"): "Both are the same bundle.",
}
"""What must stand on the page; a comparison is made with the incident in backward. Not all of a
template's three: each run starts a kernel, and the others differ in what other tests look at."""


def test_every_template_about_bundles_is_run():
    assert {template for template, _ in SAYS} == set(OF_BUNDLES)


def make(template, incidents, name, folder, **parameters):
    bundle, step = incidents[name]
    given = {**QUICK.get(template, {}), **parameters}
    pair = bundle
    if template == "incident-comparison":
        other, given["other_step"] = incidents["backward"]
        pair = [bundle, other]
    output = folder / "report.html"
    return report(
        pair,
        template=template,
        output=output,
        parameters=given,
        step=step,
        notebook=folder / "report.ipynb",
    )


@pytest.mark.parametrize(("template", "name"), SAYS)
def test_template_on_a_real_incident(template, name, incidents, tmp_path):
    page = make(template, incidents, name, tmp_path)
    html = page.read_text(encoding="utf-8")
    assert SAYS[template, name] in html
    assert extract_about(page)["complete"] is True
    assert extract_findings(page)["schema"].startswith("workbench.")
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", html)
    assert str(incidents[name][0].parent) not in html
    text = page.with_suffix(".ipynb").read_text(encoding="utf-8")
    jsonio.loads(text)
    cells = [c for c in nbformat.reads(text, 4).cells if c.cell_type == "code"]
    assert {c.metadata.workbench.state for c in cells} == {"completed"}
    assert [o for c in cells for o in c.outputs if o.output_type == "error"] == []
    assert "progress+json" not in text


@pytest.mark.parametrize("template", [n for n in OF_BUNDLES if n != "incident-comparison"])
def test_template_on_a_damaged_bundle(template, damaged, tmp_path):
    bundle, step = damaged
    page = tmp_path / "report.html"
    given = QUICK.get(template, {})
    try:
        report(bundle, template=template, output=page, parameters=given, step=step)
    except (BundleError, CannotRunError) as error:
        assert error.exit_code in (3, 4)
        assert "This report is incomplete" in page.read_text(encoding="utf-8")
    else:
        assert "state/model.safetensors does not match its digest" in page.read_text()


def test_damaged_bundle_is_compared_as_far_as_it_can_be(damaged, incidents, tmp_path):
    page = tmp_path / "report.html"
    pair = [damaged[0], incidents["backward"][0]]
    report(pair, template="incident-comparison", output=page)
    assert "files of one are damaged" in page.read_text(encoding="utf-8")
    assert "does not match its digest" in page.read_text(encoding="utf-8")


def test_sweep_finds_the_smallest_change(incidents, tmp_path):
    chosen = {"conditions": "autocast=off deterministic=on", "combine": True, "minimal": True}
    page = make("sweep", incidents, "forward", tmp_path, **chosen)
    found = extract_findings(page)
    assert found["minimal"]["fixing"]["set"] == ["autocast"]
    assert [cell["result"] for cell in found["sweep"]["cells"]] == ["unchanged", "gone"]
    html = page.read_text(encoding="utf-8")
    assert "What came of every combination." in html
    assert "this does not show that autocast is its cause" in html


def test_bisect_finds_the_block_that_needs_float32(incidents, tmp_path):
    page = make("layer-bisect", incidents, "forward", tmp_path, precision=True)
    assert extract_findings(page)["changes"]["precision"]["needed"] == ["up.1"]


def test_no_code_is_run_without_being_named(incidents, tmp_path):
    bundle, _ = incidents["forward"]
    page = tmp_path / "r.html"
    with pytest.raises(CannotRunError, match="opening a bundle trusts nothing"):
        report(bundle, template="trajectory", output=page)
    assert "This report is incomplete" in page.read_text(encoding="utf-8")


def test_plain_papermill_and_nbconvert(incidents, tmp_path):
    bundle, _ = incidents["batch"]
    source, output = find_template("incident").path, tmp_path / "out.ipynb"
    words = ["-m", "papermill", source, output, "-p", "bundle", bundle, "--no-progress-bar"]
    subprocess.run([sys.executable, *map(str, words)], check=True, capture_output=True)
    jsonio.loads(output.read_text(encoding="utf-8"))
    words = ["-m", "nbconvert", "--to", "workbench", output, "--output-dir", tmp_path]
    subprocess.run([sys.executable, *map(str, words)], check=True, capture_output=True)
    html = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert "The loss became +Inf." in html
    assert "Content-Security-Policy" in html


def test_a_comparison_takes_two_bundles(incidents, tmp_path):
    bundle, _ = incidents["batch"]
    with pytest.raises(UsageError, match="compares 2 bundles, and it was given 1"):
        report(bundle, template="incident-comparison", output=tmp_path / "r.html")
    assert list(tmp_path.iterdir()) == []
