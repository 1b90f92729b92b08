"""How fast an image is pulled from a web server, compared with `curl` and the same file."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.ground import Ground
from bench.measure import GIB, MIB, Series, paired_ratio, rounds
from bench.report import Figure, Goal, Report
from encamp import programs
from encamp.home import Home
from encamp.images.content import describe, image_digest
from encamp.images.placing import name_image, place
from encamp.images.pulling import pull
from encamp.images.pushing import push
from encamp.images.records import Record
from encamp.images.repository import Repository
from encamp.images.store import ImageStore
from encamp.model.image import Image
from encamp.model.settings import Settings
from encamp.progress import Silent
from encamp.workplace import workplace

TITLE = "pulling an image against copying its file with curl"

EXPLANATION = """
One image of 1 GiB lies on nginx on the same host, so that the network costs next to nothing and all
else shows. `curl -o` copies its file to disk and is done. A pull writes it to the same file system,
computes its SHA-256 as it arrives, waits until the disk has it, and puts it where machines find it.
Both take turns; each writes to a new file, and the disk is given time to settle before each.
"""

CONFIGURATION = """
daemon off;
master_process off;
pid {work}/pid;
error_log {work}/error.log;
events {{ }}
http {{
    access_log off;
    sendfile on;
    client_body_temp_path {work}/bodies;
    proxy_temp_path {work}/proxy;
    fastcgi_temp_path {work}/fastcgi;
    uwsgi_temp_path {work}/uwsgi;
    scgi_temp_path {work}/scgi;
    server {{
        listen 127.0.0.1:{port};
        root {root};
    }}
}}
"""


def measure(ground: Ground, *, quick: bool) -> Report:
    size = 64 * MIB if quick else GIB
    pulled, curled = Series("pull", "MiB/s"), Series("curl -o", "MiB/s")
    with served(ground.scratch, size) as (url, digest):
        repository = Repository.open(url)
        address = f"{url}/images/{digest}/{Image.ROOT}"
        for number in rounds("pull", 2 if quick else 7):
            target = ground.scratch / f"copied-{number}"
            os.sync()
            with clocked(curled, size):
                command: list[str | Path] = [
                    programs.find("curl"),
                    "--silent",
                    "--fail",
                    "-o",
                    target,
                    address,
                ]
                subprocess.run(command, check=True)
            target.unlink()
            home = ground.scratch / f"home-{number}"
            images = store_in(home)
            os.sync()
            with clocked(pulled, size):
                pull(images, repository, digest, Silent())
            shutil.rmtree(home)
    return Report(
        figures=[Figure("pull / curl", paired_ratio(pulled, curled), goal=(Goal.AT_LEAST, 0.7))],
        background=[pulled, curled],
    )


@contextmanager
def clocked(series: Series, size: int) -> Iterator[None]:
    started = time.perf_counter()
    yield
    series.add(size / MIB / (time.perf_counter() - started))


def store_in(directory: Path) -> ImageStore:
    return ImageStore(Home(directory).prepare(), shared=None, settings=Settings())


@contextmanager
def served(scratch: Path, size: int) -> Iterator[tuple[str, str]]:
    """The address of a repository with one image, and that image's digest."""
    root, work = scratch / "www", scratch / "nginx"
    root.mkdir()
    work.mkdir()
    source = store_in(scratch / "source")
    digest = make_image(source, size)
    push(source, Repository.open(str(root)), digest, Silent())
    shutil.rmtree(scratch / "source")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    configuration = work / "nginx.conf"
    configuration.write_text(CONFIGURATION.format(work=work, root=root, port=port))
    command: list[str | Path] = [
        programs.find("nginx"),
        "-p",
        work,
        "-e",
        work / "error.log",
        "-c",
        configuration,
    ]
    with subprocess.Popen(command) as process:
        try:
            wait_for(port)
            yield f"http://127.0.0.1:{port}", digest
        finally:
            process.terminate()


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    raise RuntimeError("nginx does not answer")


def make_image(images: ImageStore, size: int) -> str:
    with workplace(images.home, "bench") as work:
        result = work.directory / "result"
        result.mkdir()
        with (result / Image.ROOT).open("wb") as file:
            for _ in range(size // MIB):
                file.write(os.urandom(MIB))
        for name in (Image.KERNEL, Image.MODULES):
            (result / name).write_bytes(b"too small to matter")
        files = tuple(describe(path) for path in sorted(result.iterdir()))
        record = Record(image_digest(files), "bench", "", time.time(), "0" * 64, files)
        place(images, work, result, record)
    name_image(images.home, record, "bench")
    return record.digest
