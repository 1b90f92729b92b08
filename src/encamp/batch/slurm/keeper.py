"""Keeps the hosts of a private site: python -I -S keeper.py DIRECTORY DESCRIPTOR [remove]

Each host has mounts and a host name of its own. Its mounts carry a mark that everything started in
it inherits, whatever it becomes, and by which it is found again and ended: when the site is closed,
and as soon as whoever opened it is gone, however that came about. `remove`: the directory, too.
Uses nothing but Python's own library, so that it is there at once.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

NEW_MOUNTS, NEW_NAME = 0x20000, 0x4000000
BIND, RECURSIVE, PRIVATE, NO_SUID, NO_DEVICES = 4096, 16384, 1 << 18, 2, 4
DEATH_SIGNAL = 1
"""Of unshare(2), mount(2) and prctl(2)."""

POLITE = 20.0
"""Seconds that a program is given to end by itself before the site is swept."""
STUBBORN = 30.0
"""Seconds until all that was killed is gone."""
OWN = ("etc", "run", "log", "state", "spool", "munge", "accounts")
"""What a site makes in its directory."""
GROUPS = Path("/sys/fs/cgroup")

DEAF = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)

LIBC = ctypes.CDLL(None, use_errno=True)


def mark(directory: str) -> str:
    return f"encamp-site:{directory}"


def members(directory: str) -> list[int]:
    """Every process of the site in this directory."""
    found = []
    word = os.fsencode(f" {mark(directory)} ")
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and word in Path(f"/proc/{name}/mountinfo").read_bytes():
                found.append(int(name))
        except OSError:
            continue  # It has just ended.
    return found


def sweep(directory: str, names: list[str]) -> None:
    """End all processes of a site, and remove what it made."""
    end = time.monotonic() + STUBBORN
    while (left := members(directory)) and time.monotonic() < end:
        thaw(names)
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.005)
        reap()
    remove_groups(names)
    for name in OWN:
        shutil.rmtree(Path(directory, name), ignore_errors=True)


def remove_empty(directory: str) -> None:
    """What somebody else has put there stays, and so does the directory."""
    try:
        Path(directory).rmdir()
    except OSError:
        return


def control_groups(names: list[str]) -> list[Path]:
    """The control groups that Slurm makes for nodes of these names, those inside others last."""
    tops = [top for name in names for top in GROUPS.glob(f"*/slurm_{name}")]
    return [Path(place) for top in tops for place, _, _ in os.walk(top)]


def thaw(names: list[str]) -> None:
    """What is frozen cannot even be killed."""
    for group in control_groups(names):
        try:
            (group / "freezer.state").write_text("THAWED")
        except OSError:
            continue


def remove_groups(names: list[str]) -> None:
    for group in reversed(control_groups(names)):
        try:
            group.rmdir()
        except OSError:
            continue


def call(result: int, what: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    words = (source.encode(), target.encode(), kind.encode())
    call(LIBC.mount(*words, ctypes.c_ulong(flags), options.encode()), f"mount {target}")


def make_private(place: Path, source: str) -> None:
    """An empty directory there, also where the machine has none. Its neighbours are as they were;
    but nobody who removes the machine's own can take this one away."""
    former = os.open(place.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    neighbours = [path for path in place.parent.iterdir() if path != place]
    mount(source, str(place.parent), "tmpfs", NO_SUID | NO_DEVICES, "mode=755")
    for path in neighbours:
        try:
            show_again(Path(f"/proc/self/fd/{former}", path.name), path)
        except FileNotFoundError:
            continue
    place.mkdir(mode=0o755)
    os.close(former)


def show_again(former: Path, path: Path) -> None:
    if former.is_symlink():
        path.symlink_to(former.readlink())
        return
    if former.is_dir():
        path.mkdir()
    else:
        path.touch()
    mount(str(former), str(path), "", BIND | RECURSIVE)


def reap() -> set[int]:
    """Children that have ended."""
    ended = set()
    try:
        while child := os.waitpid(-1, os.WNOHANG)[0]:
            ended.add(child)
    except ChildProcessError:
        pass
    return ended


class Keeper:
    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.hosts: dict[str, tuple[int, int]] = {}
        """Descriptors of each one's mounts and name."""
        self.started: list[int] = []
        """Programs to be ended politely, before all others."""

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        try:
            if "host" in asked:
                return {"descriptors": self.make(asked["host"], asked["private"], asked["bound"])}
            if "start" in asked:
                return {"pid": self.start(asked)}
            return {"members": members(self.directory)}
        except OSError as error:
            return {"error": str(error)}

    def make(self, name: str, private: list[str], bound: dict[str, str]) -> tuple[int, int]:
        """A host of this name: `private` directories are empty there, others see a file of the
        site's in place of the machine's."""
        ready, tell = os.pipe()
        stay, release = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(release)
            try:
                call(LIBC.unshare(NEW_MOUNTS | NEW_NAME), "unshare")
                mount("none", "/", "", RECURSIVE | PRIVATE)
                for place in private:
                    make_private(Path(place), mark(self.directory))
                for target, source in bound.items():
                    mount(source, target, "", BIND)
                if name:
                    socket.sethostname(name)
                os.write(tell, b"ok")
            except OSError as error:
                os.write(tell, str(error).encode())
            os.read(stay, 1)
            os._exit(0)
        os.close(tell)
        os.close(stay)
        try:
            said = os.read(ready, 1000).decode()
            if said != "ok":
                raise OSError(said)
            made = tuple(
                os.open(f"/proc/{child}/ns/{kind}", os.O_RDONLY) for kind in ("mnt", "uts")
            )
            self.hosts[name] = (made[0], made[1])
        finally:
            os.close(ready)
            os.close(release)
            os.waitpid(child, 0)
        return self.hosts[name]

    def start(self, asked: dict[str, Any]) -> int:
        """A program in a host. It ends with this one."""
        mounts, name = self.hosts[asked["in"]]
        log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        child = os.fork()
        if child:
            os.close(log)
            if asked["polite"]:
                self.started.append(child)
            return child
        try:
            os.setsid()
            LIBC.prctl(DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
            signal.set_wakeup_fd(-1)
            for number in (*DEAF, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            call(LIBC.setns(mounts, 0), "setns")
            call(LIBC.setns(name, 0), "setns")
            os.chdir("/")
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            words = asked["start"]
            os.execvpe(words[0], words, asked["environment"])
        except OSError as error:
            os.write(log, f"{asked['start'][0]}: {error}\n".encode())
        finally:
            os._exit(127)

    def reap(self) -> None:
        ended = reap()
        self.started = [child for child in self.started if child not in ended]

    def end(self) -> None:
        for child in reversed(self.started):
            try:
                os.kill(child, signal.SIGTERM)
            except ProcessLookupError:
                continue
        end = time.monotonic() + POLITE
        while time.monotonic() < end and self.started:
            self.reap()
            time.sleep(0.005)
        sweep(self.directory, list(self.hosts))


def main() -> None:
    directory, descriptor = sys.argv[1], int(sys.argv[2])
    # A key at the terminal is for whoever opened the site, and closes it if it should.
    for number in DEAF:
        signal.signal(number, signal.SIG_IGN)
    awake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    keeper = Keeper(directory)
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    while True:
        ready, _, _ = select.select([descriptor, awake], [], [])
        if awake in ready:
            os.read(awake, 1000)
            keeper.reap()
        if descriptor in ready:
            asked = control.recv(1 << 20)
            if not asked:
                break
            control.send(json.dumps(keeper.answer(json.loads(asked))).encode())
    keeper.end()
    if sys.argv[3:] == ["remove"]:
        remove_empty(directory)


if __name__ == "__main__":
    main()
