"""What ops do with the elements they are given, as far as slicing needs to know."""

from __future__ import annotations

REDUCTIONS = frozenset(
    "sum nansum mean prod amax amin max min logsumexp norm linalg_vector_norm _foreach_norm var "
    "var_mean std std_mean cumsum cumprod mm addmm bmm baddbmm mv addmv dot vdot addbmm "
    "nll_loss_forward nll_loss2d_forward mse_loss smooth_l1_loss l1_loss huber_loss "
    "binary_cross_entropy binary_cross_entropy_with_logits kl_div trace _linalg_det "
    "convolution avg_pool2d _adaptive_avg_pool2d native_layer_norm native_group_norm "
    "native_batch_norm _native_batch_norm_legit cudnn_batch_norm index_add index_add_ "
    "scatter_add scatter_add_ scatter_reduce _embedding_bag_forward_only _embedding_bag "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention".split()
)
"""Ops whose outputs mix several input elements into one value."""

MIXING = REDUCTIONS | frozenset(
    "_softmax _log_softmax _fused_rms_norm _cdist_forward linalg_eigh _linalg_eigh _linalg_svd "
    "linalg_inv_ex linalg_cholesky_ex _linalg_solve_ex fft_fft _fft_r2c _fft_c2c".split()
) - {"amax", "amin", "max", "min"}
"""Ops that carry a value from one position to others."""

DROPS = frozenset(
    "where masked_fill masked_fill_ index_put index_put_ _index_put_impl_ index index_select "
    "gather slice select masked_select masked_scatter masked_scatter_ index_copy index_copy_ "
    "index_fill index_fill_ clamp clamp_ clamp_min clamp_min_ clamp_max clamp_max_ minimum "
    "maximum fmin fmax "
    "max min amax amin aminmax topk sort argsort argmax argmin relu relu_ threshold hardtanh "
    "leaky_relu isinf isnan isfinite isposinf isneginf eq ne lt gt le ge nan_to_num nan_to_num_ "
    "sign sgn signbit nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward "
    "threshold_backward hardtanh_backward slice_backward select_backward embedding any all "
    "_local_scalar_dense bitwise_not logical_not logical_and logical_or searchsorted bucketize "
    "triu tril scatter scatter_ _to_copy clone copy_ copy".split()
)
"""Ops that choose or compare elements: what they leave out is dropped, not made wrong."""

SATURATING = frozenset(
    "exp exp2 sigmoid tanh erf erfc softplus log_sigmoid_forward _softmax _log_softmax logsumexp "
    "sigmoid_backward tanh_backward _softmax_backward_data _log_softmax_backward_data elu gelu "
    "silu logaddexp atan hardsigmoid hardswish logcumsumexp _ctc_loss _ctc_loss_backward expm1 "
    "_scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_for_cpu_backward "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward "
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward".split()
)
"""Ops for which an infinite argument has an exact finite result."""

SEEDS = frozenset("ones_like full_like ones full new_ones new_full".split())
"""Ops by which autograd makes the gradient that backward starts from."""

FINITE_EVERYWHERE = frozenset(
    "exp exp2 expm1 sinh cosh mul add sub rsub square sum mm addmm bmm baddbmm mv dot cumsum "
    "addcmul linalg_vector_norm cumprod".split()
)
"""Ops with a finite real result for every finite argument."""

EXPONENTIALS = frozenset("exp exp2 expm1 cosh sinh".split())
"""Ops that grow exponentially."""

PLACING = frozenset(
    "fill fill_ full full_like new_full masked_fill masked_fill_ index_put index_put_ "
    "_index_put_impl_ index_fill index_fill_ scatter scatter_ copy_ lift_fresh where".split()
)
"""Ops by which code puts a number where it is given."""
