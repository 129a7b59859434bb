from tests.unit.reports.fabricated import incident
from workbench.reports import sections
from workbench.reports.blocks import FINDINGS, MIMETYPE, PLOTLY
from workbench.reports.stages import NBSP


def rows(section):
    return [row for block in section.blocks if block["type"] == "table" for row in block["rows"]]


def test_stages_tell_the_trace_from_the_gate():
    found = {row[0].replace(NBSP, " "): row[1] for row in rows(sections.stages(incident()))}
    assert found["✕ loss"] == "Caught here: 1 NaN of 1."
    assert found["! forward"] == "3 ops; results 1 with −Inf."
    assert found["· backward"] == "Came after the gate."
    assert len(found) == 10


def test_stages_without_a_trace_claim_no_clean_result():
    section = sections.stages(incident(events=None))
    assert not any(row[0].startswith("✓") for row in rows(section))
    assert "no replay was traced" in section.blocks[0]["caption"]


def test_sample_names_are_shown_only_when_asked_for():
    records = [{"step": 18342, "rank": 0, "sample_ids": ["patient-1", "patient-2"]}]
    hidden = sections.origin(incident(ledger=records))
    shown = sections.origin(incident(ledger=records, show_samples=True))
    assert "patient" not in str(hidden.blocks)
    assert ["Samples", "patient-2"] in rows(shown)


def test_ranges_section_draws_what_the_first_screen_does_not():
    section = sections.ranges(incident())
    assert [block["type"] for block in section.blocks] == ["paragraph"]


def test_without_a_trace_the_first_screen_draws_the_timeline():
    ids = [b["id"] for b in sections.first_screen(incident(layers=None)).blocks if "id" in b]
    assert ids == ["first-timeline"]


def test_notebook_gets_plotly_json_for_charts_and_html_for_the_rest():
    bundles = sections.first_screen(incident()).bundles()
    assert [sorted(bundle) for bundle in bundles] == [
        sorted(["text/html", "text/plain", MIMETYPE]),
        sorted(["text/html", "text/plain", MIMETYPE, PLOTLY]),
        sorted(["text/html", "text/plain", MIMETYPE]),
        sorted([FINDINGS, "text/plain"]),
    ]
    assert "Contaminated" in bundles[0]["text/plain"]


def test_section_shows_itself_without_a_page():
    html = sections.check(incident())._repr_html_()
    assert '<th scope="row">Bundle digest</th>' in html
    assert "workbench recheck report.html --bundle run7-step00018342.bundle" in html


def test_device_of_the_report_is_not_that_of_the_run():
    found = {row[0]: row[1] for row in rows(sections.check(incident()))}
    assert found["Recorded device"] == "cuda:0"
    assert found["Device of this report"] == "cpu"
