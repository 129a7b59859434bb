"""Switches of a replay change on a GPU what they say, and are put back."""

import pytest
import torch
from torch.nn import functional as f

from tests.gpu.training import ops_of
from workbench.evidence import Conditions
from workbench.replay.settings import applied, read_back

pytestmark = pytest.mark.gpu


def under(run, **conditions):
    """The result of a call, and the settings it ran under."""
    before = read_back(torch.device("cuda"))
    with applied(Conditions().replace(device="cuda:0", **conditions)) as read:
        result, settings = run(), read()
    assert read_back(torch.device("cuda")) == before
    return result, settings


@pytest.fixture
def product(cuda):
    torch.manual_seed(0)
    a, b = torch.randn(512, 512, device=cuda), torch.randn(512, 512, device=cuda)
    exact = a.double() @ b.double()
    return lambda: a @ b, exact


@pytest.fixture
def convolution(cuda):
    torch.manual_seed(0)
    x, w = torch.randn(8, 64, 32, 32, device=cuda), torch.randn(64, 64, 3, 3, device=cuda)
    return lambda: f.conv2d(x, w)


def test_tf32_changes_the_bits_of_a_matrix_product(product, record_property):
    run, exact = product
    off, seen_off = under(run, matmul_tf32=False)
    on, seen_on = under(run, matmul_tf32=True)
    errors = [float((value.double() - exact).abs().max()) for value in (off, on)]
    record_property("detail", f"largest error {errors[0]:.2g} without, {errors[1]:.2g} with TF32")
    assert (seen_off["matmul_tf32"], seen_on["matmul_tf32"]) == (False, True)
    assert not torch.equal(off, on)
    assert errors[1] > 10 * errors[0]


def test_matmul_precision_with_tf32_changes_the_bits(product):
    run, _ = product
    highest, seen_highest = under(run, matmul_precision="highest", matmul_tf32=False)
    high, seen_high = under(run, matmul_precision="high", matmul_tf32=True)
    assert (seen_highest["matmul_precision"], seen_high["matmul_precision"]) == ("highest", "high")
    assert not torch.equal(highest, high)


@pytest.mark.xfail(
    reason="matmul_precision and matmul_tf32 are one switch in torch; the second is set last",
    raises=AssertionError,
    strict=False,
)
def test_matmul_precision_alone_changes_the_bits(product):
    run, _ = product
    highest, _ = under(run, matmul_precision="highest")
    high, seen = under(run, matmul_precision="high")
    assert seen["matmul_precision"] == "high"
    assert not torch.equal(highest, high)


def test_cudnn_off_takes_another_kernel(convolution, record_property):
    on, seen_on = under(lambda: ops_of(convolution), cudnn=True)
    off, seen_off = under(lambda: ops_of(convolution), cudnn=False)
    record_property("detail", f"on: {_convolutions(on)}; off: {_convolutions(off)}")
    assert (seen_on["cudnn"], seen_off["cudnn"]) == (True, False)
    assert "aten::cudnn_convolution" in on
    assert "aten::cudnn_convolution" not in off


def _convolutions(names):
    return ", ".join(sorted(n for n in names if "conv" in n and "aten::" in n))


def test_cudnn_tf32_changes_the_bits_of_a_convolution(convolution):
    off, seen_off = under(convolution, cudnn_tf32=False, cudnn_deterministic=True)
    on, seen_on = under(convolution, cudnn_tf32=True, cudnn_deterministic=True)
    assert (seen_off["cudnn_tf32"], seen_on["cudnn_tf32"]) == (False, True)
    assert not torch.equal(off, on)


@pytest.mark.parametrize("name", ["cudnn_benchmark", "cudnn_deterministic"])
@pytest.mark.parametrize("value", [True, False])
def test_a_cudnn_switch_is_read_back(convolution, name, value):
    result, seen = under(convolution, **{name: value})
    assert seen[name] is value
    assert result.isfinite().all()


def test_deterministic_refuses_ops_without_such_a_kernel(cuda, record_property):
    x = torch.rand(1, 1, 6, 6, device=cuda, requires_grad=True)
    # newer versions of torch may have a kernel for one of them
    calls = {
        "histc": lambda: torch.histc(x.detach(), bins=4, min=0, max=1),
        "adaptive_avg_pool2d": lambda: f.adaptive_avg_pool2d(x, 4).sum().backward(),
        "adaptive_max_pool2d": lambda: f.adaptive_max_pool2d(x, 4).sum().backward(),
    }
    for call in calls.values():
        under(call, deterministic="off")
    refused = [name for name, call in calls.items() if _refused(call)]
    record_property("detail", f"refused: {', '.join(refused)}")
    assert refused


def _refused(call):
    try:
        under(call, deterministic="on")
    except RuntimeError as error:
        return "deterministic" in str(error)
    return False
