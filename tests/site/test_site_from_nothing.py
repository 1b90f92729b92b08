"""The page that sets up a whole site: each of its commands, on hosts that are namespaces."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from encamp.home import Home
from tests.builds import give_images
from tests.manager.store.postgres import ADMINISTRATOR, PROGRAMS, ROLE, PostgreSQL, postgresql
from tests.site.siting import ENCAMP, PATIENCE, Daemon, root_only

pytestmark = [pytest.mark.site, root_only]

PAGE = Path(__file__).parents[2] / "docs" / "site-from-nothing.md"
LINE = re.compile(r"(?:postgres@)?([a-z0-9]+)[#$>] ?(.*)")
MAIN = "/var/lib/postgresql/15/main"
HOSTS = ("bus", "mgr1", "mgr2", "node1", "login")
UNITS = {
    "nats-server": ["/usr/sbin/nats-server", "-c", "/etc/nats-server.conf"],
    "encamp-manager": [str(ENCAMP), "manager", "--verbose"],
    "encamp-agent": [str(ENCAMP), "agent", "--verbose"],
}

MAKE = """
set -e
mount -t tmpfs tmpfs "$PLACE"
for name in etc var/lib; do
    mkdir -p "$PLACE/$name/up" "$PLACE/$name/work"
    mount -t overlay overlay "/$name" \
        -o "lowerdir=/$name,upperdir=$PLACE/$name/up,workdir=$PLACE/$name/work"
done
mount -t tmpfs -o mode=755 tmpfs /run
rm -rf /etc/encamp /var/lib/encamp
cp "$NAMES" /etc/hosts
hostname "$NAME"
ip link set lo up
echo ready
cat
"""
SCP = """#!/bin/sh -e
for to; do :; done
host=${to%%:*} path=${to#*:}
root=$(cat "HOSTS/$host")
case "$path" in
    MAIN/*) path="DATA/${path##*/}" ;;
esac
for from; do
    case "$from" in -*|"$to") ;; *) cp -r --preserve=mode "$from" "$root$path" ;; esac
done
"""
SSH = """#!/bin/sh -e
root=$(cat "HOSTS/$1"); shift
exec nsenter --net="${root%root}ns/net" --mount="${root%root}ns/mnt" \
    --uts="${root%root}ns/uts" "$@"
