"""Web servers for repositories: nginx as a site would run it, and one that misbehaves on demand."""

from __future__ import annotations

import contextlib
import http.server
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from encamp import programs

CONFIGURATION = """
daemon off;
master_process off;
pid {work}/pid;
error_log {work}/error.log;
events {{ }}
http {{
    log_format short '$request_method $uri $status $http_range';
    access_log {work}/access.log short;
    client_body_temp_path {work}/bodies;
    proxy_temp_path {work}/proxy;
    fastcgi_temp_path {work}/fastcgi;
    uwsgi_temp_path {work}/uwsgi;
    scgi_temp_path {work}/scgi;
    client_max_body_size 0;
    server {{
        listen 127.0.0.1:{port};
        root {root};
        {extra}
        location / {{
            dav_methods PUT DELETE MKCOL;
            create_full_put_path on;
            dav_access user:rw group:r all:r;
        }}
    }}
}}
"""


@dataclass
class Nginx:
    url: str
    root: Path
    work: Path

    def requests(self) -> list[str]:
        """METHOD PATH STATUS RANGE of every request that was answered."""
        return (self.work / "access.log").read_text().splitlines()


@contextmanager
def nginx(directory: Path, extra: str = "") -> Iterator[Nginx]:
    """nginx with its own WebDAV module, on a port of its own."""
    root, work = directory / "www", directory / "nginx"
    root.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    port = free_port()
    configuration = work / "nginx.conf"
    configuration.write_text(CONFIGURATION.format(work=work, root=root, port=port, extra=extra))
    command: list[str | Path] = [
        programs.find("nginx"),
        "-p",
        work,
        "-e",
        work / "error.log",
        "-c",
        configuration,
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        try:
            wait_for_port(port, process)
            yield Nginx(f"http://127.0.0.1:{port}", root, work)
        finally:
            process.terminate()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if process.poll() is not None:
            assert process.stderr is not None
            raise AssertionError(process.stderr.read().decode())
        time.sleep(0.02)
    raise AssertionError("nginx does not answer")


Misbehave = Callable[["Handler"], bool]
"""Answers a request in a wrong way; False leaves it to be answered in the right one."""


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a directory. Without ranges, as the standard library's does."""

    site: Odd

    def do_GET(self) -> None:
        self.site.asked.append((self.path, self.headers.get("Range", "")))
        if not self.site.misbehave(self):
            super().do_GET()

    def log_message(self, format: str, *args: object) -> None:
        pass


@dataclass
class Odd:
    """A server that can be told to misbehave."""

    url: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)
    misbehave: Misbehave = lambda _: False


@contextmanager
def odd_server(root: Path) -> Iterator[Odd]:
    site = Odd()

    class Own(Handler):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, directory=str(root))  # type: ignore[arg-type]

    Own.site = site
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Own) as server:
        site.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield site
        finally:
            server.shutdown()
            thread.join()
