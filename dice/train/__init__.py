"""Training: block-diffusion SFT and BiC-RL."""
