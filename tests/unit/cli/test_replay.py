"""replay: trust, conditions, JSON and nothing else on stdout."""

from __future__ import annotations

import shlex

from tests.unit.cli.conftest import run_process

STEP = ("--step", "tiny.py:LogOfZero")


def test_it_refuses_untrusted_code_with_commands_that_work(cli, here):
    _, bundle = here
    refused = cli("replay", bundle, "--until", "loss", "--json")
    assert refused.code == 4
    assert refused.out == ""
    commands = [line.strip() for line in refused.err.splitlines() if line.startswith("  workbench")]
    assert len(commands) >= 2
    for command in commands:
        done = cli(*shlex.split(command)[1:])
        assert done.code == 0, (command, done.err)
        assert done.json["first_bad"]["stage"] == "loss"


def test_stdout_of_a_process_is_json_and_nothing_else(here):
    folder, bundle = here
    done = run_process("replay", bundle, *STEP, "--json", cwd=folder)
    assert done.code == 0
    assert done.json["schema"] == "workbench.replay/1"
    assert "building the model" in done.err


def test_source_from_the_bundle_runs_after_its_digest_is_printed(cli, here):
    folder, bundle = here
    (folder / "tiny.py").unlink()
    done = cli("replay", bundle, "--trust", "source", "--json")
    assert done.code == 0, done.err
    assert "sha256:" in done.err.splitlines()[0]
    assert done.json["verdict"] == "bitwise"


def test_original_conditions_give_a_verdict(cli, here):
    _, bundle = here
    data = cli("replay", bundle, *STEP, "--json").json
    assert data["schema"] == "workbench.replay/1"
    assert data["diagnostic"] is False
    assert data["verdict"] == "bitwise"
    assert [stage["status"] for stage in data["stages"]][:3] == ["clean", "clean", "bad"]
    text = cli("replay", bundle, *STEP)
    assert "Original conditions" in text.out
    assert "building the model" not in text.out
    assert "building the model" in text.err


def test_changed_conditions_are_diagnostic(cli, here):
    _, bundle = here
    data = cli("replay", bundle, *STEP, "--set", "dtype=float64", "--json").json
    assert data["diagnostic"] is True
    assert data["changed"] == {"dtype": "float64"}


def test_a_finite_diagnostic_run_is_followed_by_the_original(cli, here):
    _, bundle = here
    # Without the second sample, whose probability underflows, or the first: one of them is finite.
    runs = [
        cli("replay", bundle, *STEP, "--set", f"keep_samples={i}", "--json").json for i in (0, 1)
    ]
    finite = [data for data in runs if data["first_bad"] is None]
    for data in finite:
        assert data["original_after"]["first_bad"]["stage"] == "loss"
    assert all(("original_after" in data) == (data["first_bad"] is None) for data in runs)


def test_until_stops_there(cli, here):
    _, bundle = here
    data = cli("replay", bundle, *STEP, "--until", "forward", "--json").json
    status = {stage["stage"]: stage["status"] for stage in data["stages"]}
    assert status["forward"] == "clean"
    assert status["loss"] == "not_run"


def test_wrong_use(cli, here):
    _, bundle = here
    for words in (["--set", "colour=red"], ["--set", "autocast"], ["--until", "lunch"]):
        done = cli("replay", bundle, *STEP, *words)
        assert done.code == 2, done.err
        assert words[1].partition("=")[0] in done.err


def test_a_device_that_is_not_here(cli, here):
    _, bundle = here
    done = cli("replay", bundle, *STEP, "--set", "device=cuda:77")
    assert done.code == 4
    assert "cuda:77" in done.err
