"""The backward of a fused attention, computed again in float64 from queries, keys and values.

Its kernels make the probabilities anew from the scores and the log-sum-exp that forward kept. Given
the same kept number, rounded in the op's own dtype, a wider kernel would meet the same rounding: of
scores as large as 1e36 it is far above 88, and ``exp`` of it is Inf.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

_INPUTS = ("query", "key", "value")


def attention_gradients(base: str, named: Mapping[str, Any]) -> tuple[Tensor, ...] | None:
    """Gradients of queries, keys and values.

    Args:
        base: Name of the op.
        named: Its arguments by name, in float64.

    Returns:
        None where it is no such op, or one that drops elements at random.
    """
    if not ("attention" in base and base.endswith("_backward")) or named.get("dropout_p"):
        return None
    inputs = [named.get(name) for name in _INPUTS]
    gradient = named.get("grad_out", named.get("grad_out_"))
    mask = named.get("attn_mask", named.get("attn_bias"))
    if not isinstance(gradient, Tensor) or not all(isinstance(t, Tensor) for t in inputs):
        return None
    leaves = [t.detach().requires_grad_() for t in inputs if isinstance(t, Tensor)]
    query, key, value = leaves
    try:
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            out = torch.nn.functional.scaled_dot_product_attention(
                query, key, value, mask, 0.0, bool(named.get("is_causal")),
                scale=named.get("scale"), enable_gqa=query.shape[-3] != key.shape[-3],
            )  # fmt: skip
            return torch.autograd.grad(out, leaves, gradient)
    except (RuntimeError, ValueError):  # shapes that only this kernel takes
        return None
