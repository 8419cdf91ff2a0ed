"""Name what emulation cannot do, before compiling (from the source) or after (from the compiler's log)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from dice.verify.emulator import ptx
from dice.verify.emulator.tokens import Tokens
from dice.verify.emulator.toolchain import include_dir
from dice.verify.emulator.translate import Unsupported, translate

# Header -> what it brings; the first match of the included path counts.
_HEADERS = (
    (r"cublas", "cuBLAS"),
    (r"cudnn", "cuDNN"),
    (r"cufft", "cuFFT"),
    (r"curand", "cuRAND"),
    (r"cusparse", "cuSPARSE"),
    (r"cusolver", "cuSOLVER"),
    (r"nvrtc", "NVRTC"),
    (r"nccl", "NCCL"),
    (r"npp", "NPP"),
    (r"thrust/", "Thrust"),
    (r"cub/", "CUB"),
    (r"cutlass/", "CUTLASS"),
    (r"cute/", "CuTe"),
    (r"cuda/", "libcu++ (cuda::)"),
    (r"cuda_awbarrier", "asynchronous barriers"),
    (r"cuda_fp6|cuda_fp4", "floating point of less than 8 bits"),
    (r"cudaTypedefs|cuda_texture|texture_|surface_|cudaGL|nvtx|nvToolsExt|cudaProfiler", "this CUDA header"),
)

# Words that are the feature.
_WORDS = {
    "bmma_sync": "tensor-core fragments of less than a byte",
    "CUtensorMap": "the tensor memory accelerator (TMA)",
    "__cluster_dims__": "thread block clusters",
    "this_cluster": "thread block clusters",
    "cluster_group": "thread block clusters",
    "cudaLaunchAttributeClusterDimension": "thread block clusters",
    "cudaLaunchKernelExC": "extended launches of untyped functions (cudaLaunchKernelExC)",
    "cudaTextureObject_t": "textures",
    "cudaSurfaceObject_t": "surfaces",
    "tex1Dfetch": "textures",
    "tex2D": "textures",
}
_LIBRARY_CALLS = re.compile(r"(cublas|cudnn|cufft|curand|cusparse|cusolver|nvrtc)(?=[A-Z]|_init|_uniform|_normal)\w+")
_NAMESPACES = {
    "thrust": "Thrust",
    "cub": "CUB",
    "cutlass": "CUTLASS",
    "cute": "CuTe",
    "cuda": "libcu++ (cuda::)",
}
_LIBRARY_NAMES = {
    "cublas": "cuBLAS",
    "cudnn": "cuDNN",
    "cufft": "cuFFT",
    "curand": "cuRAND",
    "cusparse": "cuSPARSE",
    "cusolver": "cuSOLVER",
    "nvrtc": "NVRTC",
}


def find_unsupported(source: str) -> str | None:
    """One sentence that names the first construct emulation cannot do, or None. Comments and strings do not count."""
    tokens = Tokens(source)
    directives = {start for start, _ in tokens.directives}
    for index, token in enumerate(tokens.list):
        what = None
        if token.text == "include" and index - 1 in directives:
            what = _feature_of_header(_included(tokens, index)) or _inside(_included(tokens, index))
        elif token.text in ("__has_include", "__has_include_next"):
            # An answer that differs from nvcc's would tell a source where it is.
            what = _feature_of_header(_included(tokens, index + 1)) or _inside(_included(tokens, index + 1))
        elif token.kind == "word":
            what = _feature_of_word(tokens, index) or _inside(token.text)
        if what is not None:
            line = source.count("\n", 0, token.start) + 1
            return f"Line {line} uses {what}, which the emulator does not run."
    try:
        translate(source)
    except Unsupported as reason:
        return str(reason)
    return None


# By these alone a source could tell the emulator from nvcc and a GPU: what its headers and its runtime define.
_OURS = re.compile(r"DICE_(EMU|QUICK|FULL)\w*|dice_emu(/.*)?|dice/.*|libdice_emu|__AVX\w*__|__F16C__|__SANITIZE_\w+__")


@cache
def _own_names() -> frozenset[str]:
    """What the emulator's headers call things that CUDA does not have, and what makes them macros."""
    texts = (path.read_text(encoding="utf-8") for path in include_dir.rglob("*") if path.is_file())
    return frozenset(name for text in texts for name in re.findall(r"\b(?:dice|DICE)_\w+", text))


def _inside(name: str) -> str | None:
    ours = _OURS.fullmatch(name) or name in _own_names()
    return f"`{name}`, by which a source could tell the emulator from a GPU" if ours else None


