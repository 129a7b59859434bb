import pytest
import torch

from workbench.errors import UsageError
from workbench.numerics import dtype_limits, dtype_of
from workbench.numerics.limits import _KNOWN


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_smallest_subnormal_is_the_value_of_the_lowest_bit(dtype):
    limits = dtype_limits(dtype)
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    assert limits.smallest_subnormal == torch.ones(1, dtype=bits).view(dtype).item()
    assert limits.smallest_normal == torch.finfo(dtype).smallest_normal
    assert limits.max == -limits.min == torch.finfo(dtype).max


def test_known_numbers():
    half = dtype_limits("float16")
    assert (half.name, half.max, half.smallest_subnormal) == ("float16", 65504.0, 2.0**-24)
    assert dtype_limits("torch.float16") is half
    assert dtype_limits(torch.complex64).max == dtype_limits(torch.float32).max


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"])
def test_8_bit_limits_are_those_of_all_256_values(name):
    limits, dtype = dtype_limits(name), dtype_of(name)
    values = torch.arange(256).to(torch.uint8).view(dtype).float()
    finite = values[values.isfinite()]
    assert limits.max == finite.max().item()
    assert limits.smallest_subnormal == finite[finite > 0].min().item()
    assert limits.has_inf == bool(values.isinf().any())
    assert limits.has_nan == bool(values.isnan().any())


def test_integers_have_no_infinity():
    limits = dtype_limits(torch.int8)
    assert (limits.max, limits.min, limits.floating) == (127.0, -128.0, False)
    assert dtype_limits(torch.bool).max == 1.0


def test_every_dtype_of_torch_has_limits():
    every = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    assert all(dtype_limits(dtype).max >= 1 for dtype in every)


@pytest.mark.parametrize("name", ["float99", "nn", "", "__name__", "Tensor"])
def test_a_name_without_a_dtype_is_refused(name):
    with pytest.raises(UsageError, match="no dtype"):
        dtype_limits(name)


@pytest.mark.parametrize("name", sorted(_KNOWN))
def test_what_is_known_without_torch_is_what_torch_says(name):
    assert dtype_limits(name) == dtype_limits(getattr(torch, name))
    assert dtype_limits(f"torch.{name}") is _KNOWN[name]
