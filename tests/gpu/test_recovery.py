"""Recovery points in pinned host memory: bit for bit, and no wait of the host; nothing is timed."""

import pytest
import torch

from tests.gpu.recovery import Large, begun, recovered
from tests.gpu.training import host_reads

pytestmark = pytest.mark.gpu


def test_recovery_points_are_bit_for_bit_those_of_training(cuda, tmp_path, record_property):
    found = recovered(Large(), cuda, tmp_path)
    record_property("detail", f"{found['points']} points, pinned: {found['pinned']}")
    assert found["same"]
    assert found["points"] == 3
    assert found["pinned"]
    assert all(found["pinned"])


def test_an_update_after_a_recovery_point_moves_no_parameter(cuda, tmp_path):
    assert recovered(Large(), cuda, tmp_path)["stayed"]


def test_beginning_a_recovery_point_waits_for_nothing(cuda, record_property):
    ring, begin = begun(Large(), cuda)
    begin()  # takes the memory
    torch.cuda.synchronize()
    kept = []
    reads = host_reads(lambda: kept.append(begin()))
    record_property("detail", f"{reads} host reads to begin one, {ring._pool.bytes} bytes pinned")
    assert reads == 0
    assert kept[0].copies
    state = kept[0].freeze()
    assert all(t.isfinite().all() for t in state.model.tensors.values())
