"""The demo: a real run that goes non-finite by itself, and its explanation."""

from __future__ import annotations

import pytest

from workbench.cli.demo_training import TEXT_CHARACTERS, training_text
from workbench.evidence import open_bundle


def test_the_text_is_the_same_every_time_and_long_enough():
    assert training_text() == training_text()
    assert len(training_text()) == TEXT_CHARACTERS


@pytest.mark.slow
def test_the_run_trips_by_itself_and_is_explained(cli, here):
    folder, _ = here
    done = cli("demo", "--no-report", "--out", "demo")
    assert done.code == 0, done.err
    (path,) = (folder / "demo" / "incidents").glob("*.bundle")
    bundle = open_bundle(path)
    assert bundle.first_bad.stage == "loss"
    ledger = bundle.ledger()
    skips = [r for r in ledger if any(o["skipped_by"] == "scaler" for o in r["optimizers"])]
    assert skips, "the loss scaler found its scale first"
    lines = done.out.splitlines()
    assert "Born at aten.log.default in loss, demo_training.py" in lines[1]
    assert "rounded" in lines[2]
    assert "float16" in lines[2]
    assert "Replayed exactly" in lines[3]
    assert [line.split()[1] for line in lines[-2:]] == ["replay", "open"]
    assert str(path.relative_to(folder)) in lines[-1]
