"""The device checks of ``tests/gpu`` on the CPU, as far as they run here."""

import pytest
import torch

from tests.gpu.autocast_calls import CALLS, emulated
from tests.gpu.recovery import LargeOnCpu, begun, recovered
from tests.gpu.training import (
    ASSERT_ONCE,
    AssertsOnceOnCpu,
    Compiled,
    Deeper,
    FusedOnCpu,
    MixedOnCpu,
    bare_step,
    batch,
    build,
    calm,
    ops_of,
    parameters,
    record,
    recorder_for,
    reference,
    same_bits,
    verdict_without_gpu,
)  # fmt: skip
from tests.gpu.updates import skip_between_updates
from workbench.evidence import open_bundle
from workbench.replay import Replay, ReplayWorker


@pytest.fixture(autouse=True)
def random_numbers_are_put_back():
    with torch.random.fork_rng():
        yield


@pytest.mark.parametrize("name", CALLS)
def test_the_emulated_result_has_the_dtype_it_has_on_cuda(name):
    call, expected = CALLS[name]
    result = emulated(call)
    assert result.dtype == expected
    assert result.isfinite().all()


def test_a_whole_mixed_step_replays_bit_for_bit(tmp_path):
    path = record(MixedOnCpu(), "cpu", tmp_path, calm("cpu", 3))
    replay = Replay(path, step=MixedOnCpu)
    found = replay.verdict()
    assert (found.verdict, found.deterministic_here, found.differences) == ("bitwise", True, [])
    recorded = replay.run().loss_bits
    assert replay.run(conditions=replay.nearest.replace(rng=1)).loss_bits != recorded


def test_recovery_points_are_those_of_training_and_move_no_parameter(tmp_path):
    found = recovered(LargeOnCpu(), "cpu", tmp_path)
    assert found == {"same": True, "stayed": True, "points": 3, "pinned": [False] * 3}
    ring, begin = begun(LargeOnCpu(), "cpu")
    assert begin().copies[0].size == ring._pool.bytes > 2**20


def test_an_overflow_replays_in_a_process_that_sees_no_gpu(tmp_path):
    path = record(MixedOnCpu(), "cpu", tmp_path, [*calm("cpu", 2), batch("cpu", 9, gain=1e6)])
    first = open_bundle(path).first_bad
    assert (first.stage, first.tensor) == ("loss", "loss")
    found = verdict_without_gpu(path, MixedOnCpu)
    assert (found["verdict"], found["cuda"], found["here"]["device"]) == ("bitwise", False, "cpu")


def test_a_skip_of_fused_adamw_is_accounted_for(tmp_path):
    story = skip_between_updates(FusedOnCpu(), "cpu", tmp_path)
    assert story.updated == story.moved == [True, True, False, True]
    assert story.skipped_by == ["none", "none", "scaler", "none"]
    assert story.counters == [1.0, 2.0, 2.0, 3.0]
    assert story.found_inf == [0.0, 0.0, 1.0, 0.0]


def test_recording_changes_no_bit_of_training(tmp_path):
    bare, built = build(MixedOnCpu(), "cpu"), build(MixedOnCpu(), "cpu")
    torch.manual_seed(1)
    for one in calm("cpu", 3):
        bare_step(bare, one)
    torch.manual_seed(1)
    recorder = recorder_for(built, tmp_path)
    for one in calm("cpu", 3):
        recorder.train_step(one)
    recorder.close()
    assert same_bits(parameters(bare.model), parameters(built.model))
    assert not same_bits(parameters(bare.model), parameters(build(MixedOnCpu(), "cpu").model))


def test_a_compiled_step_replays(tmp_path):
    path = record(Compiled(), "cpu", tmp_path, calm("cpu", 2))
    assert open_bundle(path).conditions.compile == "aot_eager"
    assert Replay(path, step=Compiled).verdict().verdict == "bitwise"


def test_a_failing_loss_is_a_result_and_the_bundle_replays_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv(ASSERT_ONCE, str(tmp_path / "asserted"))
    path = record(MixedOnCpu(), "cpu", tmp_path, calm("cpu", 2))
    with ReplayWorker(path, step=reference(AssertsOnceOnCpu)) as worker:
        first = worker.result("run", timeout_s=120)
        again = worker.result("run", timeout_s=120)
    assert first["result"]["first_bad"]["tensor"] == "exception:IndexError"
    assert again["result"]["verdict"] == "bitwise"


def test_ops_of_a_call_are_named():
    assert "aten::mm" in ops_of(lambda: torch.ones(2, 2) @ torch.ones(2, 2))


def test_deeper_is_small_enough_to_be_read_in_full():
    assert sum(p.numel() for p in Deeper().build_model().parameters()) < 1 << 15
