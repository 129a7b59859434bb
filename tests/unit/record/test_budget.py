"""What the policy allows in bytes is held to the byte, with manifests and what is written late."""

import pytest
import recorded_steps as steps
from recorder_helpers import make

from workbench import Policy, open_bundle
from workbench.evidence import find_bundles
from workbench.record.budget import Allowance, Budget


def on_disk(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize(("total", "one"), [(500_000, 10**9), (10**9, 150_000), (330_000, 10**9)])
def test_no_bundle_and_no_run_grows_beyond_what_is_allowed(tmp_path, total, one):
    policy = Policy(
        on_nonfinite="skip", max_bundles=8, max_total_bytes=total, max_bytes=one, recovery_every=5
    )
    step, recorder = make(steps.Half, tmp_path, policy)
    for k in range(24):
        recorder.train_step(step.batch(k, bad=k % 2 == 1))
    recorder.background.wait()
    assert not recorder.failures
    bundles = [open_bundle(path) for path in find_bundles(tmp_path)]
    sizes = [on_disk(bundle.path) for bundle in bundles]
    assert len(sizes) >= 2
    assert max(sizes) <= one
    assert sum(sizes) <= total
    assert recorder.budget.left == total - sum(sizes), "what was not needed was given back"
    for bundle in bundles:
        assert bundle.sealed
        assert {check.status for check in bundle.verify()} == {"ok"}
    left_out = [b for b in bundles if "trajectory.safetensors" in b.manifest.dropped]
    assert left_out, "earlier steps take more text than was estimated"
    assert left_out[-1].completeness["trajectory"].startswith("missing earlier steps: ")
    assert not (left_out[-1].path / "trajectory").exists()
    assert left_out[-1].completeness["update"] == "complete"


def test_a_budget_too_small_for_what_is_light_makes_no_bundle_and_says_so(tmp_path, caplog):
    step, recorder = make(steps.Cnn, tmp_path, Policy(on_nonfinite="skip", max_total_bytes=9000))
    assert recorder.train_step(step.batch(0, bad=True)).incident is None
    assert not list(tmp_path.glob("*.bundle"))
    assert recorder.budget.left == 9000
    assert "no bundle: not even what is light fits" in caplog.text


def test_an_allowance_takes_more_while_there_is_more():
    budget = Budget(100)
    first, second = Allowance(budget, 80), Allowance(budget, 80)
    assert first.covers(50)
    assert second.most == 50
    assert second.covers(40)
    assert not first.covers(61)
    second.settle(10)
    assert first.covers(80)
    assert not first.covers(81), "not more than one bundle may have"
    assert budget.left == 10
