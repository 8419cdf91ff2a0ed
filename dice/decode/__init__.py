"""Block-diffusion decoding: sampling, the batched engine, and the trace it leaves."""
