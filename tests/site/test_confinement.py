"""A machine's process reaches its own machine and no more, whoever has taken it over.

Each attack is made inside the real process, with system calls that its guest would make after an
escape from QEMU.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import socket
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from encamp.home import Home
from tests.conftest import ENCAMP, Encamp, left_behind, machine_processes, share_servers
from tests.site.accounts import Account, accounts
from tests.site.injection import Inside, inside

pytestmark = [
    pytest.mark.site,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can take any process over"),
]

REFUSED: set[str | int] = {"EACCES", "EPERM"}
EVERYTHING = mmap.PROT_READ | mmap.PROT_WRITE


@pytest.fixture(scope="module")
def camper(site_home: Home) -> Iterator[Account]:
    before = os.umask(0o022)
    try:
        with tempfile.TemporaryDirectory(prefix="encamp-confined-") as name:
            Path(name).chmod(0o755)
            with accounts(1, Path(name), site_home) as made:
                yield made[0]
    finally:
        os.umask(before)


@pytest.fixture
def alice(camper: Account) -> Iterator[Account]:
    yield camper
    camper.encamp("kill-all")
    assert left_behind(camper.home) == []


def own(account: Account, path: Path, content: str | None = None) -> Path:
    """A file of an account's, or a directory."""
    if content is None:
        path.mkdir()
    else:
        path.write_text(content)
    os.chown(path, account.uid, account.gid)
    return path


def lose_landlock() -> None:
    """From now on this process and its children are on a kernel without it."""
    load, unless_equal, give = 0x20, 0x15, 0x06
    refuse, allow = 0x00050000 | errno.ENOSYS, 0x7FFF0000
    steps = [(load, 0, 0, 0), (unless_equal, 0, 1, 444), (give, 0, 0, refuse), (give, 0, 0, allow)]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    program = struct.pack("H6xP", len(steps), ctypes.addressof(held := ctypes.c_buffer(code)))
    done = ctypes.CDLL(None).prctl(22, 2, ctypes.c_buffer(program))
    assert (done, len(held)) == (0, len(code) + 1)


