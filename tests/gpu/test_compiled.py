"""Compiled steps and CUDA graphs, recorded and replayed."""

import importlib.util
import os
import shutil

import pytest
import torch

from tests.gpu.training import (
    Compiled,
    Graphed,
    Inductor,
    ReducedOverhead,
    bare_step,
    build,
    calm,
    parameters,
    record,
    recorder_for,
    same_bits,
)  # fmt: skip
from workbench.evidence import open_bundle
from workbench.replay import Replay

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def inductor():
    compiler = shutil.which("gcc") or shutil.which("cc") or os.environ.get("CC")
    if importlib.util.find_spec("triton") is None or compiler is None:
        pytest.skip("inductor needs triton and a C compiler beside the CUDA GPU")


def verdict_of(step, device, directory, record_property):
    path = record(step, device, directory, calm(device, 4))
    found = Replay(path, step=type(step)).verdict()
    compiled = open_bundle(path).conditions.compile
    record_property("detail", f"compile={compiled}: {found.verdict}")
    return compiled, found


def test_a_step_compiled_by_aot_eager_replays(cuda, tmp_path, record_property):
    compiled, found = verdict_of(Compiled(), cuda, tmp_path, record_property)
    assert (compiled, found.verdict) == ("aot_eager", "bitwise")


def test_a_cuda_graph_replays(cuda, tmp_path, record_property):
    compiled, found = verdict_of(Graphed(), cuda, tmp_path, record_property)
    assert (compiled, found.verdict) == ("off", "bitwise")


def trained(step, device, directory, capture_at=None):
    """Parameters after a bare loop and after a recorded one."""
    bare = build(step, device)
    for one in calm(device, 6):
        bare_step(bare, one)
    built = build(step, device)
    recorder = recorder_for(built, directory)
    for number, one in enumerate(calm(device, 6)):
        recorder.train_step(one, capture="look" if number == capture_at else None)
    recorder.close()
    assert recorder.failures == []
    return parameters(bare.model), parameters(built.model)


def test_recording_leaves_a_cuda_graph_alone(cuda, tmp_path):
    assert same_bits(*trained(Graphed(), cuda, tmp_path))


@pytest.mark.xfail(
    reason="a snapshot held through an update moves parameters; a graph reads the old memory",
    raises=AssertionError,
    strict=False,
)
def test_a_captured_step_leaves_a_cuda_graph_alone(cuda, tmp_path):
    assert same_bits(*trained(Graphed(), cuda, tmp_path, capture_at=2))


@pytest.mark.usefixtures("inductor")
def test_a_step_compiled_by_inductor_replays(cuda, tmp_path, record_property):
    compiled, found = verdict_of(Inductor(), cuda, tmp_path, record_property)
    assert (compiled, found.verdict) == ("inductor", "bitwise")


@pytest.mark.usefixtures("inductor")
def test_inductor_within_cuda_graphs_replays(cuda, tmp_path, record_property):
    compiled, found = verdict_of(ReducedOverhead(), cuda, tmp_path, record_property)
    assert compiled == "inductor"
    assert found.verdict in ("bitwise", "same_mask")
