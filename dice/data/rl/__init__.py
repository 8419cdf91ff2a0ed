"""The two sets of BiC-RL (paper 4.2): kernels with their core taken out, and problems alone, each easy to hard."""
