"""One call for the ops that CUDA's autocast has a rule for, on any device."""

import torch
from torch.nn import functional as f

from workbench.replay.cuda_policy import Policy, cuda_policy

HALF, FLOAT = torch.float16, torch.float32


class Make:
    """Makes the same operands on any device: values between 0.2 and 0.9."""

    def __init__(self, device):
        self._device = device
        self._generator = torch.Generator().manual_seed(0)

    def _rand(self, shape, dtype):
        values = torch.rand(shape, generator=self._generator) * 0.7 + 0.2
        return values.to(self._device, dtype)

    def low(self, *shape):
        return self._rand(shape, HALF)

    def wide(self, *shape):
        return self._rand(shape, FLOAT)

    def double(self, *shape):
        return self._rand(shape, torch.float64)

    def index(self, *values):
        return torch.tensor(values, device=self._device)


LOWER = {
    "conv1d": lambda m: f.conv1d(m.wide(1, 2, 8), m.wide(2, 2, 3)),
    "conv2d": lambda m: f.conv2d(m.wide(1, 2, 8, 8), m.wide(2, 2, 3, 3)),
    "conv3d": lambda m: f.conv3d(m.wide(1, 2, 4, 4, 4), m.wide(2, 2, 3, 3, 3)),
    "conv_transpose1d": lambda m: f.conv_transpose1d(m.wide(1, 2, 8), m.wide(2, 2, 3)),
    "conv_transpose2d": lambda m: f.conv_transpose2d(m.wide(1, 2, 8, 8), m.wide(2, 2, 3, 3)),
    "prelu": lambda m: f.prelu(m.wide(3), m.wide(1)),
    "addmm": lambda m: torch.addmm(m.wide(4, 4), m.wide(4, 4), m.wide(4, 4)),
    "addmv": lambda m: torch.addmv(m.wide(4), m.wide(4, 4), m.wide(4)),
    "addr": lambda m: torch.addr(m.wide(4, 4), m.wide(4), m.wide(4)),
    "matmul": lambda m: m.wide(4, 4) @ m.wide(4, 4),
    "matmul of float16 and float32": lambda m: m.low(4, 4) @ m.wide(4, 4),
    "einsum": lambda m: torch.einsum("ij,jk->ik", m.wide(4, 4), m.wide(4, 4)),
    "mm": lambda m: torch.mm(m.wide(4, 4), m.wide(4, 4)),
    "mv": lambda m: torch.mv(m.wide(4, 4), m.wide(4)),
    "linalg.vecdot": lambda m: torch.linalg.vecdot(m.wide(4, 4), m.wide(4, 4)),
    "linear": lambda m: f.linear(m.wide(4, 4), m.wide(8, 4), m.wide(8)),
    "addbmm": lambda m: torch.addbmm(m.wide(4, 4), m.wide(2, 4, 4), m.wide(2, 4, 4)),
    "baddbmm": lambda m: torch.baddbmm(m.wide(2, 4, 4), m.wide(2, 4, 4), m.wide(2, 4, 4)),
    "bmm": lambda m: torch.bmm(m.wide(2, 4, 4), m.wide(2, 4, 4)),
    "linalg.multi_dot": lambda m: torch.linalg.multi_dot([m.wide(4, 4) for _ in range(3)]),
    "gru_cell": lambda m: torch.gru_cell(m.wide(2, 4), m.wide(2, 4), m.wide(12, 4), m.wide(12, 4)),
    "lstm_cell": lambda m: torch.lstm_cell(
        m.wide(2, 4), [m.wide(2, 4), m.wide(2, 4)], m.wide(16, 4), m.wide(16, 4)
    )[0],
    "scaled_dot_product_attention": lambda m: f.scaled_dot_product_attention(
        m.wide(1, 2, 8, 8), m.wide(1, 2, 8, 8), m.wide(1, 2, 8, 8)
    ),
}
"""Ops that run in float16."""


def _of_one(name):
    return lambda m: getattr(torch, name)(m.low(4))


