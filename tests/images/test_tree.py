"""Root trees as archives: what lies between two of them, and what layers make."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from encamp.images import tree
from encamp.images.portion import Portion
from encamp.images.squash import squash, unsquash
from encamp.images.tree import Entries, Entry
from encamp.model.recipe import EPOCH, Compression
from encamp.progress import Silent

OPAQUE = (("SCHILY.xattr.trusted.overlay.opaque", "y"),)


def directory(mode: int = 0o755, xattrs: tuple[tuple[str, str], ...] = ()) -> Entry:
    return Entry(tarfile.DIRTYPE, mode, 0, 0, EPOCH, xattrs=xattrs)


def link(target: str) -> Entry:
    return Entry(tarfile.SYMTYPE, 0o777, 0, 0, EPOCH, link=target)


def file(content: bytes, mode: int = 0o644, uid: int = 0) -> Entry:
    """Not for writing: it has no source."""
    digest = tree.content_digest(content)
    return Entry(tarfile.REGTYPE, mode, uid, 0, EPOCH, len(content), digest)


def archive(path: Path, members: dict[str, bytes | str | None], **special: int) -> Path:
    """An archive: bytes are files, text is where a link points to, None is a directory."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as out:
        for name, what in members.items():
            member = tarfile.TarInfo(name)
            member.mtime, member.mode, member.uid = 1_000_000_000, 0o755, special.get("uid", 0)
            if what is None:
                member.type = tarfile.DIRTYPE
                out.addfile(member)
            elif isinstance(what, str):
                member.type, member.linkname = tarfile.SYMTYPE, what
                out.addfile(member)
            else:
                member.size = len(what)
                out.addfile(member, io.BytesIO(what))
    return path


def paths(entries: Entries) -> set[str]:
    return set(entries)


def test_what_is_written_is_what_was_read(tmp_path: Path) -> None:
    members = {"./": None, "./etc": None, "./etc/motd": b"hello", "./motd": "etc/motd"}
    first = tree.read(archive(tmp_path / "a.tar", members, uid=70_000))
    tree.write(first, tmp_path / "b.tar")
    second = tree.read(tmp_path / "b.tar")
    assert tree.difference(first, second) == {}
    assert second["etc/motd"].uid == 70_000
    assert tree.tree_digest(first) == tree.tree_digest(second)
    tree.write(second, tmp_path / "c.tar")
    assert (tmp_path / "b.tar").read_bytes() == (tmp_path / "c.tar").read_bytes()


