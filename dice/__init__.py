"""DICE: block-diffusion language models that write CUDA kernels, and the verifier that proves them."""

__version__ = "0.1.0"
