"""The vocabulary of the problem side: names and docstrings that different authors might choose."""

from __future__ import annotations

DIMENSION_NAMES: dict[str, tuple[str, ...]] = {
    "batch": ("batch_size", "batch", "num_samples", "bs", "B", "N", "n_batch", "batch_dim", "num_rows"),
    "features": (
        "dim",
        "features",
        "num_features",
        "hidden_size",
        "width",
        "size",
        "feature_dim",
        "n_features",
        "d_model",
        "embed_dim",
        "hidden_dim",
        "input_dim",
        "D",
        "cols",
    ),
    "sequence": (
        "seq_len",
        "seq_length",
        "sequence_length",
        "length",
        "tokens",
        "num_tokens",
        "T",
        "L",
        "steps",
        "dim1",
    ),
    "channels": ("channels", "num_channels", "in_channels", "C", "n_channels", "feature_maps"),
    "height": ("height", "H", "h", "img_h", "rows_in", "dim_h"),
    "width": ("width", "W", "w", "img_w", "cols_in", "dim_w"),
    "length": ("length", "L", "seq_len", "signal_length", "num_steps", "input_length"),
    "m": ("M", "m", "rows", "num_rows", "dim_m", "out_rows"),
    "n": ("N", "n", "cols", "num_cols", "dim_n", "out_cols"),
    "k": ("K", "k", "inner_dim", "dim_k", "shared_dim", "depth"),
    "in_features": ("in_features", "input_size", "input_dim", "in_dim", "d_in", "num_inputs"),
    "out_features": ("out_features", "output_size", "hidden_size", "out_dim", "d_out", "num_outputs"),
    "classes": ("num_classes", "classes", "n_classes", "vocab_size", "num_labels"),
}

_SIZE_ARGUMENTS = ("num_features", "dim", "hidden_size", "features", "normalized_size", "channels", "size", "width")
INPUT_NAMES: dict[str, tuple[str, ...]] = {
    "x": ("x", "x", "x", "input", "inputs", "inp", "tensor", "data", "a", "X", "features_in", "hidden_states", "t"),
    "y": ("y", "other", "b", "second", "residual", "y_in", "B_in", "skip", "rhs"),
    "z": ("z", "c", "third", "extra", "z_in", "addend"),
    "gate": ("gate", "g", "y", "control", "modulation"),
    "bias": ("bias", "b", "offset_vec", "shift_vec", "vector"),
    "row": ("scales", "row_scale", "s", "coeffs", "per_row"),
    "a": ("A", "a", "x", "left", "mat1", "lhs", "query"),
    "b": ("B", "b", "y", "right", "mat2", "rhs", "other"),
    "vector": ("v", "vec", "b", "vector", "B"),
    "mask": ("mask", "attn_mask", "bias_mask", "additive_mask"),
    "predictions": ("predictions", "pred", "input", "x", "logits", "outputs", "preds", "y_pred"),
    "targets": ("targets", "target", "y", "labels", "y_true", "reference"),
    "labels": ("targets", "labels", "target", "y", "classes", "label"),
    "anchor": ("anchor", "a", "query", "x"),
    "positive": ("positive", "pos", "p", "same"),
    "negative": ("negative", "neg", "n_sample", "different"),
    "x1": ("x1", "a", "u", "first", "x", "left"),
    "x2": ("x2", "b", "v", "second", "y", "right"),
}
TEMPORARIES = ("out", "h", "y", "result", "hidden", "z", "tmp", "output", "res", "val", "activated", "s", "u", "step")

