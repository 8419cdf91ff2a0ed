"""Reinforcement learning on denoising traces (paper Section 4.2)."""
