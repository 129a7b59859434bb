"""``import workbench`` and the help load nothing heavy; a missing extra is named."""

from __future__ import annotations

import subprocess
import sys

import pytest

import workbench

HEAVY = ("torch", "numpy", "plotly", "xarray", "ipywidgets", "IPython", "papermill", "jinja2")


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


HELP = "from workbench.cli.main import main\ntry: main([{words}'--help'])\nexcept SystemExit: pass"


@pytest.mark.parametrize(
    "code",
    [
        "import workbench; dir(workbench)",
        "from workbench import NonFiniteError",
        HELP.format(words=""),
        HELP.format(words="'replay', "),
    ],
)
def test_nothing_heavy_is_loaded(code):
    done = run(f"{code}\nimport sys\nsys.exit(repr(sorted(set({HEAVY}) & set(sys.modules))))")
    assert done.stderr.strip() == "[]"


def test_every_public_name_resolves():
    for name in workbench.__all__:
        assert getattr(workbench, name) is not None


def test_there_are_at_most_15_public_names():
    assert len(workbench.__all__) <= 15
    assert workbench.__all__ == sorted(workbench.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = workbench.no_such_name


@pytest.mark.parametrize(
    ("name", "package"), [("Workbench", "ipywidgets"), ("report", "papermill")]
)
def test_a_missing_extra_is_named(name, package):
    done = run(
        "import sys\n"
        f"sys.modules[{package!r}] = None\n"
        "import workbench\n"
        f"try: workbench.{name}\n"
        "except workbench.errors.WorkbenchError as error: sys.exit(f'{error.exit_code} {error}')\n"
    )
    assert done.stderr.startswith("4 "), done.stderr
    assert package in done.stderr
    assert "pip install 'nonfinite-workbench[lab]'" in done.stderr
