"""What a server may be asked for, and by whom."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from dice.errors import UserError

LEAST_KEY = 16  # characters: a shorter key can be guessed by trying
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """Address, key and limits. Times in seconds.

    `model`: the name that clients know. `tensor_parallel`: GPUs that it is cut over. `slots`: texts written at once;
    `queue`: texts that may wait behind them. `most_choices`: texts of one request. `body_bytes`: of a request.
    `head_s`, `body_s`: in which the head and the body of a request must have come. `write_s`: a client that takes
    nothing for so long is cut off. `drain_s`: after a SIGTERM, for what is under way. `verify`: whether kernels are
    compiled and run, `verify_strangers`: also for clients of other machines.

    Raises `UserError` for an address that is not this machine's own without a key.
    """

    model: str
    host: str = "127.0.0.1"
    port: int = 8000
    key: str = ""
    tensor_parallel: int = 1
    slots: int = 16
    queue: int = 64
    most_choices: int = 16
    most_tokens: int = 8192
    connections: int = 512
    body_bytes: int = MIB
    head_s: float = 10.0
    body_s: float = 20.0
    write_s: float = 30.0
    drain_s: float = 60.0
    verify: bool = True
    verify_strangers: bool = False
    backend: str = "auto"

    def __post_init__(self) -> None:
        if self.key and (len(self.key) < LEAST_KEY or not self.key.isascii() or not self.key.isprintable()):
            raise UserError(f"An API key must have at least {LEAST_KEY} printable ASCII characters.")
        if not self.is_loopback and not self.key:
            raise UserError(
                f"{self.host} can be reached from other machines: give --api-key-file or DICE_API_KEY, or serve on "
                "127.0.0.1."
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def verifies(self) -> bool:
        return self.verify and (self.is_loopback or self.verify_strangers)
