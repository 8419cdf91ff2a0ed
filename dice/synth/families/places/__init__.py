"""Families that move elements: by their own index, or by one that is given."""
