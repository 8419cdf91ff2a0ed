"""Gradients of regions: what computes them is derived by PyTorch, proven in float64, and cut into regions again."""
