"""What kind of work each of PyTorch's operators is: what the rules of cutting are written in."""

from __future__ import annotations

from collections.abc import Iterable

from dice.optimize.graph import Node, Spec


def words(*texts: str) -> frozenset[str]:
    """The words of some texts: tables of operators are easier to read so."""
    return frozenset(word for text in texts for word in text.split())


def _named(kind: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), kind)


# Kinds: `view` moves nothing or only moves; `pointwise` gives one element of a few; `reduction`, `softmax` and
# `normalisation` work along rows; `product`, `convolution`, `attention`, `pooling`, `scan` and `recurrent` have kernels
# of their own. What is not here is left to PyTorch.
KINDS: dict[str, str] = {
    **_named(
        "view",
        "view reshape flatten unflatten squeeze unsqueeze _unsafe_view view_as reshape_as ravel permute "
        "transpose t movedim swapaxes numpy_T mT adjoint expand expand_as broadcast_to broadcast_tensors "
        "select slice narrow split split_with_sizes chunk unbind tensor_split unfold diagonal alias detach "
        "contiguous clone lift_fresh_copy getitem",
    ),
    **_named(
        "pointwise",
        "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh tanh asinh acosh "
        "atanh erf erfc lgamma floor ceil trunc round neg reciprocal square relu relu6 sigmoid silu mish softsign "
        "tanhshrink log_sigmoid hardsigmoid hardswish selu abs sign sgn frac gelu leaky_relu elu celu "
        "hardtanh softplus threshold hardshrink softshrink maximum minimum fmax fmin atan2 hypot fmod "
        "logaddexp prelu eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or "
        "bitwise_xor __and__ __or__ __xor__ __lshift__ __rshift__ bitwise_left_shift bitwise_right_shift "
        "add sub rsub mul div true_divide floor_divide remainder pow "
        "logical_not bitwise_not isnan isinf isfinite where masked_fill clamp clamp_min clamp_max clip lerp "
        "addcmul addcdiv to _to_copy type_as dropout feature_dropout alpha_dropout nan_to_num cat concat "
        "stack pad constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d tril "
        "triu embedding index_select gather index one_hot slice_scatter select_scatter copy fill repeat tile "
        "repeat_interleave flip roll pixel_shuffle im2col upsample_nearest1d upsample_nearest2d upsample_nearest3d "
        "glu",
    ),
    **_named(
        "creation",
        "zeros zeros_like new_zeros empty empty_like empty_permuted new_empty ones ones_like new_ones "
        "full full_like scalar_tensor new_full arange "
        "linspace eye constant",
    ),
    **_named(
        "reduction",
        "sum mean prod amax amin any all max min argmax argmin var std var_mean std_mean linalg_vector_norm "
        "norm frobenius_norm logsumexp cosine_similarity",
    ),
    **_named(
        "loss",
        "mse_loss l1_loss smooth_l1_loss huber_loss soft_margin_loss kl_div binary_cross_entropy "
        "binary_cross_entropy_with_logits cross_entropy_loss nll_loss nll_loss_nd",
    ),
    **_named(
        "softmax",
        "softmax _softmax log_softmax _log_softmax softmin",
    ),
    **_named(
        "normalisation",
        "layer_norm native_layer_norm rms_norm group_norm instance_norm batch_norm",
    ),
    **_named(
        "product",
        "linear mm bmm matmul mv dot vdot inner addmm baddbmm addmv einsum",
    ),
    **_named(
        "convolution",
        "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution",
    ),
    **_named(
        "attention",
        "scaled_dot_product_attention",
    ),
    **_named(
        "pooling",
        "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d "
        "adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d "
        "_adaptive_avg_pool2d _adaptive_avg_pool3d max_pool2d_with_indices max_pool3d_with_indices col2im",
    ),
    **_named(
        "scan",
        "cumsum cumprod cummax cummin logcumsumexp",
    ),
    **_named(
        "recurrent",
        "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell",
    ),
}
LEFT = frozenset({"other"})  # what PyTorch keeps
ROWS = frozenset({"reduction", "softmax", "normalisation", "loss"})
OWN_KERNEL = frozenset({"product", "convolution", "attention", "pooling", "scan", "recurrent"})


def kind_of(node: Node) -> str:
    """`source`, one of `KINDS`, or `other`. A batch normalisation with fixed statistics is pointwise."""
    if node.is_source and node.operator != "constant":
        return "source"
    kind = KINDS.get(node.base, "other")
    if node.operator not in ("getitem", "constant") and not node.operator.startswith("aten."):
        return "other"
    if node.base == "batch_norm":
        return kind if node.arguments[5] else "pointwise"
    if node.effect or _is_complex(node):
        return "other"
    if kind == "recurrent" and not _is_one_layer(node):
        return "other"
    if node.base == "repeat_interleave" and not isinstance(node.arguments[1], int):
        return "other"
    if node.base == "clone":
        return "view"
    if node.base in ("max", "min") and len(node.arguments) > 1 and not isinstance(node.arguments[1], int):
        return "pointwise"
    return kind


def _is_one_layer(node: Node) -> bool:
    """Of a recurrent operator: whether it is one layer in one direction, along a sequence that comes first."""
    if not node.operator.endswith(".input"):
        return False
    _, _, weights, has_biases, layers, _, _, bidirectional, batch_first = node.arguments
    return layers == 1 and not bidirectional and not batch_first and len(weights) == (4 if has_biases else 2)


def _is_complex(node: Node) -> bool:
    outputs: Iterable[Spec | None] = node.output if isinstance(node.output, tuple) else (node.output,)
    return any(one is not None and one.dtype.startswith("complex") for one in outputs)


def row_of(node: Node, source: Spec) -> tuple[int, int, bool] | None:
    """What a node that works along rows works on: elements in all, rows, and whether rows are contiguous."""
    rank = len(source.shape)
    base, given = node.base, node.arguments
    if base in ("layer_norm", "native_layer_norm", "rms_norm"):
        over = range(rank - len(given[1]), rank)
    elif base == "group_norm":
        return source.numel, source.shape[0] * given[1], True
    elif base == "instance_norm":
        over = range(2, rank)
    elif base == "batch_norm":
        over = [0, *range(2, rank)]  # type: ignore[assignment]
    elif KINDS.get(base) == "loss":
        return source.numel, 1, True
    else:
        at = 2 if base in ("linalg_vector_norm", "norm") else 1
        dims = given[at] if len(given) > at else node.options.get("dim")
        if isinstance(dims, int) and not isinstance(dims, bool):
            dims = [dims]
        over = [dim % rank for dim in dims] if isinstance(dims, list) and dims and rank else range(rank)  # type: ignore[assignment]
    rows = 1
    for index in range(rank):
        if index not in over:
            rows *= source.shape[index]
    is_inner = sorted(over) == list(range(rank - len(list(over)), rank))
    return source.numel, rows, is_inner
