"""Child processes: how they are forked, jailed, measured and ended. Imports no PyTorch before the zygote runs."""
