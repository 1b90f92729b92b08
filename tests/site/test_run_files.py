"""Files and trees copied into and out of a machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import Encamp

pytestmark = pytest.mark.site

MIB = 1024 * 1024
LONG_AGO = 981173106_123456789
DISK = ("--cpus", "2", "--memory", "96M", "--disk", "64M")
"""A machine whose files can have extended attributes, as those in memory cannot."""


def make_tree(tree: Path) -> None:
    (tree / "below" / "empty").mkdir(parents=True)
    plain = tree / "plain"
    plain.write_bytes(bytes(range(256)) * 100)
    os.setxattr(plain, "user.colour", b"blue\0green")
    plain.chmod(0o640)
    (tree / "hard").hardlink_to(plain)
    (tree / "below" / "program").write_text("#!/bin/sh\necho ran\n")
    (tree / "below" / "program").chmod(0o755)
    (tree / "soft").symlink_to("plain")
    (tree / "dangling").symlink_to("/nowhere/at all")
    with (tree / "sparse").open("wb") as file:
        file.truncate(300 * MIB)
        file.seek(200 * MIB)
        file.write(b"an island")
    for name in (b"a\nb", b"a b", b"-rf", b"*", b"\xff\xfe", "ü".encode(), b"~", b"$(id)"):
        (tree / os.fsdecode(name)).write_bytes(name)
    (tree / "below").chmod(0o750)
    os.utime(plain, ns=(LONG_AGO, LONG_AGO))
    os.utime(tree / "below", ns=(LONG_AGO, LONG_AGO))


def picture(tree: Path) -> dict[str, tuple[object, ...]]:
    """All there is to know of a tree's files."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted([tree, *tree.rglob("*")]):
        status = path.lstat()
        content: object = None
        if path.is_symlink():
            content = path.readlink()
        elif path.is_file() and status.st_size < MIB:
            content = path.read_bytes()
        attributes = [
            (name, os.getxattr(path, name, follow_symlinks=False))
            for name in os.listxattr(path, follow_symlinks=False)
        ]
        times = status.st_mtime_ns
        size = None if path.is_dir() else status.st_size
        links = None if path.is_dir() else status.st_nlink
        found[str(path.relative_to(tree))] = (
            *(status.st_mode, size, links, times, status.st_uid, status.st_gid),
            *(attributes, content),
        )
    return found


def test_tree_goes_in_and_comes_out_as_it_was(encamp: Encamp, tmp_path: Path) -> None:
    make_tree(tmp_path / "tree")
    script = "tree/below/program; du -k tree/sparse"
    done = encamp("run", *DISK, "--in", "tree", "--out", "tree:back", "--", "sh", "-c", script)
    assert done.stdout.startswith(b"ran\n")
    assert int(done.stdout.split()[1]) < 1024
    assert picture(tmp_path / "back") == picture(tmp_path / "tree")
    assert (tmp_path / "back" / "hard").samefile(tmp_path / "back" / "plain")
    with (tmp_path / "back" / "sparse").open("rb") as file:
        file.seek(200 * MIB)
        assert file.read() == b"an island" + bytes(100 * MIB - 9)
    assert (tmp_path / "back" / "sparse").stat().st_blocks * 512 < MIB


def test_inputs_land_where_cp_would_put_them(encamp: Encamp, tmp_path: Path) -> None:
    (tmp_path / "word").write_text("hello")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "leaf").write_text("green")
    (tmp_path / "link").symlink_to("word")
    inputs = [
        *("word", "word:renamed", "word:new/path/name", "word:directory/", "word:/tmp"),
        *("tree", "tree:/tmp", "tree:forest", "link", "word:tree/beside"),
    ]
    words = [word for text in inputs for word in ("--in", text)]
    expected = [
        *("word", "renamed", "new/path/name", "directory/word", "/tmp/word"),
        *("tree/leaf", "/tmp/tree/leaf", "forest/leaf", "tree/beside"),
    ]
    script = 'for file; do test -f "$file" || echo "$file"; done; test ! -L link && cat link'
    done = encamp("run", *words, "--", "sh", "-c", script, "sh", *expected)
    assert done.stdout == b"hello"


def test_inputs_are_relative_to_the_working_directory_and_belong_to_the_user(
    encamp: Encamp, tmp_path: Path
) -> None:
    (tmp_path / "word").write_text("hello")
    script = "pwd; stat -c %u:%g:%n word below/other"
    done = encamp(
        *("run", "-w", "/tmp", "--in", "word", "--in", "word:below/other"),
        *("--", "sh", "-c", script),
    )
    owner = f"{os.geteuid()}:{os.getegid()}"
    assert done.stdout.decode() == f"/tmp\n{owner}:word\n{owner}:below/other\n"


