"""Bundles and small templates for reports that really run."""

from __future__ import annotations

import shutil
import textwrap
from pathlib import Path

import pytest

from tests.unit.charts.fabricated import write_bundle
from workbench.reports.build_templates import build

FILES = {
    "forward": "nu01_unet_skip_connection_overflow",
    "backward": "bo01_reciprocal_squared_in_backward",
    "batch": "lb01_infinite_survival_time",
}
"""Incident files: an overflow in forward, one in backward, and a bad batch."""


@pytest.fixture(scope="session")
def bundle(tmp_path_factory):
    """A bundle with findings and trace beside it."""
    return write_bundle(tmp_path_factory.mktemp("bundles"), layers=16)


@pytest.fixture
def template(tmp_path):
    """Builds a template of one's own whose second cell is the given code."""

    def make(code, name="own"):
        script = tmp_path / f"{name}.py"
        script.write_text(
            '# %% parameters tags=["parameters"]\n'
            'bundle: str = ""  # path of the bundle to read\n\n'
            "# %% [markdown]\n# ## First\n\n"
            "# %% first\nprint('first ran')\n\n"
            "# %% [markdown]\n# ## Second\n\n"
            f"# %% second\n{textwrap.dedent(code)}\n\n"
            "# %% [markdown]\n# ## Third\n\n"
            "# %% third\nprint('third ran')\n"
        )
        notebook = script.with_suffix(".ipynb")
        notebook.write_text(build(script))
        return notebook

    return make


@pytest.fixture(scope="session")
def incidents(tmp_path_factory):
    """Three real incidents: name to the bundle and the reference of its step's code."""
    from workbench.diagnose.zoo_run import record

    folder = tmp_path_factory.mktemp("incidents")
    files = Path(__file__).resolve().parent.parent / "incidents"
    lines = [
        "from pathlib import Path",
        "from workbench.diagnose.zoo_step import IncidentStep",
    ]
    made = {}
    for name, stem in FILES.items():
        path = files / f"{stem}.py"
        lines += [
            f"class {name.title()}(IncidentStep):",
            "    def __init__(self):",
            f"        super().__init__(Path({str(path)!r}))",
        ]
        recorded = record(path, folder / "runs" / name, None)
        bundle = folder / f"{name}.bundle"
        shutil.copytree(recorded.bundle, bundle)
        made[name] = (bundle, f"{folder / 'steps.py'}:{name.title()}")
    (folder / "steps.py").write_text("\n".join(lines) + "\n")
    return made


@pytest.fixture(scope="session")
def damaged(incidents, tmp_path_factory):
    """A bundle whose parameters and batch were changed after it was sealed, and its step."""
    bundle, step = incidents["backward"]
    copy = tmp_path_factory.mktemp("damaged") / "damaged.bundle"
    shutil.copytree(bundle, copy)
    for name in ("state/model.safetensors", "batch.safetensors"):
        data = bytearray((copy / name).read_bytes())
        data[-1] ^= 0xFF
        (copy / name).write_bytes(bytes(data))
    return copy, step
