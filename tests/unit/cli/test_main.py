"""Help, exit codes and the shape of errors."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.unit.cli.conftest import run_process
from workbench.cli.command import SECTIONS
from workbench.cli.main import main


def test_help_lists_commands_in_sections(tmp_path):
    done = run_process(cwd=tmp_path)
    assert done.code == 0
    found = re.findall(r"^(\w+):$", done.out, re.M)
    assert [name for name in found if name in SECTIONS] == [
        s for s in SECTIONS if f"\n{s}:" in done.out
    ]
    assert "Look" in found
    assert done.err == ""


def test_an_unknown_command_is_wrong_use(tmp_path):
    done = run_process("explode", cwd=tmp_path)
    assert done.code == 2
    assert "explode" in done.err
    assert done.out == ""


def test_a_missing_bundle_is_one_paragraph(tmp_path):
    done = run_process("inspect", "nothing.bundle", cwd=tmp_path)
    assert done.code == 2
    assert "nothing.bundle" in done.err
    assert "Traceback" not in done.err
    assert "\n\n" not in done.err


def test_debug_shows_the_traceback(tmp_path):
    assert "Traceback" in run_process("inspect", "nothing.bundle", "--debug", cwd=tmp_path).err
    assert "Traceback" in run_process("--debug", "inspect", "nothing.bundle", cwd=tmp_path).err


def test_a_bug_of_our_own_is_a_paragraph_too(monkeypatch, capsys):
    def broken(*_):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("workbench.evidence.reader.open_bundle", broken)
    monkeypatch.setattr("workbench.evidence.open_bundle", broken, raising=False)
    with pytest.raises(SystemExit) as stopped:
        main(["inspect", "x.bundle"])
    assert stopped.value.code == 1
    error = capsys.readouterr().err
    assert "ZeroDivisionError: oh" in error
    assert "--debug" in error


def test_control_characters_never_reach_the_terminal(capsys):
    from workbench.cli.output import say

    say("a\x1b[31mb\u202ec")
    assert capsys.readouterr().out == "a\\x1b[31mb\\u202ec\n"


def test_a_closed_pipe_is_no_failure(here):
    import subprocess

    folder, _ = here
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m workbench list | true; echo ${{PIPESTATUS[0]}}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "0"
    assert "Traceback" not in done.stderr


WITHOUT_TORCH = """
import sys
from workbench.cli.main import main
for words in {commands!r}:
    try:
        main(words)
    except SystemExit as ended:
        print(words[0], ended.code, "torch" in sys.modules, file=sys.stderr)
"""


def test_what_replays_nothing_and_what_is_refused_loads_no_torch(here):
    folder, bundle = here
    path = str(bundle)
    commands = [
        ["--help"], ["triage", "--help"], ["list", "incidents"], ["inspect", path],
        ["verify", path], ["triage", "incidents"], ["capture", "incidents", "--why", "odd"],
        ["checkpoints", "list", "."], ["replay", path], ["sweep", path, "--minimal"],
        ["ladder", path], ["diagnose", "slip.bundle"],
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH.format(commands=commands)],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    ended = [line.split() for line in done.stderr.splitlines() if line.endswith(("True", "False"))]
    assert [(word, code) for word, code, _ in ended] == [
        ("--help", "0"), ("triage", "0"), ("list", "0"), ("inspect", "0"), ("verify", "0"),
        ("triage", "0"), ("capture", "4"), ("checkpoints", "0"), ("replay", "4"), ("sweep", "4"),
        ("ladder", "4"), ("diagnose", "2"),
    ]  # fmt: skip
    assert {loaded for _, _, loaded in ended} == {"False"}
