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


def test_pack_takes_findings_along_and_whoever_has_no_code_sees_when_they_were_made(cli, here):
    folder, bundle = here
    assert cli("diagnose", bundle, "--step", "tiny.py:LogOfZero").code == 0
    done = cli("pack", bundle, "-o", "packed.bundle.zip", "--json")
    assert done.code == 0, done.err
    assert "findings/findings.json" in done.json["findings"]
    assert "findings/trace/events.json" in done.json["findings"]
    assert done.json["digest"].startswith("sha256:")
    (folder / "elsewhere").mkdir()
    packed = (folder / "packed.bundle.zip").rename(folder / "elsewhere" / "p.bundle.zip")
    seen = cli("diagnose", packed)
    assert seen.code == 0, seen.err
    assert "aten.log.default" in seen.out
    assert "saved by an earlier diagnosis, made 20" in seen.err
    assert cli("verify", packed).code == 0
    assert cli("pack", bundle, "-o", packed).code == 2


def test_redact_writes_a_bundle_that_verifies_and_names_what_it_left_out(cli, here):
    folder, bundle = here
    done = cli("redact", bundle, "-o", "shared", "--json")
    assert done.code == 0, done.err
    assert "batch.safetensors" in done.json["left_out"]
    assert not [name for name in done.json["files"] if name.startswith(("batch", "source/"))]
    assert cli("verify", folder / "shared.bundle").code == 0
    assert cli("redact", bundle, "-o", "shared").code == 2
    (folder / "file").write_text("no folder")
    refused = cli("redact", bundle, "-o", "file/copy")
    assert refused.code == 4
    assert "'file'" in refused.err
    assert "cannot be used (" in refused.err
    assert "bug" not in refused.err
