"""``workbench open``: the guided investigation of a bundle, in JupyterLab."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click

from workbench.cli.command import Command
from workbench.cli.investigation import write_notebook
from workbench.cli.options import newest_bundle
from workbench.cli.output import note, say
from workbench.errors import CannotRunError


@click.command("open", cls=Command, section="Look", order=5)
@click.argument("bundle", type=click.Path(path_type=Path), required=False)
@click.option("--step", help="Your code: package.module:Name or file.py:Name.")
@click.option("--no-browser", is_flag=True, help="Start the server only.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the server.")
@click.option("--dry-run", is_flag=True, help="Write the notebook and print the command only.")
def command(
    bundle: Path | None, step: str | None, no_browser: bool, port: int | None, dry_run: bool
) -> None:
    """Open BUNDLE in a notebook in JupyterLab.

    Without BUNDLE it takes the newest below the current directory. Opening runs no code that the
    bundle names.
    """
    from workbench.evidence import open_bundle

    opened = open_bundle(newest_bundle(bundle))
    notebook, new = write_notebook(opened.path, Path.cwd(), step)
    note(f"{'Wrote' if new else 'Kept your notebook'} {notebook.name}")
    words = ["lab", str(notebook)]
    words += ["--no-browser"] if no_browser else []
    words += [f"--port={port}"] if port is not None else []
    if dry_run:
        say(shlex.join(["jupyter", *words]))
        return
    sys.exit(subprocess.run([*_jupyter(), *words], check=False).returncode)


def _jupyter() -> list[str]:
    """The Jupyter of this Python, else the one on PATH."""
    from importlib.util import find_spec

    if find_spec("jupyterlab") is not None:
        return [sys.executable, "-m", "jupyter"]
    found = shutil.which("jupyter")
    if found is not None:
        return [found]
    raise CannotRunError(
        "'jupyter' is not installed here, so the notebook cannot be opened; it is written and can "
        "be opened elsewhere. Install it with: pip install 'nonfinite-workbench[lab]'"
    )
