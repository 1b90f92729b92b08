"""The guest's parsers under the sanitizers, fed thousands of damaged inputs in one process."""

from __future__ import annotations

import os
import random
import struct
import subprocess
from pathlib import Path

from encamp.guest.archive_format import HOLE, NUMBER, START, Entry, Kind, encode_attributes
from encamp.guest.frames import CALL_BIT, FLUSH, Key, Type, encode, encode_fields
from encamp.guest.messages import Exec, File, Hello

CASES = 4000


def sound_frames(chance: random.Random) -> bytes:
    """What an honest host might send."""
    hello = Hello(machine=chance.randbytes(16), hostname="m", nonce=bytes(16), entropy=bytes(32))
    parts = [FLUSH[: chance.randrange(40)], hello.encode()]
    for stream in range(1, chance.randrange(2, 6)):
        command = Exec(
            args=["a", "b" * chance.randrange(200)],
            env={"K": "V"},
            groups=[1, 2],
            files={"/a/b": File(0o700, chance.randbytes(chance.randrange(50)))},
            temporary="/tmp/x",
        )
        parts.append(command.encode(stream))
        parts.append(encode(Type.DATA, stream, chance.randbytes(chance.randrange(300))))
        parts.append(encode(Type.SIGNAL, stream, b"\x0f\0\0\0" + b"\1" * chance.randrange(2)))
        parts.append(
            encode(
                Type.CALLS,
                stream,
                encode_fields([(Key.PATH, b"/x"), (Key.UID, b"\1\0\0\0"), (Key.NAME, b"srun")]),
            )
        )
        parts.append(encode(Type.EXIT, CALL_BIT | stream, chance.randbytes(chance.randrange(40))))
        parts.append(hello.encode() if chance.random() < 0.2 else encode(Type.PING, stream))
    return b"".join(parts)


def sound_archive(chance: random.Random) -> bytes:
    attributes = encode_attributes({b"user.a": b"1", b"user.b": b"22"})
    parts = [START, Entry(kind=Kind.DIRECTORY, name=b"d", mode=0o755).encode()]
    for number in range(chance.randrange(1, 5)):
        name = b"d/f%d" % number
        parts.append(Entry(kind=Kind.FILE, name=name, mode=0o644, attributes=attributes).encode())
        content = chance.randbytes(chance.randrange(1, 100))
        parts += [NUMBER.pack(len(content)), content, NUMBER.pack(HOLE | 4096), NUMBER.pack(0) * 2]
        parts.append(Entry(kind=Kind.HARDLINK, name=b"d/h", link=name).encode())
        parts.append(Entry(kind=Kind.SYMLINK, name=b"d/l", link=b"f0").encode())
        parts.append(Entry(kind=Kind.DIRECTORY, name=b"d/sub", mode=0o555).encode())
        parts.append(Entry(kind=Kind.FIFO, name=b"d/sub/p", mode=0o600).encode())
    return b"".join([*parts, Entry(kind=Kind.END).encode()])


def damaged(data: bytes, chance: random.Random) -> bytes:
    bytes_ = bytearray(data)
    for _ in range(chance.randrange(6)):
        at = chance.randrange(len(bytes_) + 1)
        match chance.randrange(5):
            case 0:
                bytes_[at : at + 1] = chance.randbytes(1)
            case 1:
                bytes_[at : at + 4] = struct.pack("<I", chance.choice([0, 1, 2**31, 2**32 - 1]))
            case 2:
                del bytes_[at : at + chance.randrange(40)]
            case 3:
                bytes_[at:at] = bytes_[: chance.randrange(60)]
            case _:
                bytes_[at:at] = chance.randbytes(chance.randrange(20))
        if not bytes_:
            return b""
    return bytes(bytes_[: chance.randrange(len(bytes_))] if chance.random() < 0.2 else bytes_)


def test_the_guests_parsers_survive_what_nobody_should_send(
    fuzz_program: Path, tmp_path: Path
) -> None:
    chance = random.Random(2026)
    cases = bytearray()
    for number in range(CASES):
        kind, sound = (b"f", sound_frames) if number % 2 else (b"a", sound_archive)
        case = damaged(sound(chance), chance)
        cases += kind + struct.pack("<I", len(case)) + case
    destination = tmp_path / "in" / "destination"
    with (tmp_path / "complaints").open("wb") as complaints:
        result = subprocess.run(
            [fuzz_program, destination],
            input=cases,
            stdout=subprocess.PIPE,
            stderr=complaints,
            env={**os.environ, "ASAN_OPTIONS": f"log_path={tmp_path}/report"},
            cwd=tmp_path,
            check=False,
            timeout=120,
        )
    reports = [path.read_text() for path in tmp_path.glob("report*")]
    tail = (tmp_path / "complaints").read_bytes()[-2000:].decode(errors="replace")
    assert result.returncode == 0, [*reports, tail]
    assert int(result.stdout) == CASES
    assert os.listdir(tmp_path / "in") == ["destination"], "nothing beside the destination"
