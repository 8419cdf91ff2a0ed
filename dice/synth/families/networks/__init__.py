"""Families in which PyTorch's libraries keep a part of the work."""