def assert_memory_is_out_of_reach(taken: Inside) -> None:
    files = Path(f"/proc/{taken.pid}/fd")
    held = [int(fd.name) for fd in files.iterdir() if fd.readlink().name == "memory"]
    assert held
    path = (files / str(held[0])).readlink()
    names: list[str] = [str(path), *(f"/proc/self/fd/{fd}" for fd in held)]
    for name in names:
        for way in (os.O_RDWR, os.O_WRONLY, os.O_RDWR | os.O_TRUNC, os.O_RDONLY | os.O_TRUNC):
            assert taken("open", name, way) in REFUSED
        assert taken("chmod", name, 0o666) in REFUSED
        assert taken("truncate", name, 0) in REFUSED
    for fd in held:
        flags = taken("fcntl", fd, fcntl.F_GETFL)
        assert isinstance(flags, int)
        assert flags & os.O_ACCMODE == os.O_RDONLY
        assert taken("mmap", 0, 4096, EVERYTHING, mmap.MAP_SHARED, fd, 0) in REFUSED
        shared = taken("mmap", 0, 4096, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        assert isinstance(shared, int)
        assert taken("mprotect", shared, 4096, EVERYTHING) in REFUSED


def test_memory_that_others_map_is_out_of_reach(
    encamp: Encamp, site_home: Home, alice: Account
) -> None:
    encamp("start", "--name", "a")
    alice.encamp("start", "--name", "a")
    for home in (site_home, alice.home):
        (pid,) = machine_processes(home)
        with inside(pid) as taken:
            assert_memory_is_out_of_reach(taken)
    assert encamp("exec", "a", "--", "echo", "here").stdout == b"here\n"
    assert alice.encamp("run", "--", "echo", "here").stdout == b"here\n"
    encamp("kill-all")


def test_disk_that_others_are_over_is_out_of_reach(alice: Account) -> None:
    options = ("--disk", "64M", "--storage", "qcow2")
    alice.encamp("start", "--name", "a", *options)
    (pid,) = machine_processes(alice.home)
    (base,) = alice.home.templates.glob("*/disk.base")
    with inside(pid) as taken:
        names = [fd for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.readlink().exists()]
        same = [fd for fd in names if fd.samefile(base)]
        assert same
        for name in (str(base), *(f"/proc/self/fd/{fd.name}" for fd in same)):
            assert taken("chmod", name, 0o666) in REFUSED
            assert taken("open", name, os.O_RDWR) in REFUSED
    assert (
        alice.encamp("exec", "a", "--", "sh", "-c", "echo here >/tmp/x; cat /tmp/x").stdout
        == b"here\n"
    )


def test_files_of_its_owner_are_out_of_reach(alice: Account) -> None:
    secret = own(alice, alice.directory / ".secret", "of alice's")
    profile = own(alice, alice.directory / ".profile", "echo hello")
    shared = own(alice, alice.directory / "shared-files")
    fixed = own(alice, alice.directory / "fixed")
    word = own(alice, fixed / "word", "as it was")
    words = ("--share", f"{shared}:/shared", "--share", f"{fixed}:/fixed:ro")
    alice.encamp("start", "--name", "a", *words)
    (machine,), (server,) = machine_processes(alice.home), share_servers(alice.home)
    (record,) = alice.home.machines.glob("*/machine.json")
    template = next(alice.home.templates.glob("*/template.json"))
    closed = (secret, profile, record, template)
    for pid, files in ((machine, (*closed, word)), (server, closed)):
        with inside(pid) as taken:
            for path in files:
                for way in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC):
                    assert taken("open", path, way) in REFUSED
                assert taken("truncate", path, 0) in REFUSED
                assert taken("unlink", path) in REFUSED
                assert taken("rename", path, shared / "stolen") in {*REFUSED, "EXDEV"}
            for directory in (alice.directory, Path("/tmp"), Path("/dev/shm"), record.parent):
                assert taken("open", directory / "new", os.O_WRONLY | os.O_CREAT, 0o600) in REFUSED
                assert taken("symlink", "/bin/sh", directory / "new") in REFUSED
                assert taken("open", directory, os.O_RDONLY | os.O_DIRECTORY) in REFUSED
    with inside(machine) as taken:
        assert taken("open", shared / "made", os.O_WRONLY | os.O_CREAT, 0o600) in REFUSED
        assert taken("open", shared, os.O_RDONLY | os.O_DIRECTORY) in REFUSED
    with inside(server) as taken:
        assert isinstance(taken("open", word, os.O_RDONLY), int)
        assert taken("open", word, os.O_RDWR) in REFUSED
        assert taken("open", fixed / "new", os.O_WRONLY | os.O_CREAT, 0o600) in REFUSED
        made = taken("open", shared / "made", os.O_WRONLY | os.O_CREAT, 0o600)
        assert isinstance(made, int)
    assert profile.read_text() == "echo hello"
    done = alice.encamp("exec", "a", "--", "sh", "-c", "cat /fixed/word; mv /shared/made /shared/b")
    assert done.stdout == b"as it was"
    assert [path.name for path in shared.iterdir()] == ["b"]


def test_modes_of_files_are_out_of_reach_without_a_share_to_write_to(alice: Account) -> None:
    secret = own(alice, alice.directory / ".private", "of alice's")
    secret.chmod(0o600)
    alice.encamp("start", "--name", "a", "--share", f"{own(alice, alice.directory / 'ro')}:/s:ro")
    for pid in machine_processes(alice.home) + share_servers(alice.home):
        with inside(pid) as taken:
            assert taken("chmod", secret, 0o644) in REFUSED
            assert taken("utimensat", 0, secret, 0, 0) in REFUSED
            assert taken("removexattr", secret, "user.x") in REFUSED
            assert taken("inotify_init1", 0) in REFUSED
    alice.encamp("start", "--name", "b", "--share", f"{own(alice, alice.directory / 'rw')}:/s")
    for pid in machine_processes(alice.home):
        with inside(pid) as taken:
            assert taken("chmod", secret, 0o644) in REFUSED
            assert taken("utimensat", 0, secret, 0, 0) in REFUSED
            assert taken("removexattr", secret, "user.x") in REFUSED
            assert taken("inotify_init1", 0) in REFUSED
            assert taken("fanotify_init", 0x602, 0) in REFUSED


