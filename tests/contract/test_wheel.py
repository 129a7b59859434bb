"""The wheel, installed with nothing but the core requirements, records, inspects and diagnoses.

A clean environment would download torch. Instead the environment has no packages of its own, and
a folder of links that exposes exactly the core distributions and what they require in turn.
"""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.unit.cli.conftest import STEP

CORE = ("torch", "numpy", "safetensors", "msgspec", "click", "tqdm")
LAB = ("plotly", "ipywidgets", "papermill", "xarray", "nbconvert", "jupyterlab")


def closure(names):
    """Names of the distributions and of everything they require."""
    found = set()
    waiting = list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found:
            continue
        try:
            requires = distribution(name).requires or []
        except PackageNotFoundError:
            continue  # required elsewhere only, by a marker that does not hold here
        found.add(name)
        wanted = [Requirement(text) for text in requires]
        waiting += [r.name for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


def expose(names, folder):
    """Link every top-level file and folder of the distributions."""
    for name in names:
        found = distribution(name)
        tops = {Path(str(file)).parts[0] for file in found.files or ()}
        for top in tops - {"..", "__pycache__"}:
            source = Path(str(found.locate_file(top)))
            link = folder / top
            if source.exists() and not link.exists():
                link.symlink_to(source)


@pytest.fixture(scope="module")
def built(repository, tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "build",
            "--no-isolation",
            "--wheel",
            "--sdist",
            "--outdir",
            folder,
            repository,
        ],
        check=True,
        capture_output=True,
    )
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def core(wheel, tmp_path_factory):
    """The programs of an environment with the wheel and the core requirements only."""
    root = tmp_path_factory.mktemp("core")
    venv.create(root / "env", with_pip=False, symlinks=True)
    python = root / "env" / "bin" / "python"
    links = root / "links"
    links.mkdir()
    expose(closure(CORE), links)
    (site,) = (root / "env" / "lib").glob("python*/site-packages")
    (site / "core.pth").write_text(f"{links}\n")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q"]
    subprocess.run([*pip, "--no-deps", "--no-index", wheel], check=True, capture_output=True)
    return python.parent


def run(program, *words, cwd):
    return subprocess.run(
        [program, *words], cwd=cwd, env={"PATH": ""}, capture_output=True, text=True, check=False
    )


def test_the_wheel_carries_templates_and_notebooks(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in ("workbench/templates/incident.ipynb", "workbench/notebooks/investigate.ipynb"):
        assert wanted in names
    assert not [name for name in names if name.startswith(("tests/", "scripts/", "benchmarks/"))]
    assert "workbench/py.typed" in names


def test_an_index_would_take_wheel_and_source_as_they_are(built):
    files = sorted(built.glob("nonfinite_workbench-*"))
    assert [file.suffix for file in files] == [".whl", ".gz"]
    checked = [sys.executable, "-m", "twine", "check", "--strict", *files]
    done = subprocess.run(checked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


@pytest.mark.parametrize("package", LAB)
def test_the_environment_has_no_display_package(core, tmp_path, package):
    done = run(core / "python", "-c", f"import {package}", cwd=tmp_path)
    assert "ModuleNotFoundError" in done.stderr


def test_the_core_records_inspects_replays_and_diagnoses(core, tmp_path):
    (tmp_path / "tiny.py").write_text(STEP, encoding="utf-8")
    recorded = run(core / "python", "tiny.py", cwd=tmp_path)
    assert recorded.returncode == 0, recorded.stderr
    bundle = recorded.stdout.splitlines()[-1]
    step = ("--step", "tiny.py:LogOfZero")
    for words in (
        ("inspect", bundle),
        ("verify", bundle, "--reproduces", *step),
        ("replay", bundle, *step),
        ("diagnose", bundle, *step, "--require", "replay"),
    ):
        done = run(core / "workbench", *words, cwd=tmp_path)
        assert done.returncode == 0, (words, done.stderr)
    assert "aten.log.default" in done.stdout

    refused = run(core / "workbench", "report", bundle, cwd=tmp_path)
    assert refused.returncode == 4
    assert "pip install 'nonfinite-workbench[lab]'" in refused.stderr.replace("\n", " ")
