"""Data: the CuKe set and its sources, the synthetic corpus, the tokenizer of small models."""
