"""Bytes in and out of a machine: through streams, through shares, and copied."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench.bare import bare_machine, command_frames
from bench.ground import Ground
from bench.measure import GIB, MIB, Series, ratio, resident, rounds
from bench.report import Figure, Goal, Report
from encamp.agent.run import Control, run_job
from encamp.agent.streams import Silence
from encamp.guest.frames import CREDIT_BATCH, HEADER, STDOUT, U32, Type, encode
from encamp.model.job import Command, Copy, Job, Outcome
from encamp.model.machine import Phase, Share
from encamp.progress import Silent

TITLE = "throughput of streams, shares and copies"

EXPLANATION = """
*Out* is what a command prints: a block of random bytes, again and again; *in* is what it reads,
thrown away inside. Both are hashed on the way, outside for what comes out and inside (in a run of
its own, since hashing is slower than reading there) for what goes in, and compared with what was
sent. The growth of the process's memory while that passes through says whether anything piles up.
*Bare, out* is a loop that takes the same frames from the socket and only counts. Most of the time
is the guest's, which copies every byte a few times in emulated code, and QEMU's, which passes at
most 32 KiB at a time between the guest's port and the socket.

*Shared* is a directory of the host shown with `--share`, *copied* the same files with `--in` or
`--out`. Reading through a share means reading the files once, in the machine; copied, they are
copied in and then read from the machine's memory. Writing is the other way round. The tree has many
small files and one large one. A share pays for every file with several requests that leave the
machine, a copy is one stream; what is read twice, or in part, favours one or the other accordingly.
"""

BLOCK = 8 * MIB
SMALL_FILES, SMALL_SIZE, LARGE_SIZE = 300, 16 << 10, 16 * MIB


class Source(Silence):
    """Gives a block of bytes again and again."""

    def __init__(self, block: bytes, times: int) -> None:
        self._left = self._pieces(block, times)
        self.text = b""

    def _pieces(self, block: bytes, times: int) -> Iterator[bytes]:
        view = memoryview(block)
        for _ in range(times):
            for at in range(0, len(view), 1 << 18):
                yield bytes(view[at : at + (1 << 18)])

    async def read(self) -> bytes:
        return next(self._left, b"")

    async def write(self, data: bytes) -> None:
        self.text += data


class Sink(Source):
    """Hashes what comes out."""

    def __init__(self, block: bytes) -> None:
        super().__init__(block, 1)
        self.hash = hashlib.sha256()
        self.count = 0
        self.began = self.ended = 0.0

    async def write(self, data: bytes) -> None:
        self.began = self.began or time.perf_counter()
        self.count += len(data)
        self.hash.update(data)
        self.ended = time.perf_counter()


def measure(ground: Ground, *, quick: bool) -> Report:
    report = Report()
    with asyncio.Runner() as runner:
        _streams(ground, runner, report, (64 * MIB if quick else GIB) // BLOCK)
        _files(ground, runner, report, 1 if quick else 5)
    return report


def _streams(ground: Ground, runner: asyncio.Runner, report: Report, times: int) -> None:
    outward = Series("out", "MB/s")
    inward = Series("in", "MB/s")
    bare = Series("bare, out", "MB/s")
    growth = 0.0
    block = os.urandom(BLOCK)
    total = BLOCK * times
    printing = f"cat > /tmp/block; for i in $(seq {times}); do cat /tmp/block; done"
    # SHA-256 is fast here; MD5 is what an emulated processor can do in good time.
    outside, inside = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    for _ in range(times):
        outside.update(block)
        inside.update(block)
    for number in rounds("streams", 2):
        before = resident()
        sink = Sink(block)
        runner.run(_run(ground, _script(ground, printing), sink))
        outward.add(total / 1e6 / (sink.ended - sink.began))
        assert (sink.count, sink.hash.digest()) == (total, outside.digest()), "output was damaged"
        source = Source(block, times)
        reading = _script(ground, "cat > /dev/null")
        inward.add(total / 1e6 / _seconds(runner.run(_run(ground, reading, source))))
        if number:
            growth = max(growth, (resident() - before) / MIB)
        bare.add(total / 1e6 / _bare_output(ground, times))
    source = Source(block, times)
    runner.run(_run(ground, _script(ground, "md5sum"), source))
    assert source.text.split()[:1] == [inside.hexdigest().encode()], "input was damaged"
    report.figures += [
        Figure("library / bare, out", ratio(outward, bare)),
        Figure("in / out", ratio(inward, outward)),
        Figure("growth of memory meanwhile", growth, "MiB", (Goal.AT_MOST, 8)),
    ]
    report.background += [outward, inward, bare]
    report.remarks.append(f"{total >> 20} MiB each way, every byte as it was sent.")


def _bare_output(ground: Ground, times: int) -> float:
    """Seconds for as much output, taken from the socket by a loop that only counts."""
    make = f"dd if=/dev/urandom of=/tmp/block bs={MIB} count={BLOCK // MIB} 2>/dev/null"
    script = f"{make}; for i in $(seq {times}); do cat /tmp/block; done"
    with bare_machine(ground) as machine:
        machine.wake()
        machine.greet()
        assert machine.port is not None
        machine.port.sendall(command_frames(["sh", "-c", script]))
        return _take_output(machine.port)


def _take_output(port: socket.socket) -> float:
    """Seconds from the first output to the command's end."""
    started = 0.0
    waiting, taken = bytearray(), 0
    while True:
        waiting += port.recv(1 << 18)
        started = started or time.perf_counter()
        at = 0
        while len(waiting) - at >= HEADER.size:
            _, kind, channel, _, _, length = HEADER.unpack_from(waiting, at)
            if len(waiting) - at < HEADER.size + length:
                break
            at += HEADER.size + length
            if kind == Type.DATA and channel == STDOUT:
                taken += length
            elif kind == Type.EXIT:
                return time.perf_counter() - started
        del waiting[:at]
        if taken >= CREDIT_BATCH:
            port.sendall(encode(Type.CREDIT, 1, U32.pack(taken), channel=STDOUT))
            taken = 0


