"""Imports only point back along the flow of data, and display libraries stay at its end."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

LINT = Path(sys.executable).parent / "lint-imports"


def lint(root):
    return subprocess.run(
        [LINT, "--no-cache"], cwd=root, capture_output=True, text=True, check=False
    )


def copied(repository, root):
    shutil.copy(repository / "pyproject.toml", root)
    shutil.copytree(
        repository / "workbench",
        root / "workbench",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    return root / "workbench"


def test_the_contracts_are_kept(repository):
    done = lint(repository)
    assert done.returncode == 0, done.stdout


def test_a_wrong_import_breaks_them(repository, tmp_path):
    package = copied(repository, tmp_path)
    with (package / "numerics" / "counts.py").open("a") as file:
        file.write("\nimport plotly\nfrom workbench.step import TrainingStep\n")
    done = lint(tmp_path)
    assert done.returncode == 1
    assert "0 broken" not in done.stdout
    assert done.stdout.count("BROKEN") == 2
