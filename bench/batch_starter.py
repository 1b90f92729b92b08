"""What the job starter itself takes: from its start to its end, at a door that answers at once."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.measure import Series, rounds
from encamp import batch

SOURCES = Path(batch.__file__).with_name("starter")
HEAD = struct.Struct("<IB")
BEGUN = HEAD.pack(0, ord("B"))
ENDED = HEAD.pack(2, ord("E")) + b"\0\0"


def measure_starter(count: int) -> list[Series]:
    """A script by its starter, and the same by its shell; in turns."""
    starter = Series("starter, at a door that answers at once", "ms")
    plain = Series("the same script by /bin/sh", "ms")
    with _door() as program:
        sides = {"by-starter": (f"#!{program} slurm:mini\n", starter), "by-shell": ("", plain)}
        scripts = {name: _script(program.parent / name, sides[name][0]) for name in sides}
        for _ in rounds("starter", count):
            for name, (_, series) in sides.items():
                began = time.perf_counter()
                subprocess.run([scripts[name]], check=True)
                series.add((time.perf_counter() - began) * 1000)
    return [starter, plain]


def _script(path: Path, first: str) -> Path:
    path.write_text(f"{first}#!/bin/sh\nexit 0\n")
    path.chmod(0o755)
    return path


@contextmanager
def _door() -> Iterator[Path]:
    """A starter that looks for its door here, where every job has ended as soon as it has come."""
    directory = Path(tempfile.mkdtemp(prefix="encamp-bench-"))
    with socket.socket(socket.AF_UNIX) as door:
        try:
            program = directory / "encamp-starter"
            words = ["make", "-s", "-C", str(SOURCES), f"OUT={program}", f"DOOR={directory}/bait"]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            door.bind(os.fspath(directory / "bait"))
            door.listen()
            answering = threading.Thread(target=_answer, args=(door,), daemon=True)
            answering.start()
            yield program
        finally:
            door.shutdown(socket.SHUT_RDWR)
            shutil.rmtree(directory)


def _answer(door: socket.socket) -> None:
    while True:
        try:
            visit, _ = door.accept()
        except OSError:
            return  # It is closed.
        with visit:
            head = visit.recv(HEAD.size, socket.MSG_WAITALL)
            visit.recv(HEAD.unpack(head)[0], socket.MSG_WAITALL)
            visit.sendall(BEGUN + ENDED)
            visit.recv(1)