async def _run(ground: Ground, job: Job, streams: Silence) -> Outcome:
    outcome = await run_job(ground.keeper, job, streams, control=Control(), progress=Silent())
    assert outcome.exit_code == 0, outcome
    assert outcome.missing == outcome.problems == (), outcome
    return outcome


def _script(ground: Ground, text: str) -> Job:
    job = ground.job("sh", "-c", text)
    return msgspec.structs.replace(
        job, command=Command(arguments=job.command.arguments, workdir="/tmp")
    )


def _seconds(outcome: Outcome, *phases: Phase) -> float:
    return sum(p.seconds for p in outcome.phases if p.phase in (phases or (Phase.COMMAND,)))


def _files(ground: Ground, runner: asyncio.Runner, report: Report, times: int) -> None:
    names = ("shared, read", "copied in, read", "shared, written", "copied out")
    shared_read, copied_read, shared_write, copied_write = (Series(n, "MB/s") for n in names)
    tree = ground.scratch / "tree"
    _make_tree(tree)
    size = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file()) / 1e6
    inward = (Copy(str(tree), "/tmp/tree"),)
    reading = "find {} -type f -exec cat {{}} + > /dev/null"

    def run(job: Job, **changes: object) -> Outcome:
        shares = changes.pop("shares", ())
        machine = msgspec.structs.replace(job.machine, shares=shares)
        job = msgspec.structs.replace(job, machine=machine, **changes)
        return runner.run(_run(ground, job, Silence()))

    for number in rounds("shares and copies", times):
        written, copied = ground.scratch / f"written{number}", ground.scratch / f"out{number}"
        written.mkdir()
        share = (Share(str(tree), "/share", True),)
        outcome = run(_script(ground, reading.format("/share")), shares=share)
        shared_read.add(size / _seconds(outcome))
        outcome = run(_script(ground, reading.format("/tmp/tree")), inputs=inward)
        copied_read.add(size / _seconds(outcome, Phase.INPUT, Phase.COMMAND))
        share = (Share(str(written), "/share", False),)
        outcome = run(_script(ground, "cp -r tree /share/"), shares=share, inputs=inward)
        shared_write.add(size / _seconds(outcome))
        outward = (Copy("/tmp/tree", str(copied)),)
        outcome = run(_script(ground, "true"), inputs=inward, outputs=outward)
        copied_write.add(size / _seconds(outcome, Phase.OUTPUT))
        for place in (written / "tree", copied):
            assert _digest(place) == _digest(tree), f"{place.name} is not what it should be"
        shutil.rmtree(written)
        shutil.rmtree(copied)
    report.figures += [
        Figure("shared / copied, reading once", ratio(shared_read, copied_read)),
        Figure("shared / copied, writing once", ratio(shared_write, copied_write)),
    ]
    report.background += [shared_read, copied_read, shared_write, copied_write]


def _make_tree(tree: Path) -> None:
    for number in range(SMALL_FILES):
        directory = tree / f"d{number % 10}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"small{number}").write_bytes(os.urandom(SMALL_SIZE))
    (tree / "large").write_bytes(os.urandom(LARGE_SIZE))


def _digest(tree: Path) -> list[tuple[str, str]]:
    files = sorted(path for path in tree.rglob("*") if path.is_file())
    return [
        (str(path.relative_to(tree)), hashlib.sha256(path.read_bytes()).hexdigest())
        for path in files
    ]
