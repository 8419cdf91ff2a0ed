"""Constants of right kernels, tuned by measurement."""
