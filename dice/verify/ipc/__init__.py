"""What crosses a process border inside the verifier, and how it is read. Imports no PyTorch."""
