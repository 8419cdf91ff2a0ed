// Names of PyTorch operators that the shadow headers know. Their arguments are matched against the operator's schema
// when called, by dice/verify/candidate/ops.py; here a name only says whether it is a method, a function or both.
#pragma once

// The build may define the lists itself, shortened to the names that a source contains.
#if !defined(DICE_SHARED_OPS)

// Return one Tensor; methods of Tensor and functions of at::.
#define DICE_SHARED_OPS(_)                                                                                            \
  _(abs) _(absolute) _(acos) _(acosh) _(add) _(addbmm) _(addcdiv) _(addcmul) _(addmm) _(addmv) _(addr) _(all) _(amax) \
  _(amin) _(any) _(arccos) _(argmax) _(argmin) _(argsort) _(as_strided) _(asin) _(asinh) _(atan) _(atan2) _(atanh)    \
  _(baddbmm) _(bernoulli) _(bitwise_and) _(bitwise_not) _(bitwise_or) _(bitwise_xor) _(bmm) _(bincount) _(ceil)       \
  _(clamp) _(clamp_max) _(clamp_min) _(clip) _(conj) _(cos) _(cosh) _(count_nonzero) _(cross) _(cumprod) _(cumsum)    \
  _(detach) _(diag) _(diag_embed) _(diagonal) _(diff) _(digamma) _(dist) _(div) _(divide) _(dot) _(eq) _(erf) _(erfc)  \
  _(erfinv) _(exp) _(exp2) _(expm1) _(flatten) _(flip) _(floor) _(floor_divide) _(fmax) _(fmin) _(fmod) _(frac)       \
  _(gather) _(ge) _(ger) _(greater) _(gt) _(hardshrink) _(heaviside) _(hypot) _(index_add) _(index_copy)              \
  _(index_fill) _(index_select) _(inner) _(inverse) _(isfinite) _(isinf) _(isnan) _(kron) _(le) _(lerp) _(less)       \
  _(lgamma) _(log) _(log10) _(log1p) _(log2) _(log_softmax) _(logaddexp) _(logcumsumexp) _(logical_and)               \
  _(logical_not) _(logical_or) _(logical_xor) _(logit) _(logsumexp) _(lt) _(masked_fill) _(masked_scatter)            \
  _(masked_select) _(matmul) _(matrix_power) _(maximum) _(mean) _(minimum) _(mm) _(movedim) _(mul) _(multinomial)     \
  _(multiply) _(mv) _(nan_to_num) _(nanmean) _(nansum) _(narrow) _(ne) _(neg) _(negative) _(nonzero) _(numpy_T)       \
  _(outer) _(permute) _(pow) _(prelu) _(prod) _(ravel) _(reciprocal) _(relu) _(remainder) _(renorm)                   \
  _(repeat_interleave) _(reshape) _(roll) _(rot90) _(round) _(rsqrt) _(rsub) _(scatter) _(scatter_add)                \
  _(scatter_reduce) _(select) _(sgn) _(sigmoid) _(sign) _(sin) _(sinc) _(sinh) _(slice) _(softmax) _(sqrt) _(square)  \
  _(squeeze) _(std) _(sub) _(subtract) _(sum) _(swapaxes) _(t) _(take) _(tan) _(tanh) _(tile) _(trace) _(transpose)   \
  _(tril) _(triu) _(true_divide) _(trunc) _(unsqueeze) _(var) _(vdot) _(view_as_real) _(xlogy)

#define DICE_METHOD_OPS(_)                                                                                         \
  _(expand) _(expand_as) _(new_empty) _(new_full) _(new_ones) _(new_zeros) _(repeat) _(reshape_as) _(type_as) _(unfold) \
  _(unflatten) _(view) _(view_as) _(alias) _(numpy) _(mT) _(mH)

#define DICE_FUNCTION_OPS(_)                                                                                        \
  _(adaptive_avg_pool1d) _(adaptive_avg_pool2d) _(adaptive_avg_pool3d) _(alpha_dropout) _(batch_norm)               \
  _(binary_cross_entropy) _(binary_cross_entropy_with_logits) _(bilinear) _(cdist) _(celu) _(conv_transpose1d)      \
  _(conv_transpose2d) _(conv_transpose3d) _(cosine_embedding_loss) _(cosine_similarity) _(cross_entropy_loss)       \
  _(cumulative_trapezoid) _(dropout) _(elu) _(embedding) _(gelu) _(glu) _(group_norm) _(hardsigmoid) _(hardswish)   \
  _(hardtanh) _(hinge_embedding_loss) _(huber_loss) _(im2col) _(col2im) _(instance_norm) _(kl_div) _(l1_loss)       \
  _(layer_norm) _(leaky_relu) _(linear) _(log_sigmoid) _(margin_ranking_loss) _(mish) _(mse_loss) _(nll_loss)       \
  _(one_hot) _(pairwise_distance) _(pad) _(pixel_shuffle) _(relu6) _(reflection_pad1d) _(reflection_pad2d)          \
  _(replication_pad1d) _(replication_pad2d) _(rms_norm) _(rrelu) _(scaled_dot_product_attention) _(selu) _(silu)    \
  _(smooth_l1_loss) _(soft_margin_loss) _(softplus) _(softshrink) _(threshold) _(triplet_margin_loss)               \
  _(upsample_bilinear2d) _(upsample_nearest2d) _(linalg_vector_norm) _(linalg_norm) _(linalg_inv) _(bucketize) _(constant_pad_nd) _(complex) _(polar)

// In-place methods: return the tensor itself.
#define DICE_INPLACE_OPS(_)                                                                                           \
  _(abs_) _(add_) _(addcdiv_) _(addcmul_) _(addmm_) _(bernoulli_) _(ceil_) _(clamp_) _(clamp_max_) _(clamp_min_)      \
  _(copy_) _(cos_) _(detach_) _(div_) _(erf_) _(exp_) _(exponential_) _(fill_) _(fill_diagonal_) _(floor_) _(fmod_)   \
  _(hardtanh_) _(index_add_) _(index_copy_) _(index_fill_) _(leaky_relu_) _(lerp_) _(log_) _(masked_fill_) _(mul_)    \
  _(neg_) _(normal_) _(pow_) _(random_) _(reciprocal_) _(relu_) _(resize_) _(resize_as_) _(round_) _(rsqrt_)          \
  _(scatter_) _(scatter_add_) _(sigmoid_) _(sign_) _(sin_) _(sqrt_) _(square_) _(squeeze_) _(sub_) _(t_) _(tanh_)     \
  _(transpose_) _(tril_) _(triu_) _(trunc_) _(uniform_) _(unsqueeze_) _(zero_)

// Functions whose first argument takes the result.
#define DICE_OUT_OPS(_)                                                                                               \
  _(abs_out) _(add_out) _(addmm_out) _(baddbmm_out) _(bmm_out) _(clamp_out) _(cumsum_out) _(div_out) _(exp_out)       \
  _(gelu_out) _(log_out) _(matmul_out) _(maximum_out) _(mean_out) _(minimum_out) _(mm_out) _(mul_out) _(mv_out)       \
  _(neg_out) _(pow_out) _(sigmoid_out) _(silu_out) _(softmax_out) _(sqrt_out) _(sub_out) _(sum_out) _(tanh_out)
#endif
