"""How right is judged: this project's own protocol, and exact reproductions of those that others publish numbers with.

| protocol | inputs, weights | right when |
|---|---|---|
| `dice` | secret seeds, several families of values, second set of parameters, weights copied | `compare.py`; honest |
| `kernelbench` | seed 42 as in KernelBench's `eval.py` since 2025-11, all tensors cast to float32 | allclose at 1e-4 |
| `kernelbench-fp16`, `kernelbench-bf16` | the same, cast to half precision | allclose at 1e-2 |
| `kernelbench-v0` | seed 42, nothing cast (KernelBench of 2024, and v0.1's release) | allclose at 1e-2 |
| `dice-paper` | as `kernelbench-v0` | the same, and no deceptive output of the paper's two kinds (appendix A.3) |

KernelBench compares one tensor: a problem whose reference returns anything else has no right answer under it. Its
reference and the candidate share one random generator and one set of inputs, the reference first; `kernelbench*`
hands the candidate the generator's state and the inputs as the reference leaves them. What our other checks find then
is noted in the verdict's `labels` and `deceptions` and changes no outcome, so that outcomes compare with theirs. The
paper's table without its robust check is `kernelbench-v0`.

`dice-paper` and `kernelbench-v0` also count and read as those evaluations do: every task of a level is in the
denominator, so that one that could not be judged is not solved, and the kernel is the first code fence of a reply,
whatever is in it. How a kernel is timed is ours under every protocol.
"""

from __future__ import annotations

from dataclasses import dataclass

KERNELBENCH_SEED = 42

# The paper excludes outputs without any CUDA kernel, and those that never call the kernels they built.
PAPER_KINDS = frozenset({"torch_only", "never_invoked", "not_in_forward"})


@dataclass(frozen=True, slots=True)
class Protocol:
    """`tolerance`: absolute and relative for `torch.allclose`; None for a calibrated comparison.

    `cast`: the dtype that every input, constructor argument and parameter is cast to; "" for none.
    `refuses`: kinds of deception that are an outcome of their own; None for all that evidence supports.
    `as_published`: the denominator is every task, and the kernel the first code fence of the reply.
    """

    name: str
    tolerance: float | None = None
    cast: str = ""
    refuses: frozenset[str] | None = frozenset()
    as_published: bool = False

    @property
    def ours(self) -> bool:
        """Whether seeds are secret, values varied, weights copied, mutation and aliasing refused."""
        return self.tolerance is None

    def refuses_kind(self, kinds: tuple[str, ...]) -> bool:
        """Whether deception of one of these kinds makes the outcome `deceptive`."""
        return self.refuses is None or bool(self.refuses.intersection(kinds))


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        Protocol("dice", refuses=None),
        Protocol("kernelbench", 1e-4, "float32"),
        Protocol("kernelbench-fp16", 1e-2, "float16"),
        Protocol("kernelbench-bf16", 1e-2, "bfloat16"),
        Protocol("kernelbench-v0", 1e-2, as_published=True),
        Protocol("dice-paper", 1e-2, refuses=PAPER_KINDS, as_published=True),
    )
}


def counts_as_published(name: str) -> bool:
    """Whether a protocol, which a run's folder may have from elsewhere, is known to have `as_published`."""
    return name in PROTOCOLS and PROTOCOLS[name].as_published


def protocol_named(name: str) -> Protocol:
    """The protocol of that name. Raises `ValueError` for none."""
    if name not in PROTOCOLS:
        raise ValueError(f"unknown protocol {name!r}; there are {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]
