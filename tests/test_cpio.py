"""Archives for the kernel: read back by a reader that knows only the format's description."""

from __future__ import annotations

import stat

from hypothesis import given
from hypothesis import strategies as st

from encamp.cpio import BLOCK, Entry, archive, directory

NAMES = st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1, max_size=40)


def read_back(data: bytes) -> list[tuple[str, int, bytes]]:
    found: list[tuple[str, int, bytes]] = []
    at = 0
    while True:
        assert at % 4 == 0
        assert data[at : at + 6] == b"070701"
        fields = [int(data[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        mode, size, name_size = fields[1], fields[6], fields[11]
        name = data[at + 110 : at + 110 + name_size - 1].decode()
        assert data[at + 110 + name_size - 1] == 0
        start = -(-(at + 110 + name_size) // 4) * 4
        if name == "TRAILER!!!":
            assert not data[start:].strip(b"\0")
            return found
        found.append((name, mode, data[start : start + size]))
        at = -(-(start + size) // 4) * 4


@given(st.lists(st.tuples(NAMES, st.binary(max_size=600)), max_size=8))
def test_an_archive_holds_what_was_put_in(files: list[tuple[str, bytes]]) -> None:
    files = [(name, data) for name, data in files if name != "TRAILER!!!"]
    data = archive(Entry(name, content) for name, content in files)
    assert read_back(data) == [(name, stat.S_IFREG | 0o644, content) for name, content in files]
    assert len(data) % BLOCK == 0


def test_archives_can_follow_each_other() -> None:
    both = archive([directory("a")]) + archive([Entry("a/b", b"c")])
    assert both.count(b"TRAILER!!!") == 2
    assert read_back(both[BLOCK:]) == [("a/b", stat.S_IFREG | 0o644, b"c")]
