"""list, inspect, verify, diagnose and open on a real bundle."""

from __future__ import annotations

import json
import shlex

from workbench.errors import BundleError
from workbench.evidence import Bundle
from workbench.evidence.store import DirectoryStore


def damage(bundle):
    path = bundle / "batch.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_list_shows_bundles_and_damaged_ones(cli, here):
    folder, bundle = here
    broken = folder / "incidents" / "x-step00000001.bundle"
    broken.mkdir()
    (broken / "manifest.json").write_text("{")
    rows = {row["path"]: row for row in cli("list", "--json").json["bundles"]}
    assert rows[str(bundle)]["caught"] == {"stage": "loss", "tensor": "loss"}
    assert "damaged" in rows["incidents/x-step00000001.bundle"]
    text = cli("list")
    assert text.code == 0
    assert "loss, caught at loss" in text.out
    assert "damaged" in text.out


def test_list_of_an_empty_folder(cli, here):
    folder, _ = here
    (folder / "empty").mkdir()
    done = cli("list", "empty")
    assert done.code == 0
    assert "No bundle" in done.out


def test_inspect_runs_nothing_and_says_what_was_recorded(cli, here):
    folder, bundle = here
    (folder / "tiny.py").write_text("raise SystemExit('the code was run')")
    done = cli("inspect", bundle)
    assert done.code == 0
    assert "The loss became" in done.out.splitlines()[0]
    assert "forward_loss" in done.out
    data = cli("inspect", bundle, "--json").json
    assert data["manifest"]["first_bad"]["stage"] == "loss"
    assert data["digest"] == Bundle(folder / bundle).digest


def test_inspect_says_which_files_are_not_what_was_recorded(cli, here):
    folder, bundle = here
    (folder / bundle / "batch.safetensors").unlink()
    with (folder / bundle / "environment.json").open("a") as file:
        file.write(" ")
    done = cli("inspect", bundle)
    assert done.code == 3
    assert "The loss became" in done.out.splitlines()[0], "what is there is still shown"
    said = " ".join(done.err.split())
    assert "2 of " in said
    assert "'batch.safetensors' is missing" in said
    listed = Bundle(folder / bundle).manifest.files["environment.json"].size
    assert f"'environment.json' has {listed + 1} bytes where {listed} are listed" in said
    done = cli("inspect", bundle, "--json")
    assert done.code == 3
    states = {one["path"]: one["status"] for one in done.json["damaged"]}
    assert states == {"batch.safetensors": "missing", "environment.json": "size"}
    (folder / bundle / "evidence.json").unlink()  # what the summary itself rests on
    done = cli("inspect", bundle)
    assert done.code == 3
    assert "'evidence.json' is missing" in " ".join(done.err.split())


def test_inspect_says_that_a_file_cannot_be_read(cli, here, monkeypatch):
    _, bundle = here
    opened = DirectoryStore.open

    def refused(store, rel, size):  # root may read every file, so modes cannot stand for this
        if rel == "batch.safetensors":
            raise BundleError("no permission")
        return opened(store, rel, size)

    monkeypatch.setattr(DirectoryStore, "open", refused)
    done = cli("inspect", bundle)
    assert done.code == 3
    assert "'batch.safetensors' cannot be read" in " ".join(done.err.split())


def test_verify_finds_a_changed_byte(cli, here):
    folder, bundle = here
    assert cli("verify", bundle).code == 0
    damage(folder / bundle)
    done = cli("verify", bundle, "--json")
    assert done.code == 3
    assert done.json["state"] == "damaged"
    bad = [file for file in done.json["files"] if file["status"] != "ok"]
    assert [(file["path"], file["status"]) for file in bad] == [("batch.safetensors", "digest")]
    assert "batch.safetensors" in done.err


def test_verify_calls_an_unsealed_bundle_incomplete(cli, here):
    folder, bundle = here
    manifest = folder / bundle / "manifest.json"
    data = json.loads(manifest.read_text())
    data["sealed"] = False
    manifest.write_text(json.dumps(data))
    done = cli("verify", bundle)
    assert done.code == 0
    assert "incomplete" in done.out


def test_verify_reproduces(cli, here):
    _, bundle = here
    refused = cli("verify", bundle, "--reproduces")
    assert refused.code == 4
    done = cli("verify", bundle, "--reproduces", "--step", "tiny.py:LogOfZero", "--json")
    assert done.code == 0, done.err
    assert done.json["reproduction"]["verdict"] == "bitwise"


def test_verify_exits_5_where_the_step_does_not_fail(cli, here):
    folder, bundle = here
    fixed = (folder / "tiny.py").read_text().replace("outputs.log()", "(outputs + 1e-6).log()")
    (folder / "fixed.py").write_text(fixed)
    done = cli("verify", bundle, "--reproduces", "--step", "fixed.py:LogOfZero")
    assert done.code == 5
    assert "not_reproduced" in done.err


