"""The fast engine: many texts at once, each at its own block, over pages of keys and values."""
