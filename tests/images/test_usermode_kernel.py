"""Debian's user-mode kernel: fetched once, kept, and started beside a C library of its own."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from encamp import cpio, programs
from encamp.home import Home
from encamp.images import usermode_kernel as module
from encamp.images.apt import Apt, Source, sources_for
from encamp.images.kernel import Unpacked
from encamp.images.usermode_kernel import (
    ARGUMENTS,
    ENVIRONMENT,
    INTERPRETER,
    LIBRARIES,
    LOADER,
    WANTED,
    UsermodeKernel,
    interpreter,
    known,
    modules_archive,
    needed,
    needed_with,
    usermode_kernel,
    with_interpreter,
)
from encamp.model.errors import Code, EncampError
from tests.builds import Told, built_once, stock
from tests.images.conftest import left_over

INIT = r"""
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

int main(void)
{
    FILE *order = fopen("/modules/order", "r"), *types;
    char line[200], path[220];
    struct utsname name;

    uname(&name);
    printf("Here is %s %s\n", name.sysname, name.release);
    while (fgets(line, sizeof line, order)) {
        line[strcspn(line, "\n")] = 0;
        snprintf(path, sizeof path, "/modules/%s", line);
        if (syscall(SYS_finit_module, open(path, O_RDONLY), "", 0) < 0)
            perror(path);
        else
            printf("loaded %s\n", line);
    }
    mount("proc", "/proc", "proc", 0, NULL);
    types = fopen("/proc/filesystems", "r");
    while (fgets(line, sizeof line, types))
        printf("knows %s", strchr(line, '\t') + 1);
    fflush(stdout);
    reboot(RB_POWER_OFF);
}
"""
"""The first program of a machine that tries a kernel: it loads its drivers and tells of them."""

OPENED = f'exec 6<"$1" 7<"$2" {LIBRARIES}<"$3" {LOADER}<"$4"; shift 4; exec "$@"'
"""Run a program with the initramfs, the kernel, its libraries and its loader open."""


@pytest.fixture(scope="session")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with the kernel in its cache. For reading only."""
    told = Told()

    def build(home: Home) -> None:
        usermode_kernel(home, told)
        assert left_over(home) == []

    return built_once(tmp_path_factory, "usermode", told, build)


@pytest.fixture
def kept(home: Home, fetched: Home) -> Home:
    """A home of this test's own with the kernel in its cache."""
    stock(home, fetched)
    return home


@pytest.fixture
def unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No mirror of this host's answers."""
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (parts / "one.list").write_text("deb http://127.0.0.1:9/debian bookworm main\n")
    configuration = tmp_path / "apt.conf"
    configuration.write_text(f'Dir::Etc::sourceparts "{parts}";\nDir::Etc::sourcelist "/dev/null";')
    monkeypatch.setenv("APT_CONFIG", str(configuration))


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The packages that are fetched meanwhile."""
    names: list[str] = []
    download = Apt.download

    def counted(apt: Apt, package: str, *words: object) -> Path:
        names.append(package)
        return download(apt, package, *words)  # type: ignore[arg-type]

    monkeypatch.setattr(Apt, "download", counted)
    return names


def the(home: Home) -> UsermodeKernel:
    kernel = known(home)
    assert kernel is not None
    return kernel


def asked(home: Home, days_ago: float) -> None:
    then = time.time() - days_ago * module.DAY
    os.utime(module.shelf(home) / module.ASKED, (then, then))


def damage(path: Path) -> None:
    """Change a byte of a file, and its times as whoever writes to it does."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


# ── without a network ────────────────────────────────────────────────────────────────────────────


def test_the_newest_suite_has_no_updates_beside_it() -> None:
    said = "".join(
        f"'http://mirror/{path}/dists/{suite}/main/binary-amd64/Packages.xz' file 0 \n"
        for path, suite in (
            ("debian", "bookworm"),
            ("debian", "bookworm-updates"),
            ("debian-security", "bookworm-security"),
        )
    )
    assert sources_for("sid", said) == (Source("http://mirror/debian", "sid"),)


def test_the_interpreter_of_a_program_is_exchanged_in_its_place() -> None:
    program = Path("/bin/sh").read_bytes()
    loader = interpreter(program)
    changed = with_interpreter(program, INTERPRETER)
    assert Path(loader).exists()
    assert str(interpreter(changed)) == INTERPRETER
    assert needed(changed) == needed(program)
    assert len(changed) == len(program)
    assert with_interpreter(changed, str(loader)) == program


