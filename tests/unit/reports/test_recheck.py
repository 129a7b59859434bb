"""Reports that were edited, and bundles that were tampered with, must come out as changed."""

import hashlib
import json
import re
import shutil
import sys
from copy import deepcopy
from dataclasses import replace

import pytest

from tests.browser import train_step
from workbench.cli.main import main
from workbench.errors import BundleError, CannotRunError
from workbench.evidence import open_bundle
from workbench.evidence.notes import new_note, write_notes
from workbench.numerics import jsonio
from workbench.reports import report
from workbench.reports.claims import compare_notes
from workbench.reports.extract import read_page
from workbench.reports.recheck import _compared, compared, made_again, recheck
from workbench.reports.recheck_saved import against_saved
from workbench.reports.templates import find_template

STEP = f"{train_step.__file__}:Step"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("recheck")


@pytest.fixture(scope="module")
def bundle(home):
    # the module under the name its bundle will name it by
    sys.modules.setdefault("train_step", train_step)
    return open_bundle(train_step.record(home / "incidents"))


@pytest.fixture(scope="module")
def html(bundle, home):
    """A real report of a real failure, by the real commands."""
    return report(bundle, output=home / "report.html", step=STEP).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def again(html, bundle):
    """The report made again, with code and without."""
    page, found = read_page(html), find_template("incident")
    return {
        True: made_again(page, [bundle], found, STEP, None, None),
        False: made_again(page, [bundle], found, None, None, None),
    }


def without_what_varies(html):
    short, found = re.subn(r"<!-- varies: begin -->.*?<!-- varies: end -->", "", html, flags=re.S)
    assert found == 1
    return short


def test_two_runs_give_the_same_bytes_header_aside(html, bundle, home):
    path = report(bundle, output=home / "again" / "second.html", step=STEP)
    second = path.read_text(encoding="utf-8")
    assert without_what_varies(second) == without_what_varies(html)
    page = read_page(html)
    assert page.about["bundle"]["digest"] == bundle.digest
    for key in ("template", "parameters", "conditions", "versions", "device", "command"):
        assert page.about[key], key


def test_page_tells_nothing_of_the_machine_it_was_made_on(html, home):
    assert str(home) not in html
    assert str(train_step.__file__).rpartition("/")[0] not in html
    assert not re.search(r"(?<![\w.])/(?:home|root|tmp|Users)/", html)


def changed(html, again, bundle, coded=True):
    claims = compared(read_page(html), again[coded], bundle, coded=coded)
    return [claim for claim in claims if claim.status == "changed"]


def replaced(html, old, new, count=1):
    assert html.count(old) >= 1, old
    return html.replace(old, new, count)


def in_data(html, name, edit):
    """The page with a data block edited as a program would: nothing visible changes."""
    head, start, rest = html.partition(f'<script type="application/json" id="{name}">')
    text, end, tail = rest.partition("</script>")
    data = jsonio.loads(text)
    edit(data)
    return head + start + jsonio.dumps(data).replace("<", "\\u003c") + end + tail


@pytest.mark.parametrize("coded", [True, False])
def test_report_as_it_was_written_has_no_changed_claim(html, again, bundle, coded):
    assert changed(html, again, bundle, coded) == []


def test_with_code_every_claim_is_checked_and_without_the_rest_is_named(html, again, bundle):
    page = read_page(html)
    with_code = {c.name: c.status for c in compared(page, again[True], bundle, coded=True)}
    assert set(with_code.values()) == {"same"}
    assert {"First bad", "Verdict", "Origin 1", "Cause of origin 1", "Counterfactual 1",
            "Data of chart-ranges-activations", "Style and programs"} <= set(with_code)  # fmt: skip
    without = {c.name: c.status for c in compared(page, again[False], bundle, coded=False)}
    assert without["First bad"] == "same"
    for name in (
        "Text of section top",
        "Text of section summary",
        "Text of section origin",
        "Text of section counterfactuals",
        "Summary",
        "Verdict",
        "Origin 1",
        "Cause of origin 1",
        "Counterfactual 1",
    ):
        assert without[name] == "cannot be checked here"


