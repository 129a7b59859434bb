"""Tests of this folder need a CUDA GPU; the slow and the destructive ones run last."""

import os
from pathlib import Path

# cuBLAS repeats its bits only with a fixed workspace, and reads this as CUDA starts
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import pytest
import torch

LAST = ("test_compiled.py", "test_device_assert.py")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: LAST.index(item.path.name) + 1 if _is_last(item) else 0)


def _is_last(item):
    return item.path.parent == Path(__file__).parent and item.path.name in LAST


@pytest.fixture(autouse=True)
def cuda():
    """The device; deterministic cuDNN kernels while a test runs, since it compares bits."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU on this machine")
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        yield "cuda"
    finally:
        torch.backends.cudnn.deterministic = before
        torch.cuda.synchronize()
