"""`dice serve`: an OpenAI-compatible server over one model, and the playground page."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from dice.commands.arguments import Backend, at_least
from dice.errors import MachineError, UserError
from dice.files.bounded import read_text

NEEDED = ("fastapi", "uvicorn", "prometheus_client")
KEY_VARIABLE = "DICE_API_KEY"


@dataclass
class Serve:
    """Serve a model to OpenAI's clients, and a page that shows it denoising.

    Example: dice serve --model nano --port 8000
    """

    model: str = "nano"
    """The shipped nano, a folder with a checkpoint in SDAR's layout, or the id of one on the Hugging Face hub."""
    name: str = ""
    """The name that clients know it by, by default the last part of --model."""
    host: str = "127.0.0.1"
    """Where to listen. Addresses that other machines reach need an API key."""
    port: int = 8000
    """0: one that is free."""
    api_key: str = ""
    """The key that clients must send. Other users of this machine can read it here: better give a file."""
    api_key_file: Path | None = None
    """A file that holds the key. Without either, the variable DICE_API_KEY is the key, if it is set."""
    tensor_parallel: int = 1
    """GPUs of this machine that the model is cut over; without a GPU, processes."""
    slots: int = 16
    """Texts that are written at once."""
    queue: int = 64
    """Texts that may wait for a slot; who comes then is told to come again (429)."""
    max_tokens: int = 8192
    """Longest answer, in tokens."""
    verify: bool = True
    """Whether /v1/verify and /v1/optimize compile and run kernels, in the jail. For this machine's clients, unless:"""
    allow_verify: bool = False
    """Verify and optimize for clients of other machines, too, where --host is an address that they reach."""
    backend: Backend = "auto"
    """Where verified kernels run."""
    drain: float = 60.0
    """Seconds that answers under way get after a SIGTERM."""

    def run(self) -> int:
        missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            raise MachineError("`dice serve` needs more packages: python -m pip install 'dice-kernels[serve]'.")
        at_least(1, slots=self.slots, max_tokens=self.max_tokens, tensor_parallel=self.tensor_parallel)
        at_least(0, queue=self.queue, port=self.port)
        if self.port > 65535:
            raise UserError(f"--port must be at most 65535, not {self.port}.")
        from dice.serve.server import serve
        from dice.serve.settings import ServeSettings

        settings = ServeSettings(
            model=self.name or Path(self.model).name or "model",
            host=self.host,
            port=self.port,
            key=_key(self),
            tensor_parallel=self.tensor_parallel,
            slots=self.slots,
            queue=self.queue,
            most_tokens=self.max_tokens,
            verify=self.verify,
            verify_strangers=self.allow_verify,
            backend=self.backend,
            drain_s=max(0.0, self.drain),
        )

        def started(url: str) -> None:
            print(
                f"dice: serving {settings.model} at {url} (page) and {url}/v1 (OpenAI's API).",
                file=sys.stderr,
                flush=True,
            )

        return serve(self.model, settings, started)


def _key(args: Serve) -> str:
    if args.api_key and args.api_key_file:
        raise UserError("Give either --api-key or --api-key-file.")
    if args.api_key_file is not None:
        try:
            key = read_text(args.api_key_file).strip()
        except OSError as error:
            raise UserError(f"{args.api_key_file} cannot be read: {error.strerror}.") from None
        if not key:
            raise UserError(f"{args.api_key_file} holds no key.")
        return key
    return args.api_key or os.environ.get(KEY_VARIABLE, "").strip()
