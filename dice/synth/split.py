"""What is kept out of training: a fixed share of compositions, and a fixed list of (operator, context) cells."""

from __future__ import annotations

import hashlib

from dice.synth.pair import HeldOutBy
from dice.synth.problem.plan import Plan

HELD_OUT_SHARE = 0.1  # of all compositions

# (operator, context) pairs that training never sees. Each operator occurs in training in other contexts, and each
# context with other operators.
HELD_OUT_CELLS: frozenset[tuple[str, str]] = frozenset(
    {
        ("softsign", "elementwise.alone"),
        ("hardswish", "elementwise.alone"),
        ("celu", "elementwise.alone"),
        ("mish", "linear.post"),
        ("elu", "linear.post"),
        ("hardtanh", "matmul.post"),
        ("swish", "matmul.post"),
        ("softplus", "norm.post"),
        ("leaky_relu", "norm.post"),
        ("gelu", "reduce.pre"),
        ("selu", "reduce.pre"),
        ("tanh", "reduce.post"),
        ("logsumexp", "reduce.dim=middle"),
        ("std", "reduce.dim=first"),
        ("square", "softmax.pre"),
        ("sigmoid", "softmax.post"),
        ("log_softmax", "softmax.dim=middle"),
        ("relu6", "pointwise.post"),
        ("gelu_tanh", "pointwise.second"),
        ("hardsigmoid", "broadcast.post"),
        ("abs", "scan.pre"),
        ("cumprod", "scan.dim=first"),
        ("silu", "glu.gate"),
        ("relu", "pool.post"),
        ("logsigmoid", "loss.pre"),
        ("smooth_l1", "loss.reduction=sum"),
        ("sin", "mask.chain"),
        ("bmm", "matmul.layout=nt"),
        ("rms_norm", "norm.residual"),
        ("softplus", "vector.post"),
        ("gelu", "vector.post"),
        ("silu", "conv.post"),
        ("transposed", "conv.dilated"),
        ("tanh", "fusion.chain"),
        ("conv3d", "fusion.tail=map"),
        ("elu", "attention.post"),
        ("cross", "attention.mask=added"),
        ("sigmoid", "layout.post"),
        ("mish", "layout.pre"),
        ("gelu_tanh", "indexing.post"),
        ("tanh", "indexing.post"),
        ("hardswish", "network.chain"),
        ("softsign", "network.chain"),
        ("relu", "normalize.post"),
    }
)


def held_out_by(plan: Plan) -> HeldOutBy:
    """Why this plan is not trained on; empty when it is."""
    if plan.cells & HELD_OUT_CELLS:
        return "operator"
    digest = hashlib.sha256(plan.composition.encode()).digest()
    return "composition" if int.from_bytes(digest[:8]) < HELD_OUT_SHARE * 2**64 else ""
