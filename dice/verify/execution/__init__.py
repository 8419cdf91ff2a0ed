"""What the trusted and the untrusted child do alike: run modules, measure, count what PyTorch computes."""
