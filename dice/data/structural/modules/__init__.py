"""The building blocks, as plain PyTorch. `emit.py` reads them as text: a problem is one class with what it uses."""
