"""What a starter says, taken apart: whatever makes no sense is refused, and harms nobody."""

from __future__ import annotations

import os
import random
import struct
from contextlib import suppress

import pytest

from encamp.agent.bait import frames
from encamp.agent.bait.frames import INFINITE, Asked, Listening, read_job
from encamp.model.errors import Code, EncampError


def field(tag: str, value: bytes) -> bytes:
    return frames.FIELD.pack(ord(tag), len(value)) + value


VERSION = field("v", b"\1")
LEAST = VERSION + field("s", b"slurm") + field("a", b"true")


def test_all_that_a_starter_can_say_is_understood() -> None:
    limit = struct.pack("<BQQ", 7, 1024, INFINITE)
    said = b"".join(
        (
            VERSION,
            *(field("s", b"slurm"), field("e", b"debian12"), field("i", b"17")),
            *(field("r", b"/bin/bash"), field("r", b"-l")),
            *(field("a", b"one"), field("a", b""), field("a", b"\xff")),
            *(field("p", b"#!/bin/sh\n\0\n"), field("n", b"/spool/job17/slurm_script")),
            *(field("m", b"A=1=2"), field("m", b"A=3"), field("m", b"B="), field("m", b"=no")),
            *(field("w", b"/home/\xff"), field("u", struct.pack("<I", 0o27))),
            *(field("l", limit), field("t", b"\2"), field("b", b"\1")),
        )
    )
    assert read_job(said) == Asked(
        system="slurm",
        environment="debian12",
        id="17",
        start=(b"/bin/bash", b"-l"),
        arguments=(b"one", b"", b"\xff"),
        script=b"#!/bin/sh\n\0\n",
        script_name="/spool/job17/slurm_script",
        variables={"A": "1=2", "B": ""},
        directory=os.fsdecode(b"/home/\xff"),
        umask=0o27,
        limits=((7, 1024, INFINITE),),
        tries=2,
        lost=True,
    )


def test_little_is_enough() -> None:
    asked = read_job(LEAST)
    assert (asked.environment, asked.directory, asked.tries, asked.lost) == ("", "/", 0, False)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"v",
        VERSION,
        VERSION + field("s", b"slurm"),
        LEAST + b"a",
        LEAST + frames.FIELD.pack(ord("a"), 1 << 31),
        LEAST + field("s", b"again"),
        LEAST + field("z", b""),
        LEAST + field("a", b"zero\0"),
        LEAST + field("m", b"A=zero\0"),
        LEAST + field("w", b"/zero\0"),
        LEAST + field("u", b"1"),
        LEAST + field("l", b"1"),
        LEAST + field("l", struct.pack("<BQQ", 200, 1, 1)),
        LEAST + field("l", struct.pack("<BQQ", 7, 2, 1)),
        LEAST + field("i", b"17\x1b[2J"),
        LEAST.replace(VERSION, field("v", b"\2")),
    ],
)
def test_what_makes_no_sense_is_refused(said: bytes) -> None:
    with pytest.raises(EncampError) as raised:
        read_job(said)
    assert raised.value.code is Code.PROTOCOL


@pytest.mark.parametrize(
    "name",
    [b"../x", b"a/b", b"-x", b"x" * 65, b"a b", b"a\nb", b"\xc3\xa9", b"$(id)", b"a;b", b".x"],
)
def test_hostile_name_of_an_environment_is_refused(name: bytes) -> None:
    with pytest.raises(EncampError) as raised:
        read_job(LEAST + field("e", name))
    assert raised.value.code is Code.USAGE


def test_job_of_too_many_words_is_refused() -> None:
    words = frames.MOST_FIELDS - LEAST.count(b"\0\0\0")
    asked = read_job(LEAST + field("a", b"") * words)
    assert len(asked.arguments) == words + 1
    with pytest.raises(EncampError, match="too long: more than 131072 arg") as raised:
        read_job(LEAST + field("a", b"") * (words + 1))
    assert raised.value.code is Code.USAGE


def test_noise_is_refused_in_words() -> None:
    noise = random.Random(17)
    for _ in range(3000):
        said = bytearray(LEAST + field("m", b"A=1") + field("e", b"mini"))
        for _ in range(noise.randrange(1, 5)):
            said[noise.randrange(len(said))] = noise.randrange(256)
        with suppress(EncampError):
            read_job(bytes(said[: noise.randrange(len(said) + 1)]))


def test_signals_are_heard_in_whatever_pieces_they_come() -> None:
    said = b"".join(frames.frame(frames.SIGNAL, one) for one in (b"\x0a", b"\x0c\1", b"\x0f\0"))
    listening = Listening()
    heard = [one for at in range(len(said)) for one in listening.feed(said[at : at + 1])]
    assert heard == [(10, False), (12, True), (15, False)]


@pytest.mark.parametrize(
    "said", [frames.frame(frames.JOB, b"x"), frames.frame(frames.SIGNAL, b"xxx")]
)
def test_anything_else_later_is_refused(said: bytes) -> None:
    with pytest.raises(EncampError):
        Listening().feed(said)


def test_what_a_starter_is_told_can_be_shown_on_any_terminal() -> None:
    told = frames.failed(72, "bad \x1b[2J\nname \u202e" + "x" * 10_000)
    length, kind = frames.HEADER.unpack_from(told)
    assert (kind, length) == (ord("F"), len(told) - frames.HEADER.size)
    assert told[frames.HEADER.size] == 72
    assert b"\x1b" not in told
    assert b"\n" not in told[6:]
    assert length <= frames.LONGEST_TEXT * 4


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("T", frames.again(1.5, "Why.")),
        ("W", frames.crowded(1.5, "Why.")),
        ("M", frames.mistaken(1.5, "Why.")),
    ],
)
def test_who_is_to_come_again_is_told_when_and_why(kind: str, told: bytes) -> None:
    assert told == struct.pack("<IBI", 8, ord(kind), 1500) + b"Why."
