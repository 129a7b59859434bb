"""The documentation site builds without a warning, and needs no network when it is read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import workbench

ROOT = Path(__file__).resolve().parent.parent.parent
LOADED = re.compile(r"<(?:script|img|link|iframe)\b[^>]*?(?:src|href)=[\"']?(?:https?:)?//[^>]*>")


def test_the_site_is_whole_and_offline(tmp_path):
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", tmp_path]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    pages = {str(p.relative_to(tmp_path)): p.read_text() for p in tmp_path.rglob("*.html")}
    assert {"index.html", "tutorial.html", "howto/launch.html", "security.html"} <= set(pages)
    for name, html in pages.items():
        fetched = [tag for tag in LOADED.findall(html) if 'rel="canonical"' not in tag]
        assert not fetched, f"{name} loads {fetched[:3]}"
    missing = [name for name in workbench.__all__ if f">{name}<" not in pages["reference.html"]
               and f'id="workbench.{name}"' not in pages["reference.html"]
               and f".{name}\"" not in pages["reference.html"]]  # fmt: skip
    assert not missing