"""


class Hosts:
    """Each has its own network, name, /etc, /var/lib and /run."""

    def __init__(self, root: Path) -> None:
        number = os.getpid() % 10_000
        self.root = root
        self.bridge = f"ecsn{number}"
        self.network = f"10.{214 + number % 40}.{number % 250}"
        self.holders: dict[str, subprocess.Popen[bytes]] = {}
        self.daemons: dict[tuple[str, str], Daemon] = {}
        self.database: PostgreSQL

    def lay(self) -> None:
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("address", "add", f"{self.network}.1/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")
        names = [f"{self.network}.{n} {name}.example.org" for n, name in enumerate(HOSTS, 2)]
        listed = ["127.0.0.1 localhost", f"{self.network}.1 db.example.org", *names]
        (self.root / "names").write_text("\n".join([*listed, ""]))
        (self.root / "hosts").mkdir()
        (self.root / "hosts" / "db.example.org").write_text("")
        for n, name in enumerate(HOSTS, 2):
            self._hold(n, name)

    def _hold(self, n: int, name: str) -> None:
        place = self.root / name
        place.mkdir()
        made = {"PLACE": str(place), "NAME": name, "NAMES": str(self.root / "names")}
        holder = self.holders[name] = subprocess.Popen(
            ["unshare", "--net", "--mount", "--uts", "--propagation", "private", "sh", "-c", MAKE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **made},
        )
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        here, there = f"{self.bridge}.{n}", f"ect{self.bridge}{n}"[-15:]
        _ip("link", "add", here, "type", "veth", "peer", "name", there)
        _ip("link", "set", there, "netns", str(holder.pid))
        _ip("link", "set", here, "master", self.bridge, "up")
        inside = self.inside(name)
        for words in (
            ["ip", "address", "add", f"{self.network}.{n}/24", "dev", there],
            ["ip", "link", "set", there, "up"],
        ):
            subprocess.run([*inside, *words], check=True, capture_output=True)
        (self.root / "hosts" / f"{name}.example.org").write_text(str(self.files(name)))

    def files(self, name: str) -> Path:
        return Path(f"/proc/{self.holders[name].pid}/root")

    def inside(self, name: str) -> list[str]:
        if name == "db":
            return []
        pid = str(self.holders[name].pid)
        return ["nsenter", "--target", pid, "--net", "--mount", "--uts"]

    @property
    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("ENCAMP_")}
        programs = [self.root / "bin", ENCAMP.parent, PROGRAMS, "/usr/sbin", os.environ["PATH"]]
        return {
            **kept,
            "PATH": ":".join(map(str, programs)),
            "PGHOST": str(self.database.directory),
            "PGPORT": str(self.database.port),
            "PGUSER": ADMINISTRATOR,
            # What root's own account has is not the test's business.
            "ENCAMP_USER_CONFIG": "/run/encamp-user",
            "ENCAMP_QUIET": "1",
            "COLUMNS": "200",
        }

    def write_programs(self) -> None:
        """What goes from host to host, here."""
        places = {"HOSTS": str(self.root / "hosts"), "DATA": str(self.database.data), "MAIN": MAIN}
        (self.root / "bin").mkdir()
        for name, text in (("scp", SCP), ("ssh", SSH)):
            program = self.root / "bin" / name
            for word, place in places.items():
                text = text.replace(word, place)
            program.write_text(text)
            program.chmod(0o755)

    def run(self, host: str, script: str) -> str:
        if host == "db":
            script = script.replace(MAIN, str(self.database.data))
        done = subprocess.run(
            [*self.inside(host), "sh", "-ec", script],
            cwd="/",
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            check=False,
        )
        said = "\n".join(daemon.said()[-2000:] for daemon in self.daemons.values())
        assert done.returncode == 0, f"{host}: {script}\n{done.stdout}\n{done.stderr}\n{said}"
        return done.stdout

    def control(self, host: str, words: list[str]) -> None:
        """What systemd would do."""
        unit = words[-1]
        daemon = self.daemons.get((host, unit))
        if "stop" in words:
            assert daemon is not None
            daemon.stop()
            return
        if daemon is None:
            # Nothing else: the suite's own variables would send it to another home.
            variables = [f"{name}={value}" for name, value in self.environment.items()]
            command = [*self.inside(host), "env", "--ignore-environment", *variables, *UNITS[unit]]
            daemon = Daemon(command, {}, self.root / f"{host}-{unit}.log")
            self.daemons[host, unit] = daemon
        daemon.start()
        if unit == "encamp-manager":
            self.until(host, "encamp status || true", "epoch")

    def until(self, host: str, script: str, shown: str) -> str:
        end = time.monotonic() + PATIENCE
        while shown not in (printed := self.run(host, script)):
            assert time.monotonic() < end, printed
            time.sleep(0.1)
        return printed

    def end_daemons(self) -> None:
        for daemon in reversed(list(self.daemons.values())):
            daemon.end()

    def remove(self) -> None:
        for holder in self.holders.values():
            assert holder.stdin is not None
            holder.stdin.close()
            holder.wait(timeout=PATIENCE)
            assert holder.stdout is not None
            holder.stdout.close()
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True, check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def hosts(root: Path) -> Iterator[Hosts]:
    with ExitStack() as held:
        made = Hosts(root)
        held.callback(made.remove)
        made.lay()
        made.database = held.enter_context(postgresql(host=f"{made.network}.1", port=5432))
        with made.database.administrator() as connection:
            connection.execute(f"DROP ROLE {ROLE}")
        held.callback(made.end_daemons)
        made.write_programs()
        yield made


def blocks() -> list[tuple[str, list[str]]]:
    """The commands of the page: the host of each block, and its lines."""
    found = []
    for block in PAGE.read_text().split("```")[1::2]:
        matches = [LINE.fullmatch(line) for line in block.strip().splitlines()]
        assert all(matches), block
        names = {match[1] for match in matches if match}
        assert len(names) == 1, block
        found.append((names.pop(), [match[2] for match in matches if match]))
    return found


def test_every_command_of_the_page_sets_up_a_site_that_works(
    tmp_path: Path, site_home: Home
) -> None:
    shown: dict[str, str] = {}
    with hosts(tmp_path) as site:
        give_images(Home(site.files("node1") / "var/lib/encamp").prepare(), site_home)
        for host, lines in blocks():
            before: list[str] = []
            for line in lines:
                words = line.split()
                if words[:1] == ["systemctl"]:
                    site.run(host, "\n".join(before))
                    before = []
                    site.control(host, words)
                elif line == "encamp hosts":
                    site.until(host, f"{line} || true", "joined")
                else:
                    # Accounts are the same on all hosts of a site: here there is one.
                    before.append(line.replace("--owner alice", "--owner root"))
            printed = site.run(host, "\n".join(before))
            shown[lines[-1]] = printed
        assert shown["encamp run -- echo it works"] == "it works\n"
        assert shown["encamp run -- echo it still works"] == "it still works\n"
        assert "this one stands by" in shown["encamp status"]
        assert "mgr2 since" in shown["encamp status"]
