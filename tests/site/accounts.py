"""Ordinary accounts of the host, made for a test, that can run this tree's `encamp`.

The tree and its virtual environment may lie where others cannot enter, so what the accounts need
of them is copied to a place of theirs.
"""

from __future__ import annotations

import os
import pwd
import re
import secrets
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from encamp.home import Home
from tests.conftest import ROOT

SYSTEM_PYTHON = "/usr/bin/python3"
PATHS = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class Account:
    name: str
    uid: int
    gid: int
    directory: Path
    """Its home directory."""
    python: str
    library: Path

    @property
    def home(self) -> Home:
        """Where its Encamp keeps things, by default."""
        return Home(self.directory / ".local" / "share" / "encamp")

    @property
    def variables(self) -> dict[str, str]:
        """What its programs are told."""
        return {
            "HOME": str(self.directory),
            "PATH": PATHS,
            "PYTHONPATH": str(self.library),
            # What one account has compiled would have to be trusted by the others.
            "PYTHONPYCACHEPREFIX": str(self.directory / ".cache" / "python"),
        }

    def run(
        self, *command: str | Path, variables: dict[str, str] | None = None, input: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a program as this account."""
        return subprocess.run(
            command,
            input=input,
            capture_output=True,
            timeout=120,
            cwd=self.directory,
            env=self.variables | (variables or {}),
            user=self.uid,
            group=self.gid,
            extra_groups=[],
            check=False,
        )

    def encamp(
        self, *words: str | Path, check: bool = True, variables: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        done = self.run(self.python, "-m", "encamp.cli.main", *words, variables=variables)
        if check:
            assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stderr.decode()}"
        return done

    def script(self, text: str, *words: str | Path) -> bytes:
        """Run a piece of Python as this account; what it printed."""
        done = self.run(self.python, "-c", text, *words)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout


@contextmanager
def accounts(count: int, place: Path, home: Home) -> Iterator[list[Account]]:
    """So many accounts, each with the images of `home`. Needs root."""
    library = place / "library"
    copy_library(library)
    with ExitStack() as held:
        yield [held.enter_context(one_account(place, library, home)) for _ in range(count)]


@contextmanager
def one_account(place: Path, library: Path, home: Home) -> Iterator[Account]:
    name = f"camper-{secrets.token_hex(4)}"
    command = ["useradd", "--no-create-home", "--home-dir", str(place / name), "--user-group", name]
    subprocess.run(command, check=True, capture_output=True)
    try:
        account = furnish(name, place / name, library, home)
        try:
            yield account
        finally:
            account.encamp("kill-all", check=False)
    finally:
        subprocess.run(["userdel", name], check=True, capture_output=True)


def furnish(name: str, directory: Path, library: Path, home: Home) -> Account:
    directory.mkdir(mode=0o755)
    entry = pwd.getpwnam(name)
    account = Account(name, entry.pw_uid, entry.pw_gid, directory, "", library)
    account.home.root.mkdir(parents=True)
    shutil.copytree(home.images, account.home.images)
    for path in (directory, *directory.rglob("*")):
        os.chown(path, account.uid, account.gid, follow_symlinks=False)
    return Account(name, entry.pw_uid, entry.pw_gid, directory, usable_python(account), library)


def usable_python(account: Account) -> str:
    """This interpreter, or the system's if this one lies where the account cannot reach it."""
    candidates = [getattr(sys, "_base_executable", sys.executable), SYSTEM_PYTHON]
    for python in candidates:
        try:
            if account.run(python, "-c", "import encamp.cli.main").returncode == 0:
                return python
        except PermissionError:
            continue
    raise AssertionError(f"other users can run Encamp with none of {candidates}")


def copy_library(library: Path) -> None:
    """This tree's Encamp with its two programs, and what it needs at run time."""
    hidden = shutil.ignore_patterns("__pycache__", "program", "launch")
    shutil.copytree(ROOT / "src" / "encamp", library / "encamp", ignore=hidden)
    site = Path(sysconfig.get_path("purelib"))
    for name in required("encamp", set()):
        for file in distribution(name).files or ():
            source = site / file
            if ".." not in file.parts and source.suffix != ".pyc" and source.is_file():
                target = library / file
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)


def required(name: str, seen: set[str], extras: str = "") -> set[str]:
    """The packages that one needs to run, with these extras, and those need, less itself."""
    for requirement in distribution(name).requires or ():
        words = re.match(r"([A-Za-z0-9._-]+)(?:\[([^]]*)\])?", requirement)
        only = re.search(r"extra == ['\"]([^'\"]*)", requirement)
        if words is None or words[1] in seen or (only and only[1] not in extras.split(",")):
            continue
        try:
            distribution(words[1])
        except PackageNotFoundError:
            continue  # Needed by other systems or other Pythons.
        seen.add(words[1])
        required(words[1], seen, words[2] or "")
    return seen
