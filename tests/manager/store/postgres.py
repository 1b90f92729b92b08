"""A PostgreSQL server of the tests' own: made in a temporary directory, removed whatever happens.

with postgresql() as server, server.database() as url: ...
"""

from __future__ import annotations

import getpass
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg

PROGRAMS = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
ROLE, PASSWORD = "encamp", "s3cret/word@:"
ADMINISTRATOR = "postgres"
ACCOUNTS = ("postgres", "nobody")
"""Whom it runs as if the tests are run by root, which it refuses."""
SETTINGS = {
    # What a killed server leaves behind is removed with its directory.
    "dynamic_shared_memory_type": "mmap",
    "max_connections": "30",
    "shared_buffers": "16MB",
    "min_wal_size": "32MB",
    "log_min_messages": "error",
    "autovacuum": "off",
}


def _account() -> dict[str, Any]:
    """Arguments of a subprocess that make it run as somebody whom PostgreSQL accepts."""
    if os.geteuid() != 0:
        return {}
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = next(known[name] for name in ACCOUNTS if name in known)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": ()}


class PostgreSQL:
    def __init__(self, directory: Path, *, fsync: bool, host: str = "127.0.0.1") -> None:
        self.host = host
        self.directory = directory
        self.port = 0
        self.data = directory / "data"
        self._fsync = fsync
        self._account = _account()
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False

    def make(self) -> None:
        if self._account:
            os.chown(self.directory, self._account["user"], self._account["group"])
        words = ["-D", str(self.data), "-U", ADMINISTRATOR, "-A", "trust", "-E", "UTF8"]
        self._run("initdb", *words, "--locale=C.UTF-8", "--no-sync", "--no-instructions")
        (self.data / "pg_hba.conf").write_text(
            f"local all {ADMINISTRATOR} trust\n"
            "local all all peer map=tests\n"
            f"host all all {self.host}/24 scram-sha-256\n"
        )
        (self.data / "pg_ident.conf").write_text(f"tests {getpass.getuser()} {ROLE}\n")
        self.start()
        with self.administrator() as connection:
            connection.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}'")

    def _run(self, program: str, *words: str | Path) -> None:
        subprocess.run(
            [PROGRAMS / program, *words],
            check=True,
            capture_output=True,
            cwd=self.directory,
            timeout=60,
            **self._account,
        )

    def start(self) -> None:
        if not self.port:
            with socket.create_server((self.host, 0)) as found:
                self.port = found.getsockname()[1]
        settings = {
            **SETTINGS,
            "listen_addresses": self.host,
            "fsync": "on" if self._fsync else "off",
            "port": str(self.port),
            "unix_socket_directories": str(self.directory),
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [PROGRAMS / "postgres", "-D", self.data, *options],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **self._account,
            )
        self._killed = False
        limit = time.monotonic() + 60
        while True:
            try:
                with self.administrator():
                    return
            except psycopg.OperationalError:
                ended = self._process.poll() is not None
                if ended or time.monotonic() > limit:
                    raise RuntimeError((self.directory / "log").read_text()) from None
                time.sleep(0.02)

    def said(self) -> str:
        """Its log."""
        return (self.directory / "log").read_text()

    def stop(self) -> None:
        """In order, so that it takes its shared memory along."""
        if self._killed:
            self.start()
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(30)
            finally:
                self._end()

    def kill(self) -> None:
        """As the kernel does when memory runs out: no goodbye to anybody."""
        self._killed = True
        self._end()

    def _end(self) -> None:
        assert self._process is not None
        processes = []
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self._process.pid)
            parent.suspend()
            processes = parent.children(recursive=True)
        self._process.kill()
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        psutil.wait_procs(processes, timeout=60)
        self._process = None

    @contextmanager
    def administrator(self, database: str = ADMINISTRATOR) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(
            host=str(self.directory),
            port=self.port,
            user=ADMINISTRATOR,
            dbname=database,
            autocommit=True,
        ) as connection:
            yield connection

    @contextmanager
    def database(self, options: str = "") -> Iterator[str]:
        """A database of its own: its URL, by the network and with a password."""
        name = f"encamp_{secrets.token_hex(4)}"
        with self.administrator() as connection:
            connection.execute(f"CREATE DATABASE {name} OWNER {ROLE} {options}")
        try:
            yield self.url(name)
        finally:
            if self._process is not None:
                with self.administrator() as connection:
                    connection.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def url(self, name: str, password: str = "s3cret%2Fword%40%3A") -> str:
        return f"postgresql://{ROLE}:{password}@{self.host}:{self.port}/{name}"

    def socket_url(self, name: str) -> str:
        """By the Unix socket, where the kernel says who we are."""
        return f"postgresql://{ROLE}@/{name}?host={self.directory}&port={self.port}"


@contextmanager
def postgresql(
    *, fsync: bool = False, host: str = "127.0.0.1", port: int = 0
) -> Iterator[PostgreSQL]:
    """`fsync`: it waits for the disk, as it does for its users. `host`: where it listens. `port`:
    0: any that is free."""
    directory = Path(tempfile.mkdtemp(prefix="encamp-pg-"))
    server = PostgreSQL(directory, fsync=fsync, host=host)
    server.port = port
    try:
        server.make()
        yield server
    finally:
        try:
            server.stop()
        finally:
            shutil.rmtree(directory)