def test_without_code_a_forged_origin_differs_from_saved_findings(html, again, copied, tmp_path):
    bundle = open_bundle(copied)
    bundle.findings_dir.mkdir(exist_ok=True)
    saved = jsonio.dumps(again[True].findings)
    (bundle.findings_dir / "findings.json").write_text(saved, encoding="utf-8")
    op = again[True].findings["origins"][0]["op"]
    forged = read_page(html.replace(op, "aten.forged.default"))
    (tmp_path / "forged.html").write_text(html.replace(op, "aten.forged.default"), encoding="utf-8")
    done = recheck(tmp_path / "forged.html", bundle)
    assert any(c.name == "Origin 1" and "saved" in c.why for c in done.changed)
    claims = list(against_saved(compared_alone(forged, bundle), forged.findings, None))
    unseen = {claim.name: claim for claim in claims if claim.name.startswith("Text of section top")}
    assert unseen and all(c.status != "same" and "--step" in c.why for c in unseen.values())


def test_saved_findings_are_compared_as_a_page_tells_them_without_folders(html, copied, tmp_path):
    """Findings beside a bundle name folders, a page never does; that is no difference."""
    bundle = open_bundle(copied)
    bundle.findings_dir.mkdir(exist_ok=True)
    saved = deepcopy(read_page(html).findings)
    bare = saved["answers"][0]["command"].partition(" --step ")[0]
    where = saved["answers"][0]["command"] = f"{bare} --step '/srv/my code/train.py:A'"
    (bundle.findings_dir / "findings.json").write_text(jsonio.dumps(saved), encoding="utf-8")
    told = jsonio.dumps(read_page(html).findings["answers"][0]["command"])
    page = html.replace(told, jsonio.dumps(where.replace("/srv/my code/", "")))
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    done = recheck(tmp_path / "page.html", bundle)
    assert [claim.name for claim in done.changed if claim.name == "Answers"] == []


def compared_alone(page, bundle):
    """What reading alone shows of a page, from its own findings."""
    made = made_again(page, [bundle], find_template("incident"), None, None, None)
    return _compared(page, made, bundle, coded=False)


EDITS = {
    "First bad": lambda data: data["first_bad"].update(stage="forward"),
    "Verdict": lambda data: data["reproduction"].update(verdict="not_reproduced"),
    "Origin 1": lambda data: data["origins"][0].update(op="aten.div.Tensor"),
    "Cause of origin 1": lambda data: data["origins"][0].update(cause="division_by_zero"),
    "Counterfactual 1": lambda data: data["counterfactuals"][0].update(result="unchanged"),
    "Counterfactual 3": lambda data: data["counterfactuals"].append({"intervention": "prayer"}),
    "Origin 2": lambda data: data["origins"].append({"kind": "birth"}),
    "Contamination": lambda data: data["contamination"].update(parameters=["0.weight"]),
    "Chain": lambda data: data["chain"].pop(),
    "Limits": lambda data: data["limits"].clear(),
    "Summary": lambda data: data["summary"].__setitem__(0, "All is well."),
    "Fault": lambda data: data.update(fault="the compiler's"),
}


@pytest.mark.parametrize("name", EDITS)
def test_edited_findings_are_changed_by_name(html, again, bundle, name):
    found = [
        claim.name for claim in changed(in_data(html, "wb-findings", EDITS[name]), again, bundle)
    ]
    assert name in found


@pytest.mark.parametrize("name", ["First bad", "Summary"])
def test_what_the_record_says_is_checked_without_code_too(html, again, bundle, name):
    edited = in_data(html, "wb-findings", EDITS[name])
    assert name in [claim.name for claim in changed(edited, again, bundle, coded=False)]


TEXTS = {
    "headline": ("Born at aten.log.default", "Born at aten.div.Tensor"),
    "a row of the first screen": ("Replayed exactly", "Replayed roughly"),
    "a link of the chain": ("log gave 1 −Inf", "log gave 9 −Inf"),
    "a row of a table": ("<td>log of zero</td>", "<td>division by zero</td>"),
    "a counterfactual": ("log_softmax instead of log(softmax)", "a smaller learning rate"),
    "a new sentence": ("<h2>Origin</h2>", "<h2>Origin</h2><p>It was the data team.</p>"),
    "a heading": ("<h2>Origin</h2>", "<h2>Cause</h2>"),
}


