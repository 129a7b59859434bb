"""The template `checkpoint-audit`: what it says of a real folder of checkpoints."""

import json

import pytest
import torch

from workbench.checkpoints import Registry
from workbench.cli.main import main
from workbench.errors import CheckpointError, UsageError
from workbench.integrations.resuming import latest_committed
from workbench.reports import audits, extract_findings


@pytest.fixture
def folder(tmp_path):
    checkpoints, runs = tmp_path / "checkpoints", tmp_path / "runs"
    checkpoints.mkdir()
    runs.mkdir()
    registry = Registry(checkpoints, clean_steps=10)
    for step in (100, 200, 300):
        values = torch.ones(50)
        values[7] = float("nan") if step == 300 else 1.0
        torch.save({"<b>layer</b>": values}, checkpoints / f"checkpoint-{step}.pt")
        registry.saved(checkpoints / f"checkpoint-{step}.pt", step)
    registry.scan()
    registry.clean(320)
    return checkpoints, runs


def text(section):
    return json.dumps(section.blocks, ensure_ascii=False)


def test_states_reasons_and_resumes_are_told(folder):
    checkpoints, runs = folder
    assert latest_committed(checkpoints).name == "checkpoint-200.pt"
    audit = audits.load(str(checkpoints), str(runs))
    first = text(audits.first_screen(audit))
    assert "Resume from checkpoint-200.pt" in first
    assert "2 committed, 0 suspect, 1 quarantined" in first
    assert "One resume was recorded, from a committed one." in first
    assert "1 NaN" in text(audits.bad(audit))
    assert "20 clean steps" in text(audits.changes(audit)) or "clean steps followed" in text(
        audits.changes(audit)
    )
    registry = Registry(checkpoints)
    registry.incident(210, 150, "non-finite values at loss in step 210")
    (runs / "r8.ledger.jsonl").write_text(
        '{"run_id":"r8","step":301,"checkpoint_parent":"/somewhere/checkpoint-300.pt"}\n'
    )
    (runs / "r7.ledger.jsonl").write_text('{"run_id":"r7","step":0}\n')
    audit = audits.load(str(checkpoints), str(runs))
    first = text(audits.first_screen(audit))
    assert "Training was resumed from what is not committed now" in first
    assert "from 2 checkpoints not committed now" in first
    used = text(audits.training(audit))
    assert "run r8" in used
    assert "somewhere" not in used
    assert "1 of 2 ledgers name no parent" in used
    assert json.loads(audits.first_screen(audit).findings)["latest"] == "checkpoint-100.pt"


def test_a_folder_without_checkpoints_and_damaged_ones(tmp_path):
    with pytest.raises(UsageError, match="directory"):
        audits.load("")
    with pytest.raises(UsageError):
        audits.load(str(tmp_path / "missing"))
    audit = audits.load(str(tmp_path))
    assert "There are no checkpoints" in text(audits.first_screen(audit))
    for section in (audits.checkpoints, audits.bad, audits.training, audits.changes, audits.check):
        assert section(audit).blocks
    (tmp_path / "x.ledger.jsonl").write_text("{half\n")
    with pytest.raises(CheckpointError, match=r"x\.ledger\.jsonl"):
        audits.load(str(tmp_path), str(tmp_path))


def test_the_command_takes_the_folder_and_no_bundle(folder, tmp_path):
    checkpoints, _ = folder
    page = tmp_path / "audit.html"
    arguments = ["report", str(checkpoints), "--template", "checkpoint-audit", "-o", str(page)]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert not ended.value.code
    html = page.read_text()
    assert str(tmp_path) not in html
    assert "&lt;b&gt;layer" in html
    assert "<b>layer" not in html
    assert extract_findings(html)["latest"] == "checkpoint-200.pt"
    refused = ["report", "a.bundle", "b.bundle", "--template", "checkpoint-audit"]
    with pytest.raises(SystemExit) as ended:
        main(refused)
    assert ended.value.code == 2
