"""What the README and every page of the documentation show is run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.docs.snippets import run_page

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
ELSEWHERE = {
    "docs/architecture.md": "signatures, not code",
    "docs/templates.md": "tests/notebooks/test_batch.py runs its template",
}


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:  # a page's own modules are not another page's
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def blocks(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.findall(r"^```(?:python|console)", text, re.M)


@pytest.mark.parametrize("name", [p for p in PAGES if p not in ELSEWHERE and blocks(p)])
def test_what_a_page_shows_runs(name, own_folder):
    page = run_page(ROOT / name)
    assert page.python + len(page.commands) + page.left_out > 0
    assert page.left_out <= (page.python + len(page.commands)), "most of a page must run"


def test_a_page_that_is_wrong_fails(own_folder):
    wrong = own_folder / "wrong.md"
    for text in (
        "```python\n1 / 0\n```\n",
        "```console\n$ workbench inspect nowhere.bundle\n```\n",
        "```console\n$ workbench --version\nnot what it prints\n```\n",
    ):
        wrong.write_text(text)
        with pytest.raises(AssertionError):
            run_page(wrong)
