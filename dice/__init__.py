"""DICE: block-diffusion language models that write CUDA kernels, and the verifier that proves them.

from dice import generate, load, optimize, verify

attempts = generate("problem.py")              # kernels for a PyTorch module, verified, the best first
verdict = verify("problem.py", "kernel.py")    # is a kernel right, honest and fast?
model = load("kernel.py").ModelNew()           # a kernel file as a module, built in about a second
result = optimize("network.py")                # a whole module: regions replaced where that is right and wins
"""

# Nothing is imported here, not even `typing`: the working directory is still on the path then, with whatever files
# somebody has put there, and `dice.launch` takes it off.
TYPE_CHECKING = False  # True for type checkers

if TYPE_CHECKING:
    from dice.generation import generate
    from dice.loading import load
    from dice.optimize import optimize
    from dice.verify import verify

__version__ = "0.2.0.dev0"
__all__ = ["generate", "load", "optimize", "verify"]
_HOMES = {"generate": "dice.generation", "load": "dice.loading"}


def __getattr__(name: str) -> object:
    """The four functions, imported when somebody asks for one: `import dice` itself loads nothing."""
    import importlib

    if name in ("verify", "optimize"):  # packages, which can be called
        return importlib.import_module(f"dice.{name}")
    if name in _HOMES:
        found: object = getattr(importlib.import_module(_HOMES[name]), name)
        return found
    raise AttributeError(f"module 'dice' has no attribute {name!r}")