def test_there_must_be_room_for_an_interpreter() -> None:
    with pytest.raises(EncampError):
        with_interpreter(Path("/bin/sh").read_bytes(), "/a/much/longer/name/of/a/loader")


def test_what_is_no_program_is_refused() -> None:
    with pytest.raises(EncampError) as raised:
        needed(b"#!/bin/sh\n")
    assert raised.value.code is Code.BUILD_FAILED


def test_libraries_come_with_those_they_need_and_no_others() -> None:
    program = Path("/bin/sh").read_bytes()
    loader = Path(interpreter(program))
    libc = next(loader.resolve().parent.glob("libc.so.6")).read_bytes()
    shared = {loader.name: loader.read_bytes(), "libc.so.6": libc, "libother.so.1": b"odd"}
    assert set(needed_with(program, shared)) == {loader.name, "libc.so.6"}
    del shared["libc.so.6"]
    with pytest.raises(EncampError) as raised:
        needed_with(program, shared)
    assert "libc.so.6" in raised.value.sentence


def test_drivers_for_other_machines_are_left_out() -> None:
    drivers = {name: (f"{name}.ko", f"driver {name}".encode()) for name in (*WANTED, "virtio_blk")}
    archive = modules_archive(Unpacked("7.2.7", b"kernel", drivers, frozenset({"fuse"})))
    assert b"virtio_console.ko\nsquashfs.ko\noverlay.ko\n\0" in archive.replace(b"\0\0", b"\0")
    assert b"virtio_blk" not in archive
    assert b"fuse" not in archive


def test_a_home_without_a_kernel_has_none(home: Home) -> None:
    assert known(home) is None
    assert known(Home(home.root / "not-there")) is None


def test_where_no_program_runs_no_kernel_is_fetched(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC))
    with pytest.raises(EncampError) as raised:
        usermode_kernel(home)
    assert raised.value.code is Code.CONFIGURATION


@pytest.mark.site
@pytest.mark.usefixtures("unreachable")
def test_without_a_kernel_and_a_network_one_is_told_what_to_do(home: Home) -> None:
    with pytest.raises(EncampError) as raised:
        usermode_kernel(home)
    assert raised.value.code is Code.BUILD_FAILED
    assert "no kernel for machines of the driver 'usermode'" in raised.value.sentence
    assert "127.0.0.1: Connection refused" in raised.value.sentence
    assert "mirror" in raised.value.hint
    assert "'make kernel'" in raised.value.hint
    assert raised.value.transient
    assert left_over(home) == []


