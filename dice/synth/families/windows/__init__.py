"""Families that slide a window over space: convolutions and poolings."""
