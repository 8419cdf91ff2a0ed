"""The engine's kernels, in Triton. Nothing here is imported where Triton is not installed or there is no GPU."""
