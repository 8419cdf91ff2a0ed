"""The body of a response, of which no more is held than an answer may have, however small it is sent."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator

# Bytes of a body, unpacked. An answer of 100,000 tokens has about half a megabyte.
LONGEST_BODY = 16 << 20
# The Content-Encoding that requests ask for. Endpoints that send gzip or deflate all the same are understood.
ENCODING = "identity"
_ZIPPED = ("gzip", "x-gzip", "deflate")
# Tells zlib to recognise gzip and zlib streams by their first bytes.
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


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
