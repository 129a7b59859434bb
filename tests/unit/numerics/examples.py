"""Tensors of all kinds for the tests of this room, and what numpy says about them."""

import math

import numpy as np
import torch

NAN, INF = math.nan, math.inf
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
FLOAT8 = [
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
]


def values_of(t):
    """All elements as float64 (or complex128), by way of Python numbers."""
    if t.is_complex():
        return np.array([complex(x) for x in t.flatten().to(torch.complex128).tolist()])
    return np.array([float(x) for x in t.flatten().tolist()], dtype=np.float64)


def mixed(dtype, n=1000, seed=0):
    """Normal, zero, subnormal, large and non-finite values in random places."""
    generator = torch.Generator().manual_seed(seed)
    t = torch.randn(n, generator=generator).to(dtype)
    limits = torch.finfo(dtype)
    t[::7] = 0
    t[1::11] = limits.smallest_normal / 4 if dtype in FLOATS else 0
    t[2::97] = limits.max
    t[3::101] = limits.min
    if n > 20:
        t[5::211], t[6::223], t[8::199] = NAN, INF, -INF
    return t
