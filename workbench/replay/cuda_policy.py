"""CUDA's autocast rules carried out on the CPU.

CPU autocast has other lists: layer norm, softmax, exp and sums run in low precision there and in
float32 on CUDA. While this is active, CPU autocast follows CUDA's lists, so that a step recorded on
a GPU is replayed under the rules it was recorded under. Faithful, not bit-equal: values are rounded
at the borders of ops, so an overflow inside a composite op (attention scores, einsum) is missed.

The lists are those of the header ``ATen/autocast_mode.h`` that torch is built with.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

LOWER = (
    "_convolution.deprecated _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d "
    "conv_transpose2d.input conv_transpose3d.input convolution prelu addmm addmv addr matmul "
    "einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot "
    "_thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell "
    "_scaled_dot_product_flash_attention scaled_dot_product_attention"
).split()
"""Ops that run in the autocast dtype."""

FLOAT32 = (
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan "
    "pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm "
    "rms_norm group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity "
    "poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div "
    "l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss "
    "soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist "
    "pdist cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d "
    "_upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d "
    "upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d "
    "_upsample_bicubic2d_aa"
).split()
"""Ops whose low-precision inputs are cast to float32."""

FLOAT32_DTYPE = (
    "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm "
    "linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList"
).split()
"""Ops that compute in float32 through their ``dtype`` argument, unless the caller gave one."""

FLOAT32_NORM = {"norm.Scalar": "ScalarOpt_dtype", "norm.ScalarOpt_dim": "ScalarOpt_dim_dtype"}
"""Norms, with the overload that has the ``dtype`` they are called through."""

PROMOTE = (
    "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
).split()
"""Ops whose inputs are cast to the widest dtype among them."""

_KEY = "AutocastCPU"
_LOW = (torch.float16, torch.bfloat16)


class Policy:
    """The kernels, and the cache of casts that autocast has within a region.

    Args:
        native: Compute in the low dtype itself, as a trace must to name the op that overflows.
            Otherwise operands and result are rounded and the product is computed in float32,
            which is what a GPU's accumulation comes close to, and fast on a CPU.
    """

    def __init__(self, native: bool = False) -> None:
        self.native = native
        self._casts: dict[int, tuple[weakref.ref[Tensor], int, Tensor]] = {}

    def lower(self, op: Callable[..., Any]) -> Callable[..., Any]:
        """Make the kernel of an op that runs in the autocast dtype."""

        def kernel(*args: Any, **kwargs: Any) -> Any:
            dtype = torch.get_autocast_dtype("cpu")
            with _excluded():
                low = _map((args, kwargs), lambda t: self._cached(t, dtype))
                if self.native:
                    try:
                        return op(*low[0], **low[1])
                    except RuntimeError as error:
                        if not _has_no_kernel(error):
                            raise
                wide = _map(low, lambda t: t.float() if t.dtype == dtype else t)
                return _map(op(*wide[0], **wide[1]), lambda t: _rounded(t, dtype))

        return kernel

    def _cached(self, t: Tensor, dtype: torch.dtype) -> Tensor:
        if not _eligible(t) or t.dtype == dtype:
            return t
        if not (t.requires_grad and t.is_leaf and t.dtype == torch.float32 and not t._is_view()):
            return t.to(dtype)
        if not torch.is_autocast_cache_enabled():
            return t.to(dtype)
        known = self._casts.get(id(t))
        if known is not None and known[0]() is t and known[1] == t._version:
            cast = known[2]
            # a cast made under no_grad is no use to autograd, and the other way round
            if cast.dtype == dtype and cast.requires_grad == torch.is_grad_enabled():
                return cast
        cast = t.to(dtype)
        self._casts[id(t)] = (weakref.ref(t), t._version, cast)
        return cast

    def forget(self) -> None:
        """Drop the cache: a region has ended."""
        self._casts.clear()


def _float32(op: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _excluded():
            wide = _map((args, kwargs), _wide)
            return op(*wide[0], **wide[1])

    return kernel


def _float32_dtype(op: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _excluded():
            chosen = kwargs.get("dtype") or _dtype_argument(op, args)
            if chosen is None and any(_eligible(a) for a in args[:1] if isinstance(a, Tensor)):
                args, kwargs = _with_dtype(op, args, kwargs)
            return op(*args, **kwargs)

    return kernel


def _positional(op: Any) -> list[str]:
    return [a.name for a in op._schema.arguments if not a.kwarg_only]


def _dtype_argument(op: Any, args: Sequence[Any]) -> Any:
    names = _positional(op)
    position = names.index("dtype") if "dtype" in names else len(args)
    return args[position] if position < len(args) else None


def _with_dtype(
    op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    names = _positional(op)
    given = list(args)
    if "dtype" in names and names.index("dtype") < len(given):
        given[names.index("dtype")] = torch.float32
        return tuple(given), dict(kwargs)
    return tuple(given), {**kwargs, "dtype": torch.float32}


def _norm(with_dtype: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(self: Tensor, p: Any = 2, *rest: Any, **kwargs: Any) -> Any:
        with _excluded():
            dtype = torch.float32 if _eligible(self) else self.dtype
            return with_dtype(self, p, *rest, **kwargs, dtype=dtype)

    return kernel


def _promote(op: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _excluded():
            seen: list[Tensor] = []
            _map((args, kwargs), seen.append)
            wide = any(_eligible(t) and t.dtype == torch.float32 for t in seen)
            dtype = torch.float32 if wide else torch.get_autocast_dtype("cpu")
            cast = _map((args, kwargs), lambda t: t.to(dtype) if _eligible(t) else t)
            return op(*cast[0], **cast[1])

    return kernel


def _excluded() -> Any:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    return torch._C._ExcludeDispatchKeyGuard(keys)


def _eligible(t: Tensor) -> bool:
    return t.is_floating_point() and t.dtype != torch.float64 and t.device.type == "cpu"


def _wide(t: Tensor) -> Tensor:
    return t.float() if t.dtype in _LOW and t.device.type == "cpu" else t


def _rounded(t: Tensor, dtype: torch.dtype) -> Tensor:
    return t.to(dtype) if t.dtype == torch.float32 else t


def _has_no_kernel(error: RuntimeError) -> bool:
    text = str(error)
    return "not implemented for" in text or "could not create a primitive" in text


def _map(tree: Any, leaf: Callable[[Tensor], Any]) -> Any:
    if isinstance(tree, Tensor):
        return leaf(tree)
    if isinstance(tree, list | tuple):
        return type(tree)(_map(item, leaf) for item in tree)
    if isinstance(tree, dict):
        return {key: _map(value, leaf) for key, value in tree.items()}
    return tree


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def registered(key: str) -> set[str]:
    """Names of the ops that have a kernel for an autocast key, without ``aten::``."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return {n.removeprefix("aten::") for n in names if n.startswith("aten::")}


@contextmanager
def cuda_policy(policy: Policy) -> Iterator[None]:
    """Make CPU autocast follow CUDA's lists; its own kernels come back afterwards."""
    ours = _kernels(policy)
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # overriding is the purpose
            for name in registered(_KEY) - ours.keys():
                library.impl(name, torch.library.fallthrough_kernel, _KEY, allow_override=True)
            for name, kernel in ours.items():
                library.impl(name, kernel, _KEY, allow_override=True)
        yield
    finally:
        library._destroy()
        policy.forget()


def _kernels(policy: Policy) -> dict[str, Callable[..., Any]]:
    makers: list[tuple[Sequence[str], Callable[[Any], Callable[..., Any]]]] = [
        (LOWER, policy.lower),
        (FLOAT32, _float32),
        (FLOAT32_DTYPE, _float32_dtype),
        (PROMOTE, _promote),
    ]
    found = {name: make(_overload(name)) for names, make in makers for name in names}
    for name, overload in FLOAT32_NORM.items():
        found[name] = _norm(getattr(torch.ops.aten.norm, overload))
    return found
