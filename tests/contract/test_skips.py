"""CI fails on tests that were skipped for a reason that is not allowed."""

from __future__ import annotations

import subprocess
import sys

import pytest

PASSED = '<testcase classname="a" name="passed"/>'


def check(repository, tmp_path, *cases):
    report = tmp_path / "junit.xml"
    report.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    return subprocess.run(
        [sys.executable, repository / "scripts" / "check_skips.py", report],
        capture_output=True,
        text=True,
        check=False,
    )


def skipped(message):
    mark = f'<skipped type="pytest.skip" message="{message}"/>'
    return f'<testcase classname="b" name="s">{mark}</testcase>'


@pytest.mark.parametrize("message", ["no CUDA device", "needs a GPU", "../shared is absent"])
def test_a_missing_gpu_or_shared_folder_is_allowed(repository, tmp_path, message):
    done = check(repository, tmp_path, PASSED, skipped(message))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("message", ["no Chromium on this machine", "too slow", ""])
def test_any_other_skip_fails_with_its_reason(repository, tmp_path, message):
    done = check(repository, tmp_path, PASSED, skipped(message))
    assert done.returncode == 1
    assert (message or "no reason") in done.stderr
    assert "b::s" in done.stderr


def test_a_run_without_tests_fails(repository, tmp_path):
    assert check(repository, tmp_path).returncode == 1
    assert check(repository, tmp_path, skipped("needs a GPU")).returncode == 1
