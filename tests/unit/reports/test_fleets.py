"""The template `fleet-triage`: a store of bundles, through the command line, to a page."""

from __future__ import annotations

import pytest

from tests.unit.diagnose.triage_store import fleet
from workbench.cli.main import main
from workbench.reports import extract_findings, fleets
from workbench.reports.extract import extract_about


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return fleet(tmp_path_factory.mktemp("fleet") / "store")


def test_the_command_writes_the_page(store, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(store.parent)
    page = tmp_path / "fleet.html"
    with pytest.raises(SystemExit) as stopped:
        main(["triage", "store", "--known", "NF-dbfae9", "--report", str(page)])
    assert stopped.value.code == 0
    out, err = capfd.readouterr()
    assert err.count("bundles in store") == 1  # the report reads nothing again
    assert "1 group of known fingerprints not listed" in out
    assert "Next: workbench diagnose store/many/many-step00000005-rank00002.bundle" in out
    html = page.read_text()
    said = "7 incidents in 4 groups, 3 of them without a known fingerprint."
    assert extract_about(page)["headline"] == said and extract_about(page)["complete"] is True
    data = extract_findings(page)
    assert data["schema"] == "workbench.triage/1" and data["totals"]["known"] == 2
    for text in (
        "All 3 have the same origin by diagnosis",
        "no manifest.json",
        "rank 2 of 4 went bad before the reduction",
        "workbench report --template fleet-triage",
    ):
        assert text in html
    assert str(store.parent) not in html


def test_sections_of_an_empty_store_and_of_one_with_nothing_but_damage(tmp_path):
    (tmp_path / "only.bundle").mkdir()
    for folder in (tmp_path / "empty", tmp_path):
        folder.mkdir(exist_ok=True)
        loaded = fleets.load(str(folder), since="2026-11-01")
        shown = {
            name: getattr(fleets, name)(loaded)
            for name in ("first_screen", "groups", "counts", "steps", "ranks", "incidents", "check")
        }
        assert shown["first_screen"].blocks[0]["headline"] == "0 incidents in 0 groups."
    assert fleets.unreadable(loaded).blocks[0]["rows"][0][0] == "only.bundle"