def test_outputs_land_where_cp_would_put_them(encamp: Encamp, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "old").write_text("to be replaced, and longer than what comes")
    outputs = [
        *("one", "one:renamed", "one:new/path/name", "one:directory/", "one:there", "one:old"),
        *("*.txt", "*.txt:texts", "tree", "tree:there", "tree:forest", "/tmp/e*/[fg]:found"),
        "./tree/../one:around",
    ]
    words = [word for text in outputs for word in ("--out", text)]
    script = (
        "echo 1 > one; echo a > a.txt; echo b > b.txt; mkdir -p tree/below /tmp/e1 /tmp/e2;"
        " echo leaf > tree/below/leaf; echo f > /tmp/e1/f; echo g > /tmp/e2/g"
    )
    encamp("run", *words, "--", "sh", "-ec", script)
    files = {
        str(path.relative_to(tmp_path)): path.read_text()
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    names = ("one", "renamed", "new/path/name", "directory/one", "there/one", "old", "around")
    assert files == {
        **dict.fromkeys(names, "1\n"),
        "a.txt": "a\n",
        "b.txt": "b\n",
        "texts/a.txt": "a\n",
        "texts/b.txt": "b\n",
        "tree/below/leaf": "leaf\n",
        "there/tree/below/leaf": "leaf\n",
        "forest/below/leaf": "leaf\n",
        "found/f": "f\n",
        "found/g": "g\n",
    }


@pytest.mark.parametrize("code", [0, 3])
def test_missing_outputs_are_reported_and_the_exit_code_kept(
    encamp: Encamp, tmp_path: Path, code: int
) -> None:
    outputs = ("--out", "missing", "--out", "*.none", "--out", "made")
    script = f"echo 1 > made; exit {code}"
    done = encamp("run", *outputs, "--", "sh", "-c", script, check=False)
    assert done.returncode == code
    assert done.stderr.decode().splitlines() == [
        "encamp: --out missing: nothing in the machine matches.",
        "encamp: --out *.none: nothing in the machine matches.",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_output_is_fetched_from_a_command_that_a_signal_ended(
    encamp: Encamp, tmp_path: Path
) -> None:
    script = "echo partial > result; kill -KILL $$"
    done = encamp("run", "--out", "result", "--", "sh", "-c", script, check=False)
    assert done.returncode == 137
    assert (tmp_path / "result").read_text() == "partial\n"


def test_output_that_cannot_be_copied_fails_a_run_that_went_well(
    encamp: Encamp, tmp_path: Path
) -> None:
    script = "echo whole > file; mkdir tree; mknod tree/device c 1 3; echo kept > tree/file"
    done = encamp("run", "--out", "tree", "--out", "file", "--", "sh", "-c", script, check=False)
    assert done.returncode == 80
    assert b"Not copied: tree/device" in done.stderr
    assert (tmp_path / "tree" / "file").read_text() == "kept\n"
    assert (tmp_path / "file").read_text() == "whole\n"


def test_large_files_go_both_ways(encamp: Encamp, tmp_path: Path) -> None:
    content = os.urandom(MIB) * 16
    (tmp_path / "big").write_bytes(content)
    encamp("run", "--in", "big", "--out", "big:back", "--", "true")
    assert (tmp_path / "back").read_bytes() == content


def test_what_does_not_fit_into_a_machine_is_refused_with_what_would_help(
    encamp: Encamp, tmp_path: Path
) -> None:
    (tmp_path / "big").write_bytes(os.urandom(160 * MIB))
    for options, cure in (
        (("--memory", "256M"), b"--memory gives one more, or --disk a disk."),
        (("--memory", "256M", "--disk", "32M"), b"--disk gives one more."),
    ):
        done = encamp("run", *options, "--in", "big", "--", "true", check=False)
        assert done.returncode == 80
        assert b"No space left on device" in done.stderr
        assert cure in done.stderr
        assert b"kept in its memory" not in done.stderr or "--disk" not in options


def test_what_comes_out_cannot_leave_its_directory(encamp: Encamp, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    script = (
        f"mkdir -p out; ln -s {outside} out/door; ln -s /etc/passwd out/password;"
        " : > out/setuid; chmod 6755 out/setuid"
    )
    encamp("run", "--out", "out", "--", "sh", "-ec", script)
    # A second tree of that name goes through the first one's link nowhere.
    script = "mkdir -p out/door; echo bad > out/door/file"
    encamp("run", "--out", "out", "--", "sh", "-ec", script, check=False)
    assert list(outside.iterdir()) == []
    assert (tmp_path / "out" / "setuid").stat().st_mode & 0o7777 == 0o755