SCALAR_NAMES: dict[str, tuple[str, ...]] = {
    "negative_slope": ("negative_slope", "slope", "leak", "alpha"),
    "alpha": ("alpha", "elu_alpha", "a_value"),
    "beta": ("beta", "sharpness", "slope"),
    "lambd": ("lambd", "lam", "shrink", "threshold"),
    "threshold": ("threshold", "cutoff", "limit"),
    "value": ("value", "fill_value", "replacement"),
    "min_val": ("min_val", "low", "lower"),
    "max_val": ("max_val", "high", "upper"),
    "min_value": ("min_value", "clamp_min", "lo", "minimum"),
    "max_value": ("max_value", "clamp_max", "hi", "maximum"),
    "shift": ("shift", "offset", "add_value", "constant", "delta", "bias_value"),
    "scale": ("scale", "factor", "scaling_factor", "multiplier", "gain", "coefficient"),
    "divisor": ("divisor", "denominator", "divide_by", "normalizer"),
    "temperature": ("temperature", "temp", "tau"),
    "margin": ("margin", "gap"),
    "eps": ("eps", "epsilon"),
    "weight": ("lerp_weight", "mix", "amount"),
    "dim": ("dim", "axis", "reduce_dim", "dimension"),
    "kernel_size": ("kernel_size", "window", "pool_size"),
    "stride": ("stride", "step_size"),
    "padding": ("padding", "pad"),
    "groups": ("num_groups", "groups"),
    "size": _SIZE_ARGUMENTS,
    "in_features": ("in_features", "input_size", "in_dim", "fan_in"),
    "out_features": ("out_features", "output_size", "out_dim", "hidden"),
    "diagonal": ("diagonal", "offset_diag"),
}

ATTRIBUTE_NAMES: dict[str, tuple[str, ...]] = {
    "activation": ("act", "activation", "nonlinearity", "fn", "act_fn"),
    "relu": ("relu", "act"),
    "gelu": ("gelu", "act"),
    "sigmoid": ("sigmoid", "act", "squash"),
    "tanh": ("tanh", "act"),
    "silu": ("silu", "swish", "act"),
    "mish": ("mish", "act"),
    "linear": ("linear", "fc", "proj", "dense", "layer", "gemm"),
    "norm": ("norm", "ln", "normalize", "layer_norm", "normalization"),
    "softmax": ("softmax", "prob", "sm"),
    "pool": ("pool", "pooling", "downsample"),
    "loss": ("loss", "criterion", "loss_fn", "objective"),
    "weight": ("weight", "gamma", "scale_param", "w"),
    "bias": ("bias", "beta_param", "b", "shift_param"),
    "parameter": ("weight", "param", "bias", "vec", "coeff"),
    "mean": ("running_mean", "mean", "mu"),
    "var": ("running_var", "var", "variance"),
    "glu": ("glu", "gate"),
}

CONSTANT_REMARKS = ("Shapes", "Test configuration", "problem size", "Dimensions of the inputs", "Settings")
INPUT_REMARKS = (
    "random float32 inputs",
    "Generate the inputs of forward",
    "one batch",
    "Positional arguments of forward",
)
INIT_REMARKS = ("nothing to configure", "no constructor arguments", "The constructor takes no arguments", "none")

CLASS_DOCS: tuple[tuple[str, ...], tuple[str, ...]] = (
    (
        "{Title}.",
        "A model that computes {title}.",
        "Model performing {title}.",
        "Simple module: {title}.",
        "Reference implementation of {title}.",
        "Computes {title}.",
    ),
    (
        "{Title}.\n\nPlain PyTorch, used as the reference.",
        "A small module.\n\nThe forward pass is {title}.",
        "This module performs {title}.\n\nAll tensors are float32.",
        "Model for {title}.\n\nNotes:\n    Inputs are contiguous.",
        "{Title}.\n\nThe operation is applied to a batch of inputs; there is no training code here, only the\n"
        "forward pass that has to be reproduced.",
        "Implements {title}.\n\nThis pattern is common in neural networks. The result has to match PyTorch's within\n"
        "floating-point tolerance.",
    ),
)
FORWARD_DOCS: tuple[tuple[str, ...], tuple[str, ...]] = (
    (
        "Applies {title}.",
        "{Title}.",
        "Forward pass.",
        "Compute {title}.",
        "Run the model on the inputs.",
        "Returns {title}.",
    ),
    (
        "Applies {title}.\n\nArgs:\n{arguments}\n\nReturns:\n    torch.Tensor: the result",
        "Forward pass of the model.\n\nArgs:\n{short}\n\nReturns:\n    Output tensor.",
        "Compute {title}.\n\nParameters:\n{short}\n\nReturns:\n    The output tensor.",
        "{Title}.\n\nArgs:\n{arguments}",
    ),
)