@pytest.mark.parametrize("coded", [True, False], ids=["with code", "without code"])
@pytest.mark.parametrize("name", TEXTS)
def test_edited_text_is_changed_even_where_the_findings_are_not(html, again, bundle, name, coded):
    head, bar, data = html.partition('<script type="application/json"')
    edited = replaced(head, *TEXTS[name]) + bar + data
    assert jsonio.dumps(read_page(edited).findings) == jsonio.dumps(read_page(html).findings)
    found = changed(edited, again, bundle, coded)
    assert found and all(claim.name.startswith("Text of section") for claim in found)


@pytest.mark.parametrize("count", [1, -1], ids=["data", "data and text"])
def test_an_edit_of_everything_alike_is_found_by_the_replay(html, again, bundle, count):
    edited = html.replace("aten.log.default", "aten.div.Tensor")
    names = {claim.name for claim in changed(edited, again, bundle)}
    assert "Origin 1" in names
    assert any(name.startswith("Text of section summary") for name in names)


def test_numbers_behind_and_in_a_chart_are_compared(html, again, bundle):
    def edit(figure):
        figure["data"][0]["x"] = figure["data"][0]["x"][:-1]

    edited = in_data(html, "chart-ranges-activations-data", edit)
    assert [claim.name for claim in changed(edited, again, bundle)] == [
        "Data of chart-ranges-activations"
    ]
    head, svg, tail = html.partition("<svg ")
    tick = re.search(r"<text[^>]*>([^<]{2,})</text>", tail)[1]
    (found,) = changed(head + svg + tail.replace(f">{tick}<", ">9<", 1), again, bundle)
    assert found.name == "Text of section summary, chart drawing"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("</style>", ".bad::after { content: ' not really' }</style>"),
        ("<h2>Origin</h2>", "<h2 onclick='x()'>Origin</h2>"),
        ('href="#origin"', 'href="https://evil.example"'),
        ("</body>", "<script>document.title = 'fine'</script></body>"),
    ],
)
def test_style_programs_and_links_are_part_of_the_page(html, again, bundle, old, new):
    names = [claim.name for claim in changed(replaced(html, old, new), again, bundle)]
    assert "Style and programs" in names


def statuses(done):
    return {claim.name: claim.status for claim in done.claims}


@pytest.fixture
def copied(bundle, tmp_path):
    return shutil.copytree(bundle.path, tmp_path / bundle.path.name)


def test_a_damaged_bundle_is_changed_and_nothing_is_run(html, copied):
    file = copied / "batch.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    done = recheck(html, copied, step=STEP)
    assert statuses(done)["Bundle files"] == "changed"
    assert statuses(done)["Verdict"] == "cannot be checked here"
    assert "batch.safetensors" in done.changed[0].found


def test_a_bundle_sealed_anew_has_another_digest_and_gives_another_first_bad(html, copied):
    path = copied / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["first_bad"]["tensor"] = "grad_norm"
    evidence = copied / "evidence.json"
    evidence.write_text(evidence.read_text().replace('"loss"', '"lost"', 1))
    entry = manifest["files"]["evidence.json"]
    entry["size"] = evidence.stat().st_size
    entry["sha256"] = hashlib.sha256(evidence.read_bytes()).hexdigest()
    path.write_text(json.dumps(manifest))
    found = statuses(recheck(html, copied))
    assert found["Bundle digest"] == found["First bad"] == "changed"
    assert found["Bundle files"] == "same"


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ('"template":{"digest":"sha256:', '"template":{"digest":"sha256:0', "Template digest"),
        ('<th scope="row">Template</th><td>', '<th scope="row">Template</th><td>9', "How the"),
        ('"name":"incident"}', '"name":"/tmp/evil.ipynb"}', None),
    ],
)
def test_what_the_page_says_of_its_making_is_checked(html, copied, old, new, name):
    (copied / "batch.safetensors").unlink()  # so that nothing is run
    done = recheck(replaced(html, old, new), copied)
    if name is None:
        assert statuses(done)["Template digest"] == "cannot be checked here"
    else:
        assert any(claim.name.startswith(name) for claim in done.changed)


