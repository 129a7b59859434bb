"""Every kernel of scaled dot product attention runs when it is asked for."""

import pytest
import torch
from torch.nn import functional as f

from tests.gpu.training import ops_of
from workbench.evidence import Conditions
from workbench.replay.settings import SDPA, applied

pytestmark = pytest.mark.gpu

OPS = {
    "math": "aten::_scaled_dot_product_attention_math",
    "flash": "aten::_scaled_dot_product_flash_attention",
    "efficient": "aten::_scaled_dot_product_efficient_attention",
    "cudnn": "aten::_scaled_dot_product_cudnn_attention",
}


@pytest.mark.parametrize("kernel", SDPA)
def test_the_kernel_asked_for_runs(cuda, kernel, record_property):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 128, 64, device=cuda, dtype=torch.float16) for _ in range(3))
    exact = f.scaled_dot_product_attention(q.double(), k.double(), v.double())
    kept = []
    with applied(Conditions().replace(device="cuda:0", sdpa=kernel)) as read:
        ops = ops_of(lambda: kept.append(f.scaled_dot_product_attention(q, k, v)))
        seen = read()
    ran = sorted(name for name, op in OPS.items() if op in ops)
    error = float((kept[0].double() - exact).abs().max())
    record_property("detail", f"ran {', '.join(ran)}; largest error {error:.2g}")
    assert seen["sdpa"] == kernel
    assert ran == [kernel]
    assert error < 1e-2
