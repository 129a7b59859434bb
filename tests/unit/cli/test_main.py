"""Help, exit codes and the shape of errors."""

from __future__ import annotations

import re
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