# ── what was fetched ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.site
def test_every_account_can_read_it(fetched: Home) -> None:
    kernel = the(fetched)
    for path in (kernel.directory, *kernel.directory.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        runs = path.is_dir() or path in (kernel.program, kernel.loader)
        assert mode == (0o755 if runs else 0o644), path
    assert [path.name for path in kernel.libraries.iterdir()] == ["libc.so.6"]
    assert str(interpreter(kernel.program.read_bytes())) == INTERPRETER


@pytest.fixture(scope="session")
def initramfs(fetched: Home, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("usermode-initramfs")
    source, program, made = place / "init.c", place / "init", place / "initramfs"
    source.write_text(INIT)
    words = ["musl-gcc", "-static", "-Os", "-Wall", "-o", str(program), str(source)]
    subprocess.run(words, check=True)
    entries = [*map(cpio.directory, ("dev", "proc"))]
    entries.append(cpio.Entry("dev/console", mode=stat.S_IFCHR | 0o600, device=(5, 1)))
    entries.append(cpio.Entry("init", program.read_bytes(), stat.S_IFREG | 0o755))
    made.write_bytes(cpio.archive(entries) + the(fetched).modules.read_bytes())
    made.chmod(0o644)
    return made


@pytest.mark.site
@pytest.mark.parametrize("seccomp", ["on", "off"])
def test_it_boots_as_another_account(
    fetched: Home, initramfs: Path, tmp_path: Path, seccomp: str
) -> None:
    kernel = the(fetched)
    files = [initramfs, kernel.program, kernel.libraries, kernel.loader]
    place = tmp_path / "machine"
    place.mkdir()
    words: list[str | Path] = ["timeout", "--kill-after=5", "20", "sh", "-c", OPENED, "sh", *files]
    if os.geteuid() == 0:
        shutil.chown(place, "nobody")
        words += ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
    words += ["env", *(f"{name}={value}" for name, value in ENVIRONMENT.items()), "TMPDIR=."]
    words += ["/proc/self/fd/7", "mem=64M", "initrd=/proc/self/fd/6", f"seccomp={seccomp}"]
    words += ["uml_dir=.", "umid=tried", "con0=null,fd:1", "con=null", "ssl=null"]
    words += ["rdinit=/init", "panic=-1", "noreboot", "quiet", *ARGUMENTS]
    done = subprocess.run(words, cwd=place, stdin=subprocess.DEVNULL, capture_output=True)
    said = done.stdout.decode().splitlines()
    assert f"Here is Linux {kernel.release}" in said, done
    assert [f"loaded {name}.ko" for name in WANTED] == [
        line for line in said if line.startswith("loaded")
    ]
    for kind in ("squashfs", "overlay", "fuse", "ext4", "tmpfs", "devtmpfs"):
        assert f"knows {kind}" in said


# ── the cache ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.site
def test_a_kernel_that_is_there_is_used_without_asking_anybody(
    kept: Home, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asks(*words: object, **more: object) -> None:
        raise AssertionError(words)

    monkeypatch.setattr(programs, "run", asks)
    # Nor is it read to the end each time.
    monkeypatch.setattr(hashlib, "sha256", asks)
    assert usermode_kernel(kept, told) == the(kept)
    assert told.what == []


@pytest.mark.site
@pytest.mark.usefixtures("unreachable")
def test_without_a_network_the_kernel_that_is_there_will_do_for_another_day(
    kept: Home, told: Told
) -> None:
    asked(kept, days_ago=2)
    assert usermode_kernel(kept, told) == the(kept)
    assert told.what[-1] == "using the kernel that was fetched earlier"
    again = Told()
    assert usermode_kernel(kept, again) == the(kept)
    assert again.what == []


@pytest.mark.site
def test_the_archive_is_asked_once_a_day(kept: Home, told: Told, downloads: list[str]) -> None:
    asked(kept, days_ago=1.1)
    assert usermode_kernel(kept, told) == the(kept)
    assert told.what[-1] == "kernel ready"
    assert downloads == []
    assert module.was_asked(kept)


@pytest.mark.site
@pytest.mark.usefixtures("unreachable")
@pytest.mark.parametrize("part", ["program", "loader", "modules"])
def test_a_damaged_kernel_is_not_used(kept: Home, part: str) -> None:
    damage(getattr(the(kept), part))
    assert known(kept) is None
    with pytest.raises(EncampError):
        usermode_kernel(kept)


@pytest.mark.site
@pytest.mark.usefixtures("unreachable")
def test_a_kernel_whose_files_were_copied_is_used(kept: Home) -> None:
    before = the(kept)
    for path in before.directory.rglob("*"):
        os.utime(path)
    assert known(kept) is None
    assert usermode_kernel(kept) == before == known(kept)


@pytest.mark.site
@pytest.mark.usefixtures("unreachable")
def test_a_kernel_for_another_encamp_is_not_used(kept: Home) -> None:
    path = the(kept).directory / module.RECORD
    record = msgspec.json.decode(path.read_bytes(), type=module.Record)
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(record, made_for=("other",))))
    assert known(kept) is None


@pytest.mark.site
def test_a_damaged_kernel_is_fetched_again_by_one_of_those_who_want_it(
    kept: Home, downloads: list[str]
) -> None:
    before = the(kept)
    damage(before.program)
    found: list[UsermodeKernel] = []
    both = [
        threading.Thread(target=lambda: found.append(usermode_kernel(kept, Told())))
        for _ in range(2)
    ]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert found == [before, before]
    assert known(kept) == before
    assert downloads == ["user-mode-linux", "libc6"]
    assert left_over(kept) == []


@pytest.mark.site
def test_older_kernels_go_when_a_newer_one_comes(kept: Home, downloads: list[str]) -> None:
    newest = the(kept).directory
    earlier, damaged = (newest.with_name(f"usermode_7.1_{number}") for number in range(2))
    shutil.copytree(newest, damaged)
    damage(damaged / "linux")
    newest.rename(earlier)
    assert the(kept).directory == earlier
    asked(kept, days_ago=2)
    assert usermode_kernel(kept).directory == newest
    assert downloads == ["user-mode-linux", "libc6"]
    # The one that somebody may be about to start stays until the next.
    assert set(module.slots(kept)) == {newest, earlier}
    assert the(kept).directory == newest
