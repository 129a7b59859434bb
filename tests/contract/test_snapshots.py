"""What others build on changes only on purpose: public names and the command line."""

from __future__ import annotations

import pytest

from tests.contract.snapshots import FOLDER, SNAPSHOTS


@pytest.mark.parametrize("file", sorted(SNAPSHOTS))
def test_nothing_public_changed_unnoticed(file):
    kept = (FOLDER / file).read_text(encoding="utf-8")
    assert SNAPSHOTS[file]() == kept, (
        "a public name or option changed; if that is meant: python -m tests.contract.snapshots"
    )
