import pytest
import torch
from torch.nn import functional

from workbench.replay import cuda_policy as policy_module
from workbench.replay.cuda_policy import Policy, cuda_policy, registered

HALF, FLOAT = torch.float16, torch.float32


def low(*shape):
    return torch.rand(shape, dtype=HALF) + 0.5


def wide(*shape):
    return torch.rand(shape) + 0.5


# dtype of the result under CUDA autocast, from the op lists of torch's documentation
PROBES = {
    "mm": (lambda: wide(3, 3) @ wide(3, 3), HALF),
    "linear": (lambda: functional.linear(wide(2, 3), wide(4, 3)), HALF),
    "conv2d": (lambda: functional.conv2d(wide(1, 1, 4, 4), wide(1, 1, 3, 3)), HALF),
    "einsum": (lambda: torch.einsum("ij,jk->ik", wide(2, 3), wide(3, 2)), HALF),
    "attention": (
        lambda: functional.scaled_dot_product_attention(*[wide(1, 1, 3, 4)] * 3),
        HALF,
    ),
    "prelu": (lambda: functional.prelu(wide(3), wide(1)), HALF),
    "layer_norm": (lambda: functional.layer_norm(low(2, 4), (4,)), FLOAT),
    "rms_norm": (lambda: functional.rms_norm(low(2, 4), (4,)), FLOAT),
    "group_norm": (lambda: functional.group_norm(low(2, 4, 3), 2), FLOAT),
    "softmax": (lambda: functional.softmax(low(2, 4), -1), FLOAT),
    "log_softmax": (lambda: functional.log_softmax(low(2, 4), -1), FLOAT),
    "exp": (lambda: low(3).exp(), FLOAT),
    "log": (lambda: low(3).log(), FLOAT),
    "pow": (lambda: low(3).pow(2), FLOAT),
    "sum": (lambda: low(3).sum(), FLOAT),
    "cumsum": (lambda: low(3).cumsum(0), FLOAT),
    "norm": (lambda: torch.norm(low(3)), FLOAT),
    "mse_loss": (lambda: functional.mse_loss(low(3), low(3)), FLOAT),
    "add": (lambda: low(3) + low(3), HALF),
    "addcmul": (lambda: torch.addcmul(low(3), wide(3), low(3)), FLOAT),
    "sum_with_dtype": (lambda: low(3).sum(dtype=HALF), HALF),
    "float64": (lambda: wide(3, 3).double() @ wide(3, 3).double(), torch.float64),
}


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("name", PROBES)
def test_the_result_has_the_dtype_it_has_on_cuda(name, native):
    run, expected = PROBES[name]
    with torch.random.fork_rng(), cuda_policy(Policy(native)), torch.autocast("cpu", dtype=HALF):
        assert run().dtype == expected


def test_cpu_autocast_has_its_own_lists_before_and_after():
    def softmax_dtype():
        with torch.autocast("cpu", dtype=HALF):
            return functional.softmax(torch.ones(2, dtype=HALF), -1).dtype

    before, names = softmax_dtype(), registered("AutocastCPU")
    with cuda_policy(Policy()):
        assert softmax_dtype() == FLOAT
    assert softmax_dtype() == before == HALF
    assert registered("AutocastCPU") == names


def test_outside_an_autocast_region_nothing_is_cast():
    with cuda_policy(Policy()):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == FLOAT


def test_the_lists_are_those_this_torch_has():
    ours = set(policy_module._kernels(Policy()))
    # cuDNN's own convolutions exist on a GPU only; binary_cross_entropy is refused there
    assert registered("AutocastCUDA") - ours == {
        "cudnn_convolution",
        "cudnn_convolution_transpose",
        "binary_cross_entropy",
    }


@pytest.mark.parametrize("native", [False, True])
def test_a_product_beyond_the_largest_float16_overflows(native):
    a = torch.full((1, 4), 200.0)
    with cuda_policy(Policy(native)), torch.autocast("cpu", dtype=HALF):
        assert torch.isposinf(a @ a.T).all()  # 160000
        assert (a @ a.T / 4).isinf().all()


def test_operands_are_rounded_as_a_gpu_would_round_them():
    a = torch.tensor([[1.0 + 2.0**-12]])  # rounds to 1 in float16
    with cuda_policy(Policy()), torch.autocast("cpu", dtype=HALF):
        assert float(a @ a) == 1.0


def test_gradients_reach_float32_parameters_through_one_cached_cast():
    weight = torch.nn.Parameter(torch.ones(2, 2))
    x = torch.ones(1, 2)
    policy = Policy()
    with cuda_policy(policy), torch.autocast("cpu", dtype=HALF):
        first, second = x @ weight, x @ weight
        assert len(policy._casts) == 1
    (first + second).float().sum().backward()
    assert weight.grad.dtype == FLOAT
    assert torch.equal(weight.grad, torch.full((2, 2), 2.0))


def test_a_parameter_written_in_place_is_cast_again():
    weight = torch.nn.Parameter(torch.ones(1, 1))
    with cuda_policy(Policy()), torch.autocast("cpu", dtype=HALF):
        before = float((torch.ones(1, 1) @ weight).detach())
        with torch.no_grad():
            weight.fill_(3.0)
        assert (before, float((torch.ones(1, 1) @ weight).detach())) == (1.0, 3.0)
