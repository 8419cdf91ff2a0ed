"""Trees of tensors: carried between processes, shared, and compared."""
