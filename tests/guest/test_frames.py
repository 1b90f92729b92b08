"""Frames: what is sent arrives, however it is cut; what makes no sense is refused."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encamp.guest.frames import (
    CALL_BIT,
    FLUSH,
    PART,
    PAYLOAD_LIMIT,
    STDERR,
    STDIN,
    STDOUT,
    WHOLE,
    Frame,
    Key,
    Parser,
    Type,
    decode_fields,
    encode,
    encode_fields,
    header,
    text,
)
from encamp.guest.messages import Exec, Exit, Hello, Welcome
from encamp.model.errors import Code, EncampError
from tests.guest.support import welcome

NONCE = bytes(range(16))

numbers = st.integers(0, CALL_BIT - 1)
calls = st.integers(CALL_BIT, 2**32 - 1)
fours = st.binary(min_size=4, max_size=4)
frames = st.one_of(
    st.builds(
        Frame,
        st.just(Type.DATA),
        st.sampled_from([STDOUT, STDERR]),
        numbers,
        st.binary(min_size=1, max_size=300),
    ),
    st.builds(Frame, st.just(Type.END), st.sampled_from([0, 1, 2]), numbers, st.just(b"")),
    st.builds(Frame, st.just(Type.CREDIT), st.just(0), numbers, fours),
    st.builds(Frame, st.sampled_from([Type.EXIT, Type.DONE]), st.just(0), numbers, st.binary()),
    st.builds(Frame, st.just(Type.PONG), st.just(0), numbers, st.just(b"")),
    # Of what the guest has begun itself.
    st.builds(Frame, st.just(Type.CALL), st.sampled_from([WHOLE, PART]), calls, st.binary()),
    st.builds(Frame, st.just(Type.DATA), st.just(STDIN), calls, st.binary(min_size=1)),
    st.builds(Frame, st.just(Type.END), st.just(STDIN), calls, st.just(b"")),
    st.builds(Frame, st.just(Type.CREDIT), st.sampled_from([STDOUT, STDERR]), calls, fours),
    st.builds(Frame, st.just(Type.SIGNAL), st.just(0), calls, fours),
    st.builds(Frame, st.just(Type.EXIT), st.just(0), calls, st.binary()),
)


@contextmanager
def refused_if_at_all() -> Iterator[None]:
    """Nothing but the one error for what makes no sense may be raised."""
    try:
        yield
    except EncampError as error:
        if error.code is not Code.PROTOCOL:
            raise


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({min(cut, len(data)) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def parse(parts: list[bytes], parser: Parser | None = None) -> list[Frame]:
    parser = parser or Parser(NONCE)
    return [frame for part in parts for frame in parser.feed(part)]


@given(st.lists(frames, max_size=20), st.lists(st.integers(0, 5000), max_size=20))
def test_frames_arrive_however_they_are_cut(sent: list[Frame], cuts: list[int]) -> None:
    data = welcome(NONCE) + b"".join(
        encode(frame.type, frame.stream, frame.payload, channel=frame.channel) for frame in sent
    )
    first, *rest = parse(pieces(data, cuts))
    assert first.type == Type.WELCOME
    assert rest == sent


@given(st.binary(max_size=3000), st.lists(st.integers(0, 4000), max_size=10))
def test_everything_before_the_own_welcome_is_skipped(before: bytes, cuts: list[int]) -> None:
    parser = Parser(NONCE)
    data = before + welcome(bytes(16)) + welcome(NONCE) + encode(Type.PONG, 7)
    got = parse(pieces(data, cuts), parser)
    assert [frame.type for frame in got] == [Type.WELCOME, Type.PONG]
    assert parser.welcomed


def test_an_unfinished_candidate_does_not_hide_the_welcome() -> None:
    begun = header(Type.WELCOME, 0, 0, 4000) + b"only the start of what was to come"
    got = parse([begun + welcome(NONCE)])
    assert [frame.type for frame in got] == [Type.WELCOME]


def test_a_welcome_for_somebody_else_is_never_accepted() -> None:
    parser = Parser(NONCE)
    assert parse([welcome(os.urandom(16)) for _ in range(2000)], parser) == []
    assert not parser.welcomed


def test_large_frames_pass_whole() -> None:
    payload = random.Random(1).randbytes(PAYLOAD_LIMIT)
    data = welcome(NONCE) + encode(Type.DATA, 1, payload, channel=STDOUT) * 9
    got = parse([data[at : at + 50_001] for at in range(0, len(data), 50_001)])
    assert [frame.payload for frame in got[1:]] == [payload] * 9


@given(st.binary(min_size=1, max_size=400), st.lists(st.integers(0, 400), max_size=5))
def test_random_bytes_are_refused_or_awaited_but_never_accepted_wrongly(
    noise: bytes, cuts: list[int]
) -> None:
    parser = Parser(NONCE)
    parser.feed(welcome(NONCE))
    with refused_if_at_all():
        for frame in parse(pieces(noise, cuts), parser):
            assert frame.type in (Type.DATA, Type.END, Type.CREDIT, Type.EXIT, Type.DONE, Type.PONG)
            assert len(frame.payload) <= PAYLOAD_LIMIT


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(b"\x00" * 12, id="padding, which only the guest accepts"),
        pytest.param(header(Type.HELLO, 0, 0, 0), id="a type only hosts send"),
        pytest.param(header(99, 0, 1, 0), id="an unknown type"),
        pytest.param(header(Type.DATA, 1, 1, PAYLOAD_LIMIT + 1), id="too long"),
        pytest.param(header(Type.DATA, 1, 1, 0xFFFFFFFF), id="much too long"),
        pytest.param(header(Type.DATA, 0, 1, 1), id="data on stdin"),
        pytest.param(header(Type.CREDIT, 1, 1, 4), id="credit for an output"),
        pytest.param(header(Type.CREDIT, 0, 1, 3), id="credit of three bytes"),
        pytest.param(header(Type.END, 3, 1, 0), id="an unknown channel"),
        pytest.param(b"\xec\x04\x01\x01" + bytes(8), id="a byte that must be zero"),
        pytest.param(welcome(NONCE), id="a second welcome"),
    ],
)
def test_nonsense_after_the_welcome_is_refused_before_its_payload_is_awaited(wrong: bytes) -> None:
    parser = Parser(NONCE)
    parser.feed(welcome(NONCE))
    with pytest.raises(EncampError) as caught:
        parser.feed(wrong)
    assert caught.value.code is Code.PROTOCOL


@given(st.lists(st.tuples(st.integers(0, 65535), st.binary(max_size=50)), max_size=20))
def test_fields_come_back_in_order(fields: list[tuple[int, bytes]]) -> None:
    expected: dict[int, list[bytes]] = {}
    for key, value in fields:
        expected.setdefault(key, []).append(value)
    assert decode_fields(encode_fields(fields)) == expected


@given(st.binary(max_size=60))
def test_damaged_fields_are_refused(data: bytes) -> None:
    for decode in (decode_fields, Exit.decode, Welcome.decode):
        with refused_if_at_all():
            decode(data)


def test_what_a_guest_says_cannot_control_a_terminal() -> None:
    fields = decode_fields(encode_fields([(Key.TEXT, b"red \x1b[31m\nand \xff")]))
    assert text(fields, Key.TEXT) == "red \ufffd[31m\ufffdand \ufffd"


def test_flush_completes_the_longest_frame() -> None:
    assert len(FLUSH) == PAYLOAD_LIMIT + 12
    assert not any(FLUSH)


def test_a_long_command_is_sent_in_parts_that_each_fit() -> None:
    data = Exec(args=["x" * 100_000, "y" * 100_000]).encode(5)
    channels = []
    while data:
        length = int.from_bytes(data[8:12], "little")
        assert length <= PAYLOAD_LIMIT
        channels.append(data[2])
        data = data[12 + length :]
    assert channels == [1, 1, 1, 0]


@pytest.mark.parametrize("args", [[], ["zero\0byte"], ["x" * (5 << 20)]])
def test_commands_that_cannot_be_run_are_refused_here(args: list[str | bytes]) -> None:
    with pytest.raises(EncampError) as caught:
        Exec(args=args).encode(1)
    assert caught.value.code is Code.USAGE


def test_hello_is_checked() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        Hello(machine=b"short", hostname="x")
