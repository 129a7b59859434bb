"""CUDA's own autocast against its rules carried out on the CPU, op for op."""

import pytest

from tests.gpu.autocast_calls import CALLS, emulated, on_cuda
from workbench.replay import cuda_policy
from workbench.replay.cuda_policy import Policy, registered

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", CALLS)
def test_the_result_has_the_same_dtype_on_both(name, record_property):
    call, expected = CALLS[name]
    there, here = on_cuda(call), emulated(call)
    record_property("detail", f"CUDA {there.dtype}, emulated {here.dtype}")
    assert there.dtype == here.dtype == expected


def test_no_rule_of_this_build_is_missing():
    missing = registered("AutocastCUDA") - set(cuda_policy._kernels(Policy()))
    assert missing == {
        "cudnn_convolution",
        "cudnn_convolution_transpose",
        "binary_cross_entropy",
    }
