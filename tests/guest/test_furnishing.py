"""What a command brings with it into a machine, with the real guest program."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from encamp.guest.channel import Channel, Exec, Exit, File, Kind
from encamp.model.errors import EncampError
from tests.guest.support import Guest, read_all

PATH = {"PATH": "/usr/bin:/bin"}
NOBODY = 65534


async def run(
    channel: Channel,
    *words: str,
    files: dict[str, File] | None = None,
    temporary: str | None = None,
    env: dict[str, str] | None = None,
    uid: int = NOBODY,
    limits: dict[int, tuple[int, int]] | None = None,
) -> tuple[str, Exit]:
    stream = channel.execute(
        Exec(
            args=list(words),
            env={**PATH, **(env or {})},
            cwd="/",
            uid=uid,
            gid=uid,
            files=files or {},
            temporary=temporary,
            limits=limits or {},
        )
    )
    await stream.end()
    return (await read_all(stream.stdout)).decode(), await stream.wait()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory of root's, which everybody can get through to."""
    for directory in (tmp_path, *tmp_path.parents):
        if directory.stat().st_uid == os.getuid() and directory != Path("/"):
            directory.chmod(directory.stat().st_mode | 0o011)
    return tmp_path


async def test_script_is_there_before_it_runs(guest: Guest, place: Path) -> None:
    script = place / "job" / "script"
    content = b"#!/bin/sh\nid -u; stat -c '%u %a' $0 ${0%/*}; echo \"$1\"\n" + b"#" * 200_000
    out, ended = await run(
        await guest.open(),
        *(str(script), "a b"),
        files={str(script): File(0o700, content), str(place / "job" / "list"): File(0o600, b"")},
        # It is not the command that writes them.
        limits={resource.RLIMIT_FSIZE: (0, 0)},
    )
    assert ended.code == 0, ended
    assert out.split() == [str(NOBODY), str(NOBODY), "700", str(NOBODY), "700", "a", "b"]
    assert (place / "job" / "list").stat().st_mode & 0o777 == 0o600


async def test_next_script_takes_the_place_of_the_last(guest: Guest, place: Path) -> None:
    channel, path = await guest.open(), str(place / "job" / "script")
    for word in ("one", "two"):
        file = File(0o700, f"#!/bin/sh\necho {word}\n".encode())
        assert (await run(channel, path, files={path: file}))[0] == f"{word}\n"


async def test_files_are_written_with_the_users_rights(guest: Guest, place: Path) -> None:
    """A link that the user has left in the user's own directory leads nowhere new."""
    own, target = place / "job", place / "root's"
    own.mkdir()
    os.chown(own, NOBODY, NOBODY)
    target.write_text("untouched")
    # Whatever its process will be called.
    for number in range(os.getpid(), os.getpid() + 5000):
        (own / f"script.encamp-{number}").symlink_to(target)
    (own / "script").symlink_to(target)
    path = str(own / "script")
    out, _ = await run(await guest.open(), path, files={path: File(0o700, b"#!/bin/sh\necho x\n")})
    assert (out, target.read_text()) == ("x\n", "untouched")


async def test_what_cannot_be_written_keeps_the_command_from_starting(
    guest: Guest, place: Path
) -> None:
    closed = place / "closed"
    closed.mkdir()
    out, ended = await run(
        await guest.open(), "echo", "ran", files={str(closed / "x"): File(0o600, b"")}
    )
    assert (out, ended.kind, ended.value) == ("", Kind.NOT_FURNISHED, errno.EACCES)
    assert ended.text == "the command's files could not be put into the machine: Permission denied"
    assert (ended.started, ended.code) == (False, 126)


async def test_temporary_directory_is_made_below_the_usual_one(guest: Guest, place: Path) -> None:
    path = f"/tmp/encamp-test-{os.getpid()}/of/job"
    try:
        out, _ = await run(
            await guest.open(), "stat", "-c", "%u %a", path, temporary=path, env={"TMPDIR": path}
        )
        assert out.split() == [str(NOBODY), "700"]
    finally:
        for directory in (path, path[:-4], path[:-7]):
            Path(directory).rmdir()


async def test_what_is_the_systems_does_not_become_the_jobs(guest: Guest) -> None:
    path = "/usr/encamp-test"
    env = {"TMPDIR": path, "TMP": "/elsewhere", "TEMP": path}
    out, _ = await run(
        await guest.open(), "sh", "-c", "echo $TMPDIR $TMP $TEMP", temporary=path, env=env
    )
    assert out == "/tmp /elsewhere /tmp\n"
    assert not Path(path).exists()


@pytest.mark.parametrize("path", ["relative", "/a/../b", "/ends/", "/"])
async def test_path_that_makes_no_sense_is_refused(guest: Guest, path: str) -> None:
    channel = await guest.open()
    await channel.welcome()
    with pytest.raises(EncampError, match="make sense"):
        await run(channel, "echo", "ran", files={path: File(0o600, b"")})
