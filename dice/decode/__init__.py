"""Decoding: sampling, block diffusion, whole-answer diffusion, one token at a time, and the trace each leaves."""
