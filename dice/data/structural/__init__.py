"""Structural problems: the building blocks of mainstream language models in KernelBench's form (paper section 3)."""
