"""A Salt master and its minions, to compare with: from PyPI, in a virtual environment of their own.

Everything lies below the benchmark's own directory and listens on the loopback address; a Salt that
the host may have is neither used nor changed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml

from bench.measure import ImpossibleError
from bench.network import free_ports, listens
from bench.processes import running, wait_until

ROOT = Path(__file__).parent.parent
INSTALLED = ROOT / ".cache" / "salt"
QUESTIONS = Path(__file__).parent / "salt_questions.py"
JOINING = 300.0
"""Seconds for all minions to start, make their keys and be accepted."""

FUNCTION = '''\
def value(size, round):
    """As many characters as asked for, other ones each time."""
    return str(round).ljust(size, "x")
'''


def installed() -> Path:
    """The directory of Salt's programs, installed when first asked for."""
    programs = INSTALLED / "bin"
    if not (programs / "salt-master").exists():
        print("Installing Salt, which takes a minute or two.", file=sys.stderr)
        _call(sys.executable, "-m", "venv", "--clear", str(INSTALLED))
        pip = (programs / "python", "-m", "pip", "--disable-pip-version-check", "--quiet")
        _call(*pip, "install", "salt")
    return programs


def _call(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        raise ImpossibleError(f"Salt cannot be installed here: {' '.join(last)}")
    return done.stdout.strip()


class Master:
    """A master that can be asked to ask its minions."""

    def __init__(self, pid: int, asker: subprocess.Popen[str]) -> None:
        self.pid = pid
        self._asker = asker

    def ask(self, size: int) -> int:
        """All minions, for a value of so many characters; how many returned one."""
        assert self._asker.stdin is not None
        assert self._asker.stdout is not None
        self._asker.stdin.write(f"{size}\n")
        self._asker.stdin.flush()
        answer = self._asker.stdout.readline().split()
        if not answer:
            raise ImpossibleError("Salt's client ended.")
        return int(answer[-1])


def version(programs: Path) -> str:
    return _call(programs / "salt-master", "--version").removeprefix("salt-master ")


@contextmanager
def salt_master(directory: Path, minions: int) -> Iterator[Master]:
    """A master with so many minions, all of which have answered once."""
    programs = installed()
    modules = directory / "modules"
    modules.mkdir(parents=True)
    (modules / "encamp_bench.py").write_text(FUNCTION)
    publish, receive = free_ports(2)
    with ExitStack() as stack:

        def start(role: str, name: str, settings: dict[str, object]) -> subprocess.Popen[bytes]:
            place = directory / name
            place.mkdir()
            settings |= {"root_dir": str(place), "publish_port": publish, "log_level": "error"}
            (place / role).write_text(yaml.safe_dump(settings))
            command: list[str | Path] = [programs / f"salt-{role}", "-c", place]
            return stack.enter_context(running(command, directory / f"{name}.log", grace=0))

        accepting: dict[str, object] = {"auto_accept": True, "ret_port": receive}
        master = start("master", "master", {"interface": "127.0.0.1", **accepting})
        wait_until("Salt's master did not listen", lambda: listens(receive))
        for number in range(minions):
            settings: dict[str, object] = {
                "id": f"minion{number}",
                "master": "127.0.0.1",
                "master_port": receive,
                # A thread for each question instead of a process: not the minions are measured.
                "multiprocessing": False,
                "module_dirs": [str(modules)],
            }
            start("minion", f"minion{number}", settings)
        # Without -P it would take this file for Salt.
        asking: list[str | Path] = [
            programs / "python",
            "-P",
            QUESTIONS,
            directory / "master" / "master",
        ]
        log = stack.enter_context((directory / "asker.log").open("wb"))
        asker = subprocess.Popen(
            asking, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        stack.enter_context(asker)
        stack.callback(asker.kill)
        found = Master(master.pid, asker)
        wait_until("Salt's minions did not all answer", lambda: found.ask(1) == minions, JOINING)
        yield found