def test_code_named_by_the_page_is_never_run(html, bundle, tmp_path):
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Step: pass\n")
    edited = re.sub(
        r'"parameters":\{[^}]*\}',
        lambda _: '"parameters":' + jsonio.dumps({"step": f"{evil}:Step", "trust": "source"}),
        html,
        count=1,
    )
    page = read_page(edited)
    assert page.about["parameters"]["step"].startswith(str(evil))
    made_again(page, [bundle], find_template("incident"), None, None, None)
    assert not (tmp_path / "ran").exists()


def test_notes_are_compared_with_those_beside_the_bundle(html, copied):
    page = read_page(html)
    opened = open_bundle(copied)
    write_notes(opened, [new_note(view="Ranges", sentence="look at softmax")])
    noted = made_again(page, [opened], find_template("incident"), None, None, None)
    assert any("look at softmax" in one.text for one in noted.statements)
    assert [c.status for c in compare_notes(noted.statements, noted.statements)] == ["same"]

    def notes(statements):
        return [one for one in statements if one.section == "notes"]

    found = compare_notes(notes(noted.statements), notes(page.statements))
    assert {claim.status for claim in found} == {"cannot be checked here"}
    edited = [
        replace(one, text=one.text.replace("softmax", "the data")) for one in noted.statements
    ]
    found = list(compare_notes(notes(edited), notes(noted.statements)))
    assert [claim.status for claim in found] == ["changed"]


def test_code_that_cannot_be_loaded_is_said(html, bundle):
    with pytest.raises(CannotRunError):
        recheck(html, bundle, step="no_such_module:Step")


@pytest.mark.parametrize(
    ("html", "message"),
    [
        ("<p>hello</p>", "carries no record"),
        ('<script type="application/json" id="wb-about">{}</script>' * 2, "twice"),
        ('<script type="application/json" id="wb-about">[]</script>', "no object"),
        ('<script type="application/json" id="wb-about">{"a": NaN}</script>', "NaN"),
        ("<!--" * 2000, "not as workbench report writes"),
    ],
)
def test_pages_that_are_no_report_are_refused(html, message):
    with pytest.raises(BundleError, match=message):
        read_page(html)


def test_a_page_larger_than_any_report_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.reports.extract.MAX_PAGE_BYTES", 1000)
    path = tmp_path / "large.html"
    path.write_text("<p>" + "x" * 2000)
    with pytest.raises(BundleError, match="has more than"):
        read_page(path)


def test_command_exits_5_and_its_json_names_what_changed(html, copied, tmp_path, capfd):
    (copied / "batch.json").unlink()
    path = tmp_path / "report.html"
    path.write_text(html, encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["recheck", str(path), "--bundle", str(copied), "--json"])
    assert ended.value.code == 5
    data = jsonio.loads(capfd.readouterr().out)
    assert data["schema"] == "workbench.recheck/1"
    assert data["totals"]["changed"] == sum(c["status"] == "changed" for c in data["claims"]) > 0


def test_extract_writes_the_findings_and_refuses_to_replace_the_page(html, tmp_path, capfd):
    path, out = tmp_path / "report.html", tmp_path / "findings.json"
    path.write_text(html, encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["report", "--extract", str(path), "-o", str(out)])
    assert ended.value.code == 0
    assert jsonio.loads(out.read_text()) == read_page(html).findings
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["report", "--extract", str(path)])
    assert ended.value.code == 0
    assert jsonio.loads(capfd.readouterr().out) == read_page(html).findings
    with pytest.raises(SystemExit) as ended:
        main(["report", "--extract", str(path), "-o", str(path)])
    assert ended.value.code == 2
    assert path.read_text(encoding="utf-8") == html
    (tmp_path / "other.html").write_text("<p>no report</p>")
    with pytest.raises(SystemExit) as ended:
        main(["report", "--extract", str(tmp_path / "other.html")])
    assert ended.value.code == 3