def test_share_server_reaches_no_other_process_and_no_network(
    encamp: Encamp, site_home: Home, alice: Account, tmp_path: Path
) -> None:
    encamp("start", "--name", "a", "--share", tmp_path)
    alice.encamp("start", "--name", "a", "--share", own(alice, alice.directory / "shared"))
    for home in (site_home, alice.home):
        (machine,), (server,) = machine_processes(home), share_servers(home)
        with inside(server) as taken:
            for name in ("mem", "environ", "maps", "root/etc/passwd", "cwd/console"):
                assert taken("open", f"/proc/{machine}/{name}", os.O_RDONLY) in REFUSED
            assert taken("ptrace", 0x4206, machine, 0, 0) in REFUSED
            assert taken("kill", machine, 0) in REFUSED
            assert taken("fork") in REFUSED
            assert taken("execve", "/usr/bin/id", 0, 0) in REFUSED
            assert taken("unshare", 0x10000000) in REFUSED
            assert taken("chroot", "/") in REFUSED
            for kind in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK):
                assert taken("socket", kind, 2, 0) in REFUSED
    encamp("kill-all")


def test_other_machines_of_the_same_account_are_out_of_reach(
    encamp: Encamp, site_home: Home, tmp_path: Path
) -> None:
    encamp("start", "--name", "a")
    (first,) = machine_processes(site_home)
    encamp("start", "--name", "b", "--share", tmp_path)
    (second,) = (pid for pid in machine_processes(site_home) if pid != first)
    for attacker, victim in ((first, second), (second, first)):
        with inside(attacker) as taken:
            for name in ("mem", "environ", "maps", "root/etc/passwd", "cwd/console"):
                assert taken("open", f"/proc/{victim}/{name}", os.O_RDONLY) in REFUSED
            assert taken("ptrace", 0x4206, victim, 0, 0) in REFUSED
            assert taken("process_vm_writev", victim, 0, 0, 0, 0) in REFUSED
            assert taken("prlimit64", victim, 0, 0, 0) in REFUSED
            assert taken("kill", victim, 0) in REFUSED
            assert taken("kill", -1, 0) in REFUSED
            pidfd = taken("pidfd_open", victim, 0)
            assert isinstance(pidfd, int)
            assert taken("pidfd_send_signal", pidfd, 0, 0, 0) in REFUSED
            assert taken("fcntl", 0, fcntl.F_SETOWN, victim) in REFUSED
            for call in ("setpriority", "sched_setscheduler", "sched_setattr", "sched_setaffinity"):
                assert taken(call, 0, victim, 19) in REFUSED
            assert taken("ioprio_set", 1, victim, 3 << 13) in REFUSED
            for call in ("semget", "msgget"):
                assert taken(call, 0x456E, 0, 0) in REFUSED
            assert taken("mq_unlink", "queue") in REFUSED
            assert taken("shmget", 0, 4096, 0o1600) in REFUSED
            assert taken("keyctl", 0, -3, 0) in REFUSED
            assert taken("kill", attacker, 0) == 0
    for name in ("a", "b"):
        assert encamp("exec", name, "--", "echo", "here").stdout == b"here\n"
    encamp("kill-all")


@pytest.mark.parametrize(
    ("network", "allowed"), [("none", set()), ("user", {socket.AF_INET, socket.AF_INET6})]
)
def test_sockets_are_those_of_the_machines_network(
    encamp: Encamp, site_home: Home, network: str, allowed: set[socket.AddressFamily]
) -> None:
    encamp("start", "--name", "a", "--network", network)
    (pid,) = machine_processes(site_home)
    kinds = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK, socket.AF_PACKET)
    with inside(pid) as taken:
        made = {kind for kind in kinds if isinstance(taken("socket", kind, 2, 0), int)}
        # A pair is enough to send something to any socket that has a name.
        assert taken("socketpair", socket.AF_UNIX, 2, 0, 0) in REFUSED
    assert made == allowed
    encamp("kill-all")


def test_without_landlock_machines_do_as_well_and_the_host_says_so(
    encamp_environment: dict[str, str], site_home: Home, nothing_left: None
) -> None:
    def encamp(*words: str) -> bytes:
        return subprocess.run(
            [ENCAMP, *words],
            env={**os.environ, **encamp_environment},
            preexec_fn=lose_landlock,
            capture_output=True,
            check=True,
        ).stdout

    assert encamp("accelerator").splitlines()[-1] == b"confinement: none"
    encamp("start", "--name", "a")
    (first,) = machine_processes(site_home)
    encamp("start", "--name", "b")
    (second,) = (pid for pid in machine_processes(site_home) if pid != first)
    with inside(first) as taken:
        assert_memory_is_out_of_reach(taken)
        assert taken("kill", second, 0) in REFUSED
        assert taken("socket", socket.AF_UNIX, 1, 0) in REFUSED
    assert encamp("exec", "b", "--", "echo", "here") == b"here\n"
    encamp("kill-all")
