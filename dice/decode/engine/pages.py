"""Pages of keys and values: who holds which, and which hold the beginning of a text that comes again.

A page holds the keys and values of `size` consecutive positions, in all layers. Texts with the same beginning hold the
same pages for it: what a page says depends only on the tokens up to its end, so it is known by their digest. A page
that nobody holds keeps its name until it is handed out again, the one unused for longest first.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Sequence


class Pages:
    """`count` pages of `size` positions each, numbered from 0. Bookkeeping only; the storage is somebody else's."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size
        self._holders = [0] * count
        self._free = dict.fromkeys(range(count))  # in the order in which they are handed out
        self._name: list[bytes | None] = [None] * count
        self._named: dict[bytes, int] = {}

    @property
    def free(self) -> int:
        """How many pages nobody holds."""
        return len(self._free)

    def needed(self, positions: int) -> int:
        """How many pages hold `positions` positions."""
        return -(-positions // self.size)

    def take(self, count: int) -> list[int] | None:
        """`count` pages for one holder, their contents forgotten; None, and nothing taken, where fewer are free."""
        if count > self.free:
            return None
        taken = [page for page, _ in zip(self._free, range(count), strict=False)]
        for page in taken:
            del self._free[page]
            self._holders[page] = 1
            self._forget(page)
        return taken

    def share(self, tokens: Sequence[int]) -> list[int]:
        """One more holder for the pages that hold the longest known beginning of `tokens`, whole pages only."""
        shared = []
        for name in self._names(tokens):
            page = self._named.get(name)
            if page is None:
                break
            self._free.pop(page, None)
            self._holders[page] += 1
            shared.append(page)
        return shared

    def publish(self, tokens: Sequence[int], pages: Sequence[int]) -> None:
        """Say that `pages` hold, or will before anyone reads them, the beginning of a text: `tokens`.

        Pages that `tokens` do not fill are left out, and so is what another page holds already.
        """
        for page, name in zip(pages, self._names(tokens), strict=False):
            if name not in self._named:
                self._forget(page)
                self._name[page], self._named[name] = name, page

    def release(self, pages: Sequence[int]) -> None:
        """One holder less. The end of a text is handed out again before its beginning, which more others share."""
        for page in reversed(pages):
            assert self._holders[page] > 0
            self._holders[page] -= 1
            if not self._holders[page]:
                self._free[page] = None

    def forget(self) -> None:
        """No page's contents are of use to new texts: the weights have changed."""
        for page in list(self._named.values()):
            self._forget(page)

    def _forget(self, page: int) -> None:
        name = self._name[page]
        if name is not None:
            del self._named[name]
            self._name[page] = None

    def _names(self, tokens: Sequence[int]) -> Iterator[bytes]:
        """The digest of all tokens up to the end of each whole page."""
        digest = hashlib.blake2b(digest_size=16)
        for end in range(self.size, len(tokens) + 1, self.size):
            digest.update(array("q", tokens[end - self.size : end]).tobytes())
            yield digest.digest()