def test_names_of_one_file_stay_names_of_one_file(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.tar", {"first": b"content"})
    with tarfile.open(path, "a") as out:
        member = tarfile.TarInfo("second")
        member.type, member.linkname = tarfile.LNKTYPE, "first"
        out.addfile(member)
    tree.write(tree.read(path), tmp_path / "b.tar")
    with tarfile.open(tmp_path / "b.tar") as members:
        assert [(each.name, each.islnk()) for each in members] == [
            ("./first", False),
            ("./second", True),
        ]


def test_a_difference_is_what_changed_with_the_directories_above_it() -> None:
    old = {"": directory(), "etc": directory(), "etc/a": file(b"1"), "usr": directory()}
    new = {**old, "etc/a": file(b"2"), "opt": directory(0o700)}
    assert paths(tree.difference(old, new)) == {"", "etc", "etc/a", "opt"}


def test_what_is_gone_is_hidden_once_at_its_top() -> None:
    old = {"": directory(), "a": directory(), "a/b": directory(), "a/b/c": file(b"")}
    layer = tree.difference(old, {"": directory()})
    assert paths(layer) == {"", "a"}
    assert layer["a"].is_whiteout


def test_an_opaque_directory_hides_all_that_was_in_it() -> None:
    below = {"": directory(), "a": directory(), "a/old": file(b"1"), "b": file(b"2")}
    merged = tree.merge([below, {"a": directory(xattrs=OPAQUE), "a/new": file(b"3")}])
    assert paths(merged) == {"", "a", "a/new", "b"}
    assert merged["a"].xattrs == ()


NAMES = st.sampled_from(["a", "b", "c", "a-b"])
LEAVES = st.one_of(
    st.builds(file, st.binary(max_size=2), st.sampled_from([0o644, 0o755])),
    st.builds(link, NAMES),
)


@st.composite
def trees(draw: st.DrawFn) -> Entries:
    """Small trees with a few names, so that two of them have much in common."""
    entries: Entries = {"": directory()}
    for path in draw(st.lists(st.lists(NAMES, min_size=1, max_size=3), max_size=8)):
        for depth in range(1, len(path)):
            above = "/".join(path[:depth])
            there = entries.get(above)
            if there is not None and not there.is_directory:
                break
            entries.setdefault(above, directory(draw(st.sampled_from([0o755, 0o700]))))
        else:
            whole = "/".join(path)
            if whole not in entries:
                entries[whole] = draw(LEAVES)
    return entries


@given(trees(), trees())
@settings(deadline=None)
def test_a_tree_and_its_difference_to_another_make_the_other(old: Entries, new: Entries) -> None:
    layer = tree.difference(old, new)
    assert tree.merge([old, layer]) == new
    assert (layer == {}) == (old == new)


@given(trees(), trees(), trees())
@settings(deadline=None)
def test_layers_can_be_put_over_layers(first: Entries, second: Entries, third: Entries) -> None:
    layers = [first, tree.difference(first, second), tree.difference(second, third)]
    assert tree.merge(layers) == third


def test_holes_stay_holes_when_layers_are_put_together(tmp_path: Path) -> None:
    size = 32 << 20
    content = bytes(size // 2) + b"island" + bytes(size // 2)
    tree.write(tree.read(archive(tmp_path / "a.tar", {"./f": content})), tmp_path / "b.tar")
    squash(tmp_path / "b.tar", tmp_path / "f.squashfs", Portion(Silent()))
    unsquash(tmp_path / "f.squashfs", tmp_path / "c.tar")
    for made in (tmp_path / "b.tar", tmp_path / "c.tar"):
        assert made.stat().st_blocks * 512 < 1 << 20
        entry = tree.read(made)["f"]
        assert (entry.size, entry.sha256) == (len(content), hashlib.sha256(content).digest())


@pytest.mark.parametrize("compression", Compression)
def test_a_squashed_layer_can_be_read_again(tmp_path: Path, compression: Compression) -> None:
    members = {"./": None, "./etc": None, "./etc/motd": b"hello" * 1000, "./motd": "etc/motd"}
    entries = tree.read(archive(tmp_path / "a.tar", members, uid=1234))
    entries["etc/gone"] = tree.WHITEOUT
    capability = "\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
    entries["etc/motd"] = Entry(
        *(tarfile.REGTYPE, 0o4755, 1234, 0, EPOCH, 5000, entries["etc/motd"].sha256),
        xattrs=(("SCHILY.xattr.security.capability", capability),),
        source=entries["etc/motd"].source,
        offset=entries["etc/motd"].offset,
    )
    tree.write(entries, tmp_path / "layer.tar")
    results = []
    for number in range(2):
        squashed = tmp_path / f"{number}.squashfs"
        squash(tmp_path / "layer.tar", squashed, Portion(Silent()), compression=compression)
        results.append(squashed.read_bytes())
    assert results[0] == results[1]
    unsquash(tmp_path / "0.squashfs", tmp_path / "again.tar")
    again = tree.read(tmp_path / "again.tar")
    assert again["etc/gone"].is_whiteout
    assert again["etc/motd"].xattrs == entries["etc/motd"].xattrs
    if compression is not Compression.NONE:  # which keeps no times
        assert tree.tree_digest(again) == tree.tree_digest(entries)