_ONE = "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan prod".split()
FLOAT32 = {name: _of_one(name) for name in _ONE}
FLOAT32 |= {
    "cumprod": lambda m: torch.cumprod(m.low(4), 0),
    "pow by a number": lambda m: m.low(4).pow(2),
    "pow by a tensor": lambda m: m.low(4).pow(m.low(4)),
    "pow of a number": lambda m: torch.pow(2.0, m.low(4)),
    "softplus": lambda m: f.softplus(m.low(4)),
    "layer_norm": lambda m: f.layer_norm(m.low(2, 8), (8,)),
    "rms_norm": lambda m: f.rms_norm(m.low(2, 8), (8,)),
    "group_norm": lambda m: f.group_norm(m.low(2, 4, 8), 2),
    "norm": lambda m: torch.norm(m.low(4)),
    "norm over a dimension": lambda m: torch.norm(m.low(4, 4), 2, 0),
    "linalg.vector_norm": lambda m: torch.linalg.vector_norm(m.low(4)),
    "linalg.matrix_norm": lambda m: torch.linalg.matrix_norm(m.low(4, 4)),
    "cosine_similarity": lambda m: f.cosine_similarity(m.low(2, 4), m.low(2, 4)),
    "poisson_nll_loss": lambda m: f.poisson_nll_loss(m.low(4), m.low(4)),
    "nll_loss": lambda m: f.nll_loss(m.low(2, 4), m.index(0, 3)),
    "cross_entropy": lambda m: f.cross_entropy(m.low(2, 4), m.index(0, 3)),
    "kl_div": lambda m: f.kl_div(m.low(2, 4), m.low(2, 4), reduction="sum"),
    "l1_loss": lambda m: f.l1_loss(m.low(4), m.low(4)),
    "smooth_l1_loss": lambda m: f.smooth_l1_loss(m.low(4), m.low(4)),
    "huber_loss": lambda m: f.huber_loss(m.low(4), m.low(4)),
    "mse_loss": lambda m: f.mse_loss(m.low(4), m.low(4)),
    "soft_margin_loss": lambda m: f.soft_margin_loss(m.low(4), m.low(4)),
    "triplet_margin_loss": lambda m: f.triplet_margin_loss(m.low(2, 4), m.low(2, 4), m.low(2, 4)),
    "binary_cross_entropy_with_logits": lambda m: f.binary_cross_entropy_with_logits(
        m.low(4), m.low(4)
    ),
    "dist": lambda m: torch.dist(m.low(4), m.low(4)),
    "cdist": lambda m: torch.cdist(m.low(3, 4), m.low(2, 4)),
    "renorm": lambda m: torch.renorm(m.low(4, 4), 2, 0, 1.0),
    "logsumexp": lambda m: torch.logsumexp(m.low(4), 0),
    "softmax": lambda m: f.softmax(m.low(2, 4), -1),
    "log_softmax": lambda m: f.log_softmax(m.low(2, 4), -1),
    "cumsum": lambda m: m.low(4).cumsum(0),
    "sum": lambda m: m.low(4).sum(),
    "sum over a dimension": lambda m: m.low(4, 4).sum(0),
    "upsample nearest": lambda m: f.interpolate(m.low(1, 1, 4, 4), scale_factor=2),
    "upsample bilinear": lambda m: f.interpolate(
        m.low(1, 1, 4, 4), scale_factor=2, mode="bilinear"
    ),
    "addcmul of two dtypes": lambda m: torch.addcmul(m.low(4), m.wide(4), m.low(4)),
    "addcdiv of two dtypes": lambda m: torch.addcdiv(m.low(4), m.wide(4), m.low(4)),
    "atan2 of two dtypes": lambda m: torch.atan2(m.low(4), m.wide(4)),
    "cross of two dtypes": lambda m: torch.cross(m.low(3), m.wide(3), 0),
    "dot of two dtypes": lambda m: torch.dot(m.low(4), m.wide(4)),
    "tensordot of two dtypes": lambda m: torch.tensordot(m.low(4), m.wide(4), 1),
    "scatter_add of two dtypes": lambda m: torch.scatter_add(
        m.wide(4), 0, m.index(0, 1, 2, 3), m.low(4)
    ),
}
"""Ops that run in float32, and ops that take the widest dtype among their inputs."""

AS_GIVEN = {
    "addcmul of float16": (lambda m: torch.addcmul(m.low(4), m.low(4), m.low(4)), HALF),
    "atan2 of float16": (lambda m: torch.atan2(m.low(4), m.low(4)), HALF),
    "add of float16": (lambda m: m.low(4) + m.low(4), HALF),
    "relu of float16": (lambda m: f.relu(m.low(4)), HALF),
    "sum with a dtype": (lambda m: m.low(4).sum(dtype=HALF), HALF),
    "softmax with a dtype": (lambda m: f.softmax(m.low(2, 4), -1, dtype=HALF), HALF),
    "matmul of float64": (lambda m: m.double(4, 4) @ m.double(4, 4), torch.float64),
    "exp of float64": (lambda m: m.double(4).exp(), torch.float64),
}
"""What no rule changes, or the caller decides."""

CALLS = {name: (call, HALF) for name, call in LOWER.items()}
CALLS |= {name: (call, FLOAT) for name, call in FLOAT32.items()}
CALLS |= AS_GIVEN


def emulated(call):
    """The result of a call under CUDA's rules on the CPU."""
    with cuda_policy(Policy()), torch.autocast("cpu", dtype=HALF):
        return call(Make("cpu"))


def on_cuda(call):
    """The result of a call under CUDA's own autocast."""
    with torch.autocast("cuda", dtype=HALF):
        return call(Make("cuda"))
