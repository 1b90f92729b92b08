"""What every bus promises."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable

import pytest

from encamp.bus.bus import LARGEST_MESSAGE, Message
from encamp.model.errors import Code, EncampError
from tests.bus.meeting import Kept, Meeting, Watched, until

Multicast = Callable[[str, bytes], Awaitable[None]]


async def test_messages_of_one_sender_arrive_once_and_in_order(any_meeting: Meeting) -> None:
    kept = Kept()
    sent = [b"%d" % number for number in range(200)]
    async with any_meeting.join("b", handler=kept), any_meeting.join("a") as a:
        for body in sent:
            await a.send("b", body)
        await until(lambda: len(kept.messages) >= len(sent))
    assert kept.bodies == sent
    assert {message.sender for message in kept.messages} == {"a"}


async def test_messages_sent_at_once_arrive_in_the_order_they_were_sent(meeting: Meeting) -> None:
    kept = Kept()
    async with meeting.join("b", handler=kept), meeting.join("a") as a:
        await asyncio.gather(*(a.send("b", b"%d" % number) for number in range(100)))
        await until(lambda: len(kept.messages) == 100)
    assert kept.bodies == [b"%d" % number for number in range(100)]


async def test_each_of_many_senders_keeps_its_order(any_meeting: Meeting) -> None:
    kept = Kept()
    numbers = [b"%d" % number for number in range(50)]
    async with any_meeting.join("all", handler=kept):

        async def talk(name: str) -> None:
            async with any_meeting.join(name) as bus:
                for body in numbers:
                    await bus.send("all", body)
                await until(lambda: len(kept.of(name)) == len(numbers))

        names = [f"node{number}.example.org" for number in range(5)]
        await asyncio.gather(*(talk(name) for name in names))
    assert all(kept.of(name) == numbers for name in names)


async def test_a_request_is_answered_by_what_the_handler_returns(any_meeting: Meeting) -> None:
    async def double(message: Message) -> bytes:
        return message.body * 2

    async def late(message: Message) -> bytes:
        await asyncio.sleep(0.05)
        return message.sender.encode()

    async with (
        any_meeting.join("a") as a,
        any_meeting.join("b", handler=double),
        any_meeting.join("c", handler=late),
    ):
        assert await a.request("b", b"ab") == b"abab"
        assert await a.request("b", b"") == b""
        answers = await asyncio.gather(*(a.request("c", b"") for _ in range(5)))
    assert answers == [b"a"] * 5


async def test_a_handler_may_ask_back(meeting: Meeting) -> None:
    async def name(message: Message) -> bytes:
        return b"a's name"

    async with meeting.join("a", handler=name) as a:

        async def ask_back(message: Message) -> bytes:
            return b"you said: " + await b.request("a", b"who are you?")

        async with meeting.join("b", handler=ask_back) as b:
            assert await a.request("b", b"who am I?") == b"you said: a's name"


async def test_an_error_of_the_handler_reaches_whoever_asked(any_meeting: Meeting) -> None:
    async def refuse(message: Message) -> bytes:
        raise EncampError(
            Code.NO_ROOM, "It is full.", "Come back.", transient=True, detail="two\nlines"
        )

    async with any_meeting.join("b", handler=refuse), any_meeting.join("a") as a:
        with pytest.raises(EncampError) as caught:
            await a.request("b", b"")
    error = caught.value
    assert (error.code, error.sentence, error.hint) == (Code.NO_ROOM, "It is full.", "Come back.")
    assert error.transient
    assert error.detail == "two\nlines"


async def test_a_mistake_of_the_handler_is_told_and_the_next_message_handled(
    meeting: Meeting, caplog: pytest.LogCaptureFixture
) -> None:
    async def divide(message: Message) -> bytes:
        return b"%d" % (10 // int(message.body))

    async with meeting.join("b", handler=divide), meeting.join("a") as a:
        with pytest.raises(EncampError) as caught:
            await a.request("b", b"0")
        assert await a.request("b", b"5") == b"2"
    assert caught.value.code is Code.INTERNAL
    assert "ZeroDivisionError" in caplog.text


async def test_the_largest_message_passes_both_ways(any_meeting: Meeting) -> None:
    async def echo(message: Message) -> bytes:
        return message.body

    body = bytes(range(250)) * (LARGEST_MESSAGE // 250)
    async with any_meeting.join("b", handler=echo), any_meeting.join("a") as a:
        assert await a.request("b", body) == body


async def test_a_message_that_is_too_large_is_refused_where_it_is_sent(meeting: Meeting) -> None:
    kept = Kept()
    body = b"x" * (LARGEST_MESSAGE + 1)
    async with meeting.join("b", ("g",), handler=kept), meeting.join("a") as a:
        for attempt in (a.send("b", body), a.request("b", body), a.multicast("g", body)):
            with pytest.raises(EncampError, match="too large") as caught:
                await attempt
            assert caught.value.code is Code.USAGE
            assert "1,000,000" in caught.value.hint
        await a.request("b", b"still there")
    assert kept.bodies == [b"still there"]


async def test_an_answer_that_is_too_large_is_an_error(meeting: Meeting) -> None:
    async def too_much(message: Message) -> bytes:
        return b"x" * (LARGEST_MESSAGE + 1)

    async with meeting.join("b", handler=too_much), meeting.join("a") as a:
        with pytest.raises(EncampError, match="too much for the bus"):
            await a.request("b", b"")


async def test_a_multicast_reaches_all_others_of_the_group_in_order(any_meeting: Meeting) -> None:
    blue, both, green = Kept(), Kept(), Kept()
    sent = [b"%d" % number for number in range(20)]
    async with (
        any_meeting.join("n1", ("blue",), blue),
        any_meeting.join("n2", ("blue", "green.x"), both),
        any_meeting.join("n3", ("green.x",), green),
        any_meeting.join("m", ("blue",)) as m,
    ):
        # A cluster takes a moment to learn who is in which group.
        await until_heard(m.multicast, "blue", blue, both)
        await until_heard(m.multicast, "green.x", both, green)
        for kept in (blue, both, green):
            kept.messages.clear()
        for body in sent:
            await m.multicast("blue", body)
        await m.multicast("green.x", b"green")
        await until(lambda: len(both.messages) == 21 and green.messages and len(blue.bodies) == 20)
    assert blue.bodies == sent
    assert [message.body for message in both.messages if message.group == "blue"] == sent
    assert [(message.body, message.group) for message in green.messages] == [(b"green", "green.x")]


async def until_heard(multicast: Multicast, group: str, *kept: Kept) -> None:
    before = [len(each.messages) for each in kept]

    async def heard() -> bool:
        await multicast(group, b"who is here?")
        await asyncio.sleep(0.02)
        return all(len(each.messages) > n for each, n in zip(kept, before, strict=True))

    async with asyncio.timeout(60):
        while not await heard():
            pass
    await asyncio.sleep(0.1)


async def test_whoever_sends_faster_than_the_other_works_waits(any_meeting: Meeting) -> None:
    handled = 0
    go_on = asyncio.Event()

    async def slow(message: Message) -> None:
        nonlocal handled
        await go_on.wait()
        handled += 1

    taken = 0
    async with any_meeting.join("b", handler=slow), any_meeting.join("a") as a:

        async def push() -> None:
            nonlocal taken
            for number in range(100):
                await a.send("b", b"%d" % number, timeout=60)
                taken += 1

        pushing = asyncio.create_task(push())
        await until(lambda: taken >= 32)
        await asyncio.sleep(0.1)
        assert taken == 32, "the inbox takes a bounded number of messages"
        go_on.set()
        await pushing
        await until(lambda: handled == 100)


async def test_a_full_inbox_is_bounded_in_bytes_and_nothing_is_lost(meeting: Meeting) -> None:
    kept = 0
    go_on = asyncio.Event()

    async def slow(message: Message) -> None:
        nonlocal kept
        await go_on.wait()
        kept += len(message.body)

    body = b"x" * LARGEST_MESSAGE
    names = [f"n{number}" for number in range(8)]
    async with meeting.join("b", handler=slow):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        async def push(name: str) -> None:
            async with meeting.join(name) as bus:
                for _ in range(10):
                    await bus.send("b", body, timeout=60)
                await until(lambda: kept == 80 * LARGEST_MESSAGE)

        pushing = [asyncio.create_task(push(name)) for name in names]
        await asyncio.sleep(1.0)
        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        go_on.set()
        await asyncio.gather(*pushing)
    assert held < 200 * 1024, "32 MiB wait in the inbox, and each sender holds one of its own"


async def test_a_slow_handler_holds_up_only_its_own_sender(meeting: Meeting) -> None:
    never = asyncio.Event()

    async def handle(message: Message) -> bytes:
        if message.sender == "slow":
            await never.wait()
        return b"done"

    async with (
        meeting.join("b", handler=handle),
        meeting.join("slow") as slow,
        meeting.join("quick") as quick,
    ):
        for _ in range(10):
            await slow.send("b", b"")
        for _ in range(20):
            assert await quick.request("b", b"") == b"done"
        never.set()


async def test_sending_to_nobody_or_to_one_who_does_not_take_it_says_so(meeting: Meeting) -> None:
    never = asyncio.Event()

    async def stuck(message: Message) -> None:
        await never.wait()

    async with meeting.join("b", handler=stuck), meeting.join("a") as a:
        with pytest.raises(EncampError, match="no 'nobody' on the bus") as absent:
            await a.send("nobody", b"")
        with pytest.raises(EncampError, match="has not answered") as unanswered:
            await a.request("b", b"", timeout=0.2)
        sending = asyncio.gather(*(a.send("b", b"", timeout=0.5) for _ in range(40)))
        with pytest.raises(EncampError, match="did not take") as untaken:
            await sending
        never.set()
    for caught in (absent, unanswered, untaken):
        assert caught.value.code is Code.UNREACHABLE
        assert caught.value.transient


async def test_a_request_ends_when_whoever_was_asked_leaves(meeting: Meeting) -> None:
    asked = asyncio.Event()

    async def never(message: Message) -> bytes:
        asked.set()
        await asyncio.Event().wait()
        return b""

    async with meeting.join("a") as a:
        async with meeting.join("b", handler=never):
            waiting = asyncio.create_task(a.request("b", b"", timeout=30))
            await asked.wait()
        with pytest.raises(EncampError) as caught:
            await waiting
    assert caught.value.code is Code.UNREACHABLE


async def test_a_name_can_be_had_only_once(any_meeting: Meeting) -> None:
    async with any_meeting.join("a.b") as first:
        with pytest.raises(EncampError, match=r"another 'a\.b'") as caught:
            async with any_meeting.join("a.b"):
                pass
        assert caught.value.code is Code.WRONG_STATE
        with pytest.raises(EncampError):
            await first.send("nobody", b"", timeout=0.1)
    async with any_meeting.join("a.b"):
        pass


async def test_nothing_can_be_said_after_leaving(meeting: Meeting) -> None:
    async with meeting.join("b"), meeting.join("a") as a:
        pass
    with pytest.raises(EncampError, match="not on the bus any more"):
        await a.send("b", b"")


async def test_a_watcher_is_told_who_is_there_who_joins_and_who_leaves(
    any_meeting: Meeting,
) -> None:
    watched = Watched()
    async with any_meeting.join("early", ("g", "h")) as early, any_meeting.join("m") as m:
        assert early.name == "early"
        await m.watch(watched)
        await until(lambda: watched.of("early"))
        async with any_meeting.join("late"):
            await until(lambda: watched.of("late"))
        await until(lambda: len(watched.of("late")) == 2)
        assert watched.of("late") == ["joined", "left"]
        assert watched.reason("late") == "it said goodbye"
        async with any_meeting.join("late"):
            await until(lambda: len(watched.of("late")) == 3)
    assert watched.of("early") == ["joined"]
    assert watched.told[0].groups == ("g", "h")
    assert watched.of("m") == []