def test_diagnose_names_the_log(cli, here):
    folder, bundle = here
    done = cli("diagnose", bundle, "--step", "tiny.py:LogOfZero")
    assert done.code == 0
    assert "aten.log.default" in done.out
    assert len(done.out.splitlines()) <= 15
    data = cli("diagnose", bundle, "--step", "tiny.py:LogOfZero", "--json").json
    assert data["schema"] == "workbench.findings/1"
    assert data["origins"][0]["cause"] == "log_of_zero"
    assert list(folder.glob("incidents/*.findings/findings.json"))


def test_what_diagnose_prints_can_be_copied_from_here_and_is_saved_by_name(cli, here):
    folder, bundle = here
    (folder / "my runs").mkdir()
    moved = (folder / "incidents").rename(folder / "my runs" / "incidents") / bundle.name
    code = ("--step", "tiny.py:LogOfZero")
    done = cli("diagnose", moved.relative_to(folder), *code, "--full")
    lines = [line.strip() for line in done.out.splitlines()]
    printed = [shlex.split(line)[1:] for line in lines if line.startswith("workbench ")]
    assert [words[0] for words in printed] == [
        "diagnose", "diagnose", "inspect", "verify", "diagnose",
    ]  # fmt: skip
    for words in printed:
        assert (folder / words[1]).samefile(moved)
        assert words[0] == "inspect" or tuple(words[-2:]) == code or words[-4:-2] != code
    assert cli(*printed[3]).code == 0
    assert cli(*printed[2]).json["path"] == str(moved.relative_to(folder))
    saved = json.loads((moved.with_name(f"{moved.name}.findings") / "findings.json").read_text())
    commands = [answer["command"] for answer in saved["answers"]]
    assert all("my runs" not in command for command in commands)


def test_inspect_sums_up_earlier_steps(cli, kept):
    _, bundle = kept
    out = cli("inspect", bundle).out
    assert "2 earlier steps in " in out
    assert "trajectory/step" not in out


def test_diagnose_without_code_answers_from_the_record(cli, here):
    _, bundle = here
    done = cli("diagnose", bundle)
    assert done.code == 0
    assert "Not replayed yet" in done.out
    refused = cli("diagnose", bundle, "--require", "replay")
    assert refused.code == 4


def test_open_writes_a_notebook_with_the_newest_bundle(cli, here):
    folder, bundle = here
    done = cli("open", "--dry-run", "--no-browser", "--port", "9999")
    assert done.code == 0, done.err
    assert "newest" in done.err
    words = shlex.split(done.out)
    assert words[:2] == ["jupyter", "lab"]
    assert words[3:] == ["--no-browser", "--port=9999"]
    notebook = json.loads((folder / words[2]).read_text())
    sources = ["".join(cell["source"]) for cell in notebook["cells"]]
    assert any(repr(str((folder / bundle).resolve())) in source for source in sources)


def test_open_keeps_a_notebook_that_was_edited(cli, here):
    folder, _ = here
    first = shlex.split(cli("open", "--dry-run").out)[2]
    (folder / first).write_text("{}")
    assert cli("open", "--dry-run").code == 0
    assert (folder / first).read_text() == "{}"


def test_open_without_any_bundle(cli, here):
    import shutil

    folder, _ = here
    shutil.rmtree(folder / "incidents")
    done = cli("open", "--dry-run")
    assert done.code == 4
    assert "workbench demo" in done.err


def test_a_diagnosis_is_not_replaced_by_less_and_inspect_shows_it(cli, here):
    folder, bundle = here
    assert cli("diagnose", bundle, "--step", "tiny.py:LogOfZero").code == 0
    saved = folder / f"{bundle}.findings" / "findings.json"
    before = saved.read_bytes()
    again = cli("diagnose", bundle)
    assert again.code == 0
    assert "Born at aten.log.default" in again.out
    assert "saved by an earlier diagnosis" in again.err
    assert saved.read_bytes() == before
    assert "Born at aten.log.default" in cli("inspect", bundle).out


def test_a_damaged_findings_file_leaves_the_bundle_readable(cli, here):
    folder, bundle = here
    beside = folder / f"{bundle}.findings"
    beside.mkdir()
    (beside / "findings.json").write_text('{"schema": NaN}', encoding="utf-8")
    done = cli("inspect", bundle)
    assert done.code == 0
    assert "Caught at loss" in done.out


def test_a_folder_that_is_not_there_is_a_wrong_use(cli):
    done = cli("list", "nowhere")
    assert done.code == 2
    assert "'nowhere'" in done.err
