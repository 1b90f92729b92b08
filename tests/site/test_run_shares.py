"""Directories of the host, seen live in a machine."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import stat
import time
from pathlib import Path

import pytest

from encamp.home import Home
from tests.cli.driving import starter
from tests.conftest import Encamp, machine_processes, share_servers

pytestmark = pytest.mark.site

MIB = 1024 * 1024
ODD_NAMES = ("a b", "a,b,,c", "a:b", "a\\b", "ünïcödé ☃", "a\nb", "-o", "a=b", "\"'$x")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    directory = tmp_path / "shared"
    directory.mkdir()
    return directory


def escaped(path: Path) -> str:
    return re.sub(r"([:\\])", r"\\\1", str(path))


def test_share_is_live_both_ways_and_its_files_belong_to_the_caller(
    encamp_environment: dict[str, str], nothing_left: None, tmp_path: Path, shared: Path
) -> None:
    private = shared / "private"
    private.write_text("for my eyes only\n")
    private.chmod(0o600)
    script = (
        f"cd {shared}; cat private; umask 027; echo inside > made; mkdir -m 700 below;"
        " ln -s made link; ln made hard; : > script; chmod 755 script;"
        " touch -d '2001-02-03 04:05:06' script; echo ready; read go; cat later"
    )
    start = starter(encamp_environment, tmp_path)
    with start("run", "--share", "shared", "--", "sh", "-c", script) as running:
        assert running.line() == b"for my eyes only\n"
        assert running.line() == b"ready\n"
        # Seen at once here, and what is written here at once there.
        assert (shared / "made").read_text() == "inside\n"
        (shared / "later").write_text("written meanwhile\n")
        running.type(b"go\n")
        assert running.line() == b"written meanwhile\n"
        assert running.ends_with() == 0
    modes = {path.name: path.lstat() for path in shared.iterdir()}
    assert {(found.st_uid, found.st_gid) for found in modes.values()} == {
        (os.geteuid(), os.getegid())
    }
    assert modes["made"].st_mode & 0o7777 == 0o640
    assert modes["below"].st_mode & 0o7777 == 0o700
    assert modes["script"].st_mode & 0o7777 == 0o755
    assert modes["script"].st_mtime == 981173106
    assert (shared / "link").readlink() == Path("made")
    assert (shared / "hard").samefile(shared / "made")


def test_file_can_be_changed_renamed_and_removed_through_a_share(
    encamp: Encamp, shared: Path
) -> None:
    (shared / "old").write_text("one\n")
    (shared / "doomed").write_text("")
    script = "cd /s; echo two >> old; mv old new; rm doomed; mkdir d; rmdir d; echo cut > new2"
    encamp("run", "--share", f"{shared}:/s", "--", "sh", "-ec", script)
    assert {path.name: path.read_text() for path in shared.iterdir()} == {
        "new": "one\ntwo\n",
        "new2": "cut\n",
    }


def test_read_only_share_cannot_be_written_to(encamp: Encamp, shared: Path) -> None:
    (shared / "file").write_text("as it was")
    script = "cat /s/file; echo x > /s/new || echo x >> /s/file || rm /s/file || echo refused"
    done = encamp("run", "--share", f"{shared}:/s:ro", "--", "sh", "-c", script)
    assert done.stdout == b"as it wasrefused\n"
    # Nor by remounting it inside: the host refuses.
    script = "mount -o remount,rw /s; echo x > /s/file || echo refused"
    done = encamp("run", "--share", f"{shared}:/s:ro", "--", "sh", "-c", script)
    assert done.stdout == b"refused\n"
    assert [path.name for path in shared.iterdir()] == ["file"]
    assert (shared / "file").read_text() == "as it was"


def test_names_of_shares_and_of_files_in_them_may_be_anything(
    encamp: Encamp, tmp_path: Path
) -> None:
    shares = []
    for name in ODD_NAMES:
        directory = tmp_path / name
        directory.mkdir()
        for inner in ODD_NAMES:
            (directory / inner).write_text(inner)
        shares += ["--share", escaped(directory)]
    script = 'for directory; do cd "$directory" && cat ./*; done'
    words = [str(tmp_path / name) for name in ODD_NAMES]
    done = encamp("run", *shares, "--", "sh", "-c", script, "sh", *words)
    assert done.stdout.decode() == "".join(sorted(ODD_NAMES, key=str.encode)) * len(ODD_NAMES)


def test_file_of_any_bytes_as_name_is_seen(encamp: Encamp, shared: Path) -> None:
    Path(os.fsdecode(os.fsencode(shared) + b"/\xff\xfe\x01")).write_text("found")
    done = encamp("run", "--share", f"{shared}:/s", "--", "sh", "-c", "cat /s/*")
    assert done.stdout == b"found"


def test_large_file_is_whole_on_both_sides_of_a_share(encamp: Encamp, shared: Path) -> None:
    content = os.urandom(MIB) * 16
    (shared / "big").write_bytes(content)
    script = "cd /s; sha256sum < big; cp big copy"
    done = encamp("run", "--share", f"{shared}:/s", "--", "sh", "-ec", script)
    digest = hashlib.sha256(content).hexdigest()
    assert done.stdout.split()[0].decode() == digest
    assert hashlib.sha256((shared / "copy").read_bytes()).hexdigest() == digest


def test_shares_lie_within_each_other_in_the_order_given(encamp: Encamp, tmp_path: Path) -> None:
    for name in ("outer", "inner"):
        (tmp_path / name).mkdir()
    (tmp_path / "outer" / "deep").mkdir()
    (tmp_path / "inner" / "file").write_text("found")
    done = encamp(
        *("run", "--share", "outer:/a", "--share", "inner:/a/deep:ro"),
        *("--", "cat", "/a/deep/file"),
    )
    assert done.stdout == b"found"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's machines run as somebody else")
def test_roots_machine_with_a_share_has_no_process_of_roots(
    encamp_environment: dict[str, str],
    nothing_left: None,
    site_home: Home,
    tmp_path: Path,
    shared: Path,
) -> None:
    (shared / "private").write_text("root's own\n")
    (shared / "private").chmod(0o600)
    start = starter(encamp_environment, tmp_path)
    with start("run", "--share", "shared:/s", "--", "sh", "-c", "cat /s/private; cat") as running:
        assert running.line() == b"root's own\n"
        (machine,), (server,) = machine_processes(site_home), share_servers(site_home)
        found = {
            process: dict(
                line.split(":\t", 1)
                for line in Path(f"/proc/{process}/status").read_text().splitlines()
                if ":\t" in line
            )
            for process in (machine, server)
        }
        assert running.ends_with() == 0
    for process, status in found.items():
        assert "0" not in status["Uid"].split() + status["Gid"].split()
        assert process == machine or status["Groups"].strip() == ""
        assert {int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"


def test_machine_without_shares_has_no_server(
    encamp: Encamp, site_home: Home, shared: Path
) -> None:
    encamp("start", "--name", "without")
    assert share_servers(site_home) == []
    encamp("start", "--name", "with", "--share", "shared:/s")
    assert len(share_servers(site_home)) == 1
    templates = [path.name for path in site_home.templates.iterdir()]
    encamp("kill", "with")
    assert share_servers(site_home) == []
    # Both are clones of the same template.
    encamp("start", "--name", "again", "--share", "shared:/s")
    assert [path.name for path in site_home.templates.iterdir()] == templates
    encamp("kill-all")


def test_server_ends_with_its_machine_however_that_ends(
    encamp: Encamp, site_home: Home, shared: Path
) -> None:
    encamp("start", "--name", "doomed", "--share", "shared:/s")
    (machine,), (server,) = machine_processes(site_home), share_servers(site_home)
    os.kill(machine, signal.SIGKILL)
    end = time.monotonic() + 10
    while server in share_servers(site_home) and time.monotonic() < end:
        time.sleep(0.01)
    assert share_servers(site_home) == []
    encamp("kill-all")


def test_program_is_told_when_the_server_of_its_share_is_gone(
    encamp: Encamp, site_home: Home, shared: Path
) -> None:
    encamp("start", "--name", "bereft", "--share", "shared:/s")
    (server,) = share_servers(site_home)
    os.kill(server, signal.SIGKILL)
    failed = encamp("exec", "bereft", "--", "sh", "-c", "echo x > /s/file", check=False)
    assert failed.returncode == 1
    assert b"Input/output error" in failed.stderr
    assert encamp("exec", "bereft", "--", "echo", "here").stdout == b"here\n"
    encamp("kill-all")


def test_named_pipe_made_in_a_share_is_one_on_the_host(encamp: Encamp, shared: Path) -> None:
    encamp("run", "--share", f"{shared}:/s", "--", "mkfifo", "-m", "640", "/s/pipe")
    assert stat.filemode((shared / "pipe").lstat().st_mode) == "prw-r-----"


def test_share_that_cannot_be_shown_is_refused(encamp: Encamp, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    refused = {
        ("missing",): (66, "does not exist"),
        ("file",): (66, "is not a directory"),
        ("one:relative",): (64, "absolute path"),
        ("one:/",): (64, "below '/'"),
        ("one:/s", "two:/s"): (64, "Two shares cannot both be shown at /s"),
        tuple(f"one:/s{number}" for number in range(65)): (64, "64 shares, not 65"),
    }
    for shares, (code, sentence) in refused.items():
        words = [word for share in shares for word in ("--share", share)]
        done = encamp("run", *words, "--", "true", check=False)
        assert (done.returncode, sentence in done.stderr.decode()) == (code, True), done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's shares have their owners mapped")
def test_share_whose_owners_cannot_be_mapped_is_refused_with_the_reason(encamp: Encamp) -> None:
    for words in (
        ("run", "--share", "/proc/sys:/s", "--", "true"),
        ("start", "--share", "/proc/sys:/s"),
    ):
        refused = encamp(*words, check=False)
        assert refused.returncode == 72
        assert b"cannot map owners (idmapped mounts), which root's shares need" in refused.stderr
    assert encamp("ps", "--json").stdout.strip() == b"[]"


def test_machine_has_as_many_shares_as_it_may(encamp: Encamp, tmp_path: Path) -> None:
    words = []
    for number in range(64):
        (tmp_path / f"{number}").mkdir()
        words += ["--share", f"{number}:/m/{number}"]
    encamp("run", *words, "--", "sh", "-c", "for each in /m/*; do touch $each/made; done")
    assert len(list(tmp_path.glob("*/made"))) == 64
