"""How much of a command under way is told, while it goes on."""

from __future__ import annotations

from pathlib import Path

from encamp.agent.commands.directory import CommandDirectory, Request
from encamp.agent.commands.tracked import Tracked


def test_output_that_comes_while_it_is_told_is_told_next_and_once(tmp_path: Path) -> None:
    directory = CommandDirectory(tmp_path / "talk")
    directory.journal(
        Request(id="talk", name="talk", arguments={}, issuer="alice", timeout=60.0, received=1.0)
    )
    tracked = Tracked(directory, is_new=True)
    directory.begin(2.0)
    heard = b""
    for line in (b"first\n", b"second\n", b"third\n"):
        with directory.output.open("ab") as output:
            output.write(line)
        tracked.refresh()
        with directory.output.open("ab") as output:
            output.write(b"soon after\n")
        news = tracked.news(100)
        assert news is not None
        assert news.offset == len(heard)
        heard += news.piece
        tracked.taken(news, len(heard))
    tracked.refresh()
    last = tracked.news(100)
    assert last is not None
    assert heard + last.piece == directory.output.read_bytes()
