"""A step recorded on a GPU: bit for bit on the same GPU, and what a CPU can say of it."""

import pytest
import torch

from tests.gpu.training import Mixed, batch, calm, record, reference, verdict_without_gpu
from workbench.evidence import open_bundle
from workbench.replay import Replay
from workbench.step import read_state

pytestmark = pytest.mark.gpu


@pytest.fixture
def overflow(cuda, tmp_path):
    """The bundle of a step whose outputs overflow float16."""
    return record(Mixed(), cuda, tmp_path, [*calm(cuda, 3), batch(cuda, 9, gain=1e6)])


def test_a_whole_step_replays_bit_for_bit(cuda, tmp_path, record_property):
    path = record(Mixed(), cuda, tmp_path, calm(cuda, 4))
    found = Replay(path, step=Mixed).verdict()
    record_property("detail", f"{found.verdict}; differences: {found.differences or 'none'}")
    assert found.verdict == "bitwise"
    assert found.deterministic_here is True
    assert found.differences == []


def test_an_overflow_replays_bit_for_bit(overflow, record_property):
    bundle = open_bundle(overflow)
    assert bundle.first_bad is not None
    assert (bundle.first_bad.stage, bundle.conditions.device) == ("loss", "cuda:0")
    found = Replay(bundle, step=Mixed).verdict()
    record_property("detail", found.sentence)
    assert (found.verdict, found.deterministic_here) == ("bitwise", True)


def test_the_generator_of_every_gpu_is_kept(overflow, record_property):
    state = read_state(open_bundle(overflow))
    record_property("detail", f"{len(state.rng.cuda)} of {torch.cuda.device_count()} GPUs")
    assert set(state.rng.cuda) == set(range(torch.cuda.device_count()))


def test_dropout_follows_the_recorded_generator(cuda, tmp_path):
    replay = Replay(record(Mixed(), cuda, tmp_path, calm(cuda, 2)), step=Mixed)
    recorded = replay.run().loss_bits
    other = replay.run(conditions=replay.nearest.replace(rng=1)).loss_bits
    assert recorded == replay.run().loss_bits
    assert recorded != other


def test_a_trace_on_the_gpu_sees_the_failure(overflow, record_property):
    replay = Replay(overflow, step=Mixed)
    trace = replay.trace()
    found = replay.verdict(trace)
    record_property("detail", f"{len(trace.events)} events")
    assert found.survives_instrumentation is True


def test_on_a_cpu_the_verdict_names_the_device(overflow, record_property):
    found = verdict_without_gpu(overflow, Mixed)
    record_property("detail", f"{found['verdict']}; {'; '.join(found['differences'])[:300]}")
    assert found["cuda"] is False
    assert found["here"] == {"device": "cpu", "autocast": "cuda-policy"}
    assert found["verdict"] in ("same_mask", "same_class")
    name = torch.cuda.get_device_name(0)
    assert any("device" in line and name in line for line in found["differences"])
    assert any("CUDA generator" in line for line in found["differences"])


def test_a_process_of_its_own_replays_it(overflow):
    from workbench.replay import ReplayWorker

    with ReplayWorker(overflow, step=reference(Mixed)) as worker:
        last = worker.result("run", timeout_s=60)
    assert last["event"] == "done", last
    assert last["result"]["verdict"] == "bitwise"
