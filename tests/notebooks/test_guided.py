"""The guided notebooks run from top to bottom, and are saved without outputs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "notebooks"
SAYS = {
    "overflow": ("more than 65,504, the largest float16", "first bad: None"),
    "where_gradient": ("Born at aten.div.Tensor in 1, backward", "gone", "first bad: None"),
    "skip_storm": ("skipped 6 steps in a row", "skipped by scaler", "all as recorded: 18 steps"),
    "compiled": ("The eps of 1e-09 is 0 in float16", "the first that differs: inductor"),
}
"""What must be seen in the outputs."""


def test_every_notebook_agrees_with_its_script_and_has_no_outputs():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "build_notebooks.py", "--check"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")
    found = sorted(FOLDER.glob("*.ipynb"))
    assert {path.stem for path in found} == {"investigate", *SAYS}
    for path in found:
        cells = nbformat.read(path, 4).cells
        assert not [c for c in cells if c.get("outputs") or c.get("execution_count")]


@pytest.mark.slow
def test_the_guided_notebooks_run(tmp_path):
    """All in one kernel, which is wiped in between: torch is imported once."""
    folder = tmp_path / "notebooks"  # nothing is written into the checkout
    shutil.copytree(FOLDER, folder)
    whole, parts = nbformat.v4.new_notebook(), {}
    for name in SAYS:
        whole.cells.append(nbformat.v4.new_code_cell("%reset -f"))
        parts[name] = nbformat.read(folder / f"{name}.ipynb", 4).cells
        whole.cells += parts[name]
    NotebookClient(whole, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    for name, cells in parts.items():
        outputs = [o for c in cells if c.cell_type == "code" for o in c.outputs]
        text = "\n".join(o.get("text", "") for o in outputs)
        missing = [wanted for wanted in SAYS[name] if wanted not in text]
        assert not missing, (name, missing, text[-2000:])
