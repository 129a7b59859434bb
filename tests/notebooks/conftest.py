"""Bundles and small templates for reports that really run."""

from __future__ import annotations

import textwrap

import pytest

from tests.unit.charts.fabricated import write_bundle
from workbench.reports.build_templates import build


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
