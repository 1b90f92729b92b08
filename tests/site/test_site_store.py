"""A full disk under the store: what must be written is refused, everything else goes on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.site.siting import root_only, running_site

pytestmark = [pytest.mark.site, root_only]


@contextmanager
def small_disk(path: Path) -> Iterator[None]:
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=711", "tmpfs", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", path], check=True)


def test_with_a_full_disk_hosts_are_known_commands_refused_and_room_is_enough_to_go_on(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "manager-home"), running_site(tmp_path) as site:
        site("command", "send", "node1", "agent.ping")
        filler = site.home / "filler"
        with open(filler, "wb") as file:
            while True:
                try:
                    os.write(file.fileno(), bytes(4096))
                except OSError:
                    break

        def refused() -> bool:
            done = site("command", "send", "node1", "agent.ping", check=False)
            return done.returncode == 74 and "full" in done.stderr.lower()

        # The store may have had room of its own for some more.
        site.wait_for("the refusal", refused)
        assert site.hosts()["node1"]["presence"] == "joined"
        assert "full" in site("status").stdout.lower()
        site("properties", "node1", "--refresh")
        filler.unlink()
        site.wait_for(
            "commands again",
            lambda: site("command", "send", "node1", "agent.ping", check=False).returncode == 0,
        )
        site.wait_for(
            "the events that waited",
            lambda: any(
                "full" in event["sentence"].lower() for event in site.events("store trouble")
            ),
        )
