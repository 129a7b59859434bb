"""JupyterLab's own menu exports an executed template as the report's page."""

from __future__ import annotations

import pytest

from scripts import lab
from tests.unit.reports.fabricated import notebook

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    import nbformat

    made = tmp_path_factory.mktemp("lab")
    nbformat.write(notebook(), made / "report.ipynb")
    return made


@pytest.mark.skipif(bool(lab.missing()), reason=lab.missing() or "a browser is here")
def test_the_export_menu_lists_the_report_and_writes_it(folder, tmp_path):
    with (
        lab.jupyterlab(folder, tmp_path) as address,
        lab.browser_page(tmp_path / "profile", 1400) as (page, seen),
    ):
        lab.open_notebook(page, address, "report.ipynb")
        page.locator(".lm-MenuBar-itemLabel", has_text="File").first.click()
        labels = page.locator(".lm-Menu-itemLabel")
        labels.filter(has_text="Save and Export Notebook As").hover()
        labels.get_by_text("Workbench", exact=True).wait_for(timeout=30_000)
        # what the entry opens
        path = f"{address}/nbconvert/workbench/report.ipynb?download=true"
        html = page.evaluate("async path => (await fetch(path)).text()", path)
        assert seen.outside() == []
    assert "Content-Security-Policy" in html
    assert 'class="chart"' in html
