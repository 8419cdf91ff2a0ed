"""The PyTorch side of a pair: what a problem computes, how its author writes it, and how it is printed."""