@cache
def _has(namespace: str) -> frozenset[str]:
    """The words in the emulator's headers for a namespace; what is written otherwise than they have it, g++ refuses."""
    folder = include_dir / namespace
    texts = (path.read_text(encoding="utf-8") for path in folder.rglob("*") if path.is_file())
    return frozenset(name for text in texts for name in re.findall(r"\w+", text))


_PATH = re.compile(r'[^\S\n]*(?:<([^>\n]+)>|"([^"\n]+)")')


def _included(tokens: Tokens, index: int) -> str:
    match = _PATH.match(tokens.source, tokens[index].end)
    return (match.group(1) or match.group(2)) if match else ""


def _feature_of_header(path: str) -> str | None:
    if path.split("/")[0] in _NAMESPACES and ".." not in path and (include_dir / path).is_file():
        return None
    return next((f"{what} (#include <{path}>)" for pattern, what in _HEADERS if re.match(pattern, path)), None)


def _feature_of_word(tokens: Tokens, index: int) -> str | None:
    word = tokens.text(index)
    if word in ptx.WORDS:
        try:
            ptx.statement(tokens, index)
        except ptx.UnknownPtx as unknown:
            return f"inline PTX ({unknown})"
    if word in _WORDS:
        return _WORDS[word]
    if word in _NAMESPACES and tokens.text(index + 1) == "::" and tokens.text(index - 1) != "::":
        names = [tokens.text(i) for i in (index + 2, index + 4)]
        had = names[0] in _has(word) and (names[0] not in ("std", "cuda") or names[1] in _has(word))
        return None if had else _NAMESPACES[word]
    if match := _LIBRARY_CALLS.fullmatch(word):
        return f"{_LIBRARY_NAMES[match.group(1)]} ({word})"
    return None


_MISSING_HEADER = re.compile(r"fatal error: ([^\s:]+): No such file")
_OUR_ASSERTION = re.compile(r"static assertion failed: dice_emu: ([^\n]+)")
_FORM_OF_LIBRARY = re.compile(
    r"error: (?:no matching function for call to |['\u2018]\w+['\u2019] is not a member of )?"
    r"['\u2018](?:class |struct )?((?:cub|thrust)::\w+)"
)
_PART_OF_LIBRARY = re.compile(r"error: ['\u2018](\w+)['\u2019] is not a member of ['\u2018](cub|thrust)['\u2019]")
_FORM_OF_THRUST = re.compile(
    r"error: no matching function for call to ['\u2018](\w+)\((?:const )?thrust::detail::t?here\b"
)
_UNKNOWN = (  # what a line says, where its name begins; and what else the line has to say
    (
        re.compile(
            r"error: (?:use of undeclared identifier |unknown type name |no member named )?['\u2018](?P<name>[\w:]+)"
        ),
        re.compile(
            r"was not declared|does not name a type|has not been declared|is not a member|undeclared identifier"
        ),
    ),
    (re.compile(r"error: there are no arguments to ['\u2018](?P<name>\w+)['\u2019]"), re.compile("")),
    (re.compile(r"undefined reference to [`'\u2018](?P<name>\w+)"), re.compile("")),
)


def explain_failure(log: str) -> str | None:
    """A sentence when the compiler stopped at a CUDA name or header that is real but not emulated; else None."""
    if match := _MISSING_HEADER.search(log):
        what = _feature_of_header(match.group(1))
        return f"The kernel uses {what}, which the emulator does not run." if what else None
    if match := _OUR_ASSERTION.search(log):
        return f"The kernel uses {match.group(1).strip()}, which the emulator does not run."
    if match := _FORM_OF_LIBRARY.search(log):
        return f"The kernel uses a form of `{match.group(1)}` which the emulator does not have."
    if match := _PART_OF_LIBRARY.search(log):
        return f"The kernel uses `{match.group(2)}::{match.group(1)}` which the emulator does not have."
    if match := _FORM_OF_THRUST.search(log):
        return f"The kernel uses a form of `thrust::{match.group(1)}` which the emulator does not have."
    for name in _unknown_names(log):
        if name in _known_names() or _LIBRARY_CALLS.fullmatch(name):
            return f"The kernel uses `{name}`, a CUDA name which the emulator does not have."
    return None


def _unknown_names(log: str) -> Iterator[str]:
    """Names that the compiler or the linker does not know, in the order of the log."""
    for line in log.split("\n"):
        for begins, also in _UNKNOWN:
            match = begins.search(line)
            if match and also.search(line, match.end()):
                yield match["name"].rpartition("::")[2]


@cache
def _known_names() -> frozenset[str]:
    """Names that CUDA's own headers declare and the emulator's do not."""
    return frozenset((Path(__file__).parent / "known_names.txt").read_text(encoding="ascii").split())
