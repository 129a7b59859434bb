"""report: the newest bundle, parameters, one file."""

from __future__ import annotations


def test_a_report_of_the_newest_bundle(cli, here):
    folder, bundle = here
    done = cli("report", "--step", "tiny.py:LogOfZero", "-p", "title", "2026", "-o", "out/r.html")
    assert done.code == 0, done.err
    assert str(bundle) in done.err
    assert done.out.splitlines() == ["out/r.html"]
    page = (folder / "out" / "r.html").read_text(encoding="utf-8")
    assert "<title>2026" in page
    assert "aten.log.default" in page


def test_an_unknown_parameter_or_template_runs_nothing(cli, here):
    folder, bundle = here
    for words in (["-p", "colour", "red"], ["--template", "colour"]):
        done = cli("report", bundle, *words)
        assert done.code == 2
        assert "colour" in done.err
    assert not (folder / "report.html").exists()
