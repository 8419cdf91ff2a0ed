"""Kernels by rule for products of matrices and for convolutions: what they sum, how that is divided, in which tiles."""
