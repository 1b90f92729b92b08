"""Taking apart an archive that a machine packed, as its bytes come in. It is not trusted."""

from __future__ import annotations

from collections.abc import Generator

from encamp.guest.archive_format import ENTRY, NUMBER, START, Entry, Kind, decode_head
from encamp.guest.frames import Bytes, senseless

NAME_MAX = 255
ERRNO_MAX = 4095

Need = tuple[int, int]
"""How many bytes the next step needs at least, and can use at most."""


class Reader:
    """Whoever makes something of an archive says what becomes of an entry, as a generator that
    asks for the bytes that follow it."""

    def __init__(self, kinds: frozenset[Kind]) -> None:
        self._kinds = kinds
        self._pending = bytearray()
        self._ended = False
        self._failed = False
        self._steps = self._archive()
        self._need: Need = next(self._steps)

    def feed(self, data: Bytes) -> None:
        """Take the next bytes in. Bytes behind the archive's end are refused."""
        view = memoryview(data).cast("B")
        try:
            while view:
                if self._ended or self._failed:
                    raise senseless("more bytes after the end of an archive")
                least, most = self._need
                if not self._pending and len(view) >= least:
                    piece, view = view[:most], view[most:]
                    self._need = self._steps.send(piece)
                else:
                    more = least - len(self._pending)
                    self._pending += view[:more]
                    view = view[more:]
                    if len(self._pending) >= least:
                        whole = bytes(self._pending)
                        self._pending.clear()
                        self._need = self._steps.send(memoryview(whole))
        except StopIteration:
            self._ended = True
            if view:
                self._failed = True
                raise senseless("more bytes after the end of an archive") from None
        except BaseException:
            self._failed = True
            raise

    @property
    def whole(self) -> bool:
        """Whether the archive has come to its end, and made sense."""
        return self._ended and not self._failed

    def close(self) -> None:
        self._steps.close()

    def _archive(self) -> Generator[Need, memoryview, None]:
        if (yield len(START), len(START)) != START:
            raise senseless("what should be an archive is none")
        while True:
            head = yield ENTRY.size, ENTRY.size
            entry, name, link, attributes = decode_head(bytes(head), self._kinds)
            for field, length in (("name", name), ("link", link), ("attributes", attributes)):
                if length:
                    piece = yield length, length
                    setattr(entry, field, bytes(piece))
            if entry.kind is Kind.END:
                # From here on nothing more may come; the driver sees the end of this generator.
                return
            yield from self._entry(entry)

    def _entry(self, entry: Entry) -> Generator[Need, memoryview, None]:
        raise NotImplementedError


def number(data: memoryview) -> int:
    (value,) = NUMBER.unpack(data)
    return int(value)


def printable(name: bytes) -> str:
    """A name as it may be shown: nothing in it may control a terminal."""
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}"
        for letter in name[:4096].decode(errors="replace")
    )
