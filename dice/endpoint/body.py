"""The body of a response, of which no more is held than an answer may have, however small it is sent."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator

LONGEST_BODY = 16 << 20  # bytes, unpacked; an answer of 100,000 tokens has about half a megabyte
ENCODING = "identity"  # what is asked for; gzip and deflate are understood where they come all the same
_ZIPPED = ("gzip", "x-gzip", "deflate")
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS  # told apart by their first bytes


class BodyError(Exception):
    """`outcome` of `FAILED`, and why; `part` is what came before."""

    def __init__(self, outcome: str, why: str, part: bytes = b""):
        super().__init__(why)
        self.outcome, self.part = outcome, part


async def read_body(chunks: AsyncIterator[bytes], encoding: str) -> bytes:
    """The whole body, from its bytes as they came over the wire. `encoding`: its Content-Encoding.

    What follows the end of packed bytes is not read. Raises `BodyError` for a body over `LONGEST_BODY`, as soon as that
    is known, for an encoding that nobody asked for, and for bytes that are not encoded as is said.
    """
    names = [name for name in (part.strip().lower() for part in encoding.split(",")) if name not in ("", "identity")]
    if len(names) > 1 or not set(names) <= set(_ZIPPED):
        raise BodyError("truncated_json", f"its content encoding is {encoding!r}, which was not asked for")
    body, unpacker = bytearray(), zlib.decompressobj(_GZIP_OR_ZLIB) if names else None
    async for chunk in chunks:
        left = LONGEST_BODY + 1 - len(body)
        try:
            body += unpacker.decompress(chunk, left) if unpacker else chunk[:left]
        except zlib.error as error:
            raise BodyError("truncated_json", f"it is no {names[0]}, as it says ({error})", bytes(body)) from None
        if len(body) > LONGEST_BODY:
            said = f"it has more than {LONGEST_BODY >> 20} MiB"
            raise BodyError("too_long", f"{said}{', unpacked' if unpacker else ''}", bytes(body))
        if unpacker is not None and unpacker.eof:
            break
    return bytes(body)
