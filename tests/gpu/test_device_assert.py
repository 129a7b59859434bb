"""A device-side assert ends CUDA for its process: only the replay's own process is lost.

Runs last and in a pytest process of its own (`scripts/gpu_check.sh`).
"""

import json

import pytest

from tests.gpu.training import ASSERT_ONCE, Asserts, AssertsOnce, Mixed, calm, record, reference
from workbench.evidence import open_bundle
from workbench.replay import ReplayWorker

pytestmark = pytest.mark.gpu


@pytest.fixture
def bundle(cuda, tmp_path):
    return record(Mixed(), cuda, tmp_path, calm(cuda, 3))


def test_an_assert_becomes_a_result_and_the_bundle_replays_at_once(bundle, record_property):
    with ReplayWorker(bundle, step=reference(Asserts)) as worker:
        last = worker.result("run", timeout_s=60)
    text = json.dumps(last)
    record_property("detail", f"{last['event']}: {_reason(last)[:200]}")
    assert last["event"] in ("done", "error", "died")
    assert "assert" in text
    with ReplayWorker(bundle, step=reference(Mixed)) as worker:
        again = worker.result("run", timeout_s=60)
    assert again["event"] == "done", again
    assert again["result"]["verdict"] == "bitwise"
    assert all(check.status == "ok" for check in open_bundle(bundle).verify())


def _reason(event):
    return str(event.get("reason") or event.get("message") or event["event"])


def test_the_same_worker_replays_after_an_assert(bundle, tmp_path, monkeypatch):
    monkeypatch.setenv(ASSERT_ONCE, str(tmp_path / "asserted"))
    with ReplayWorker(bundle, step=reference(AssertsOnce)) as worker:
        assert "assert" in json.dumps(worker.result("run", timeout_s=60))
        again = worker.result("run", timeout_s=60)
    assert again["event"] == "done", again
    assert again["result"]["verdict"] == "bitwise"
