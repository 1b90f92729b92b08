"""Whoever follows commands misses nothing, however long it takes to look."""

from __future__ import annotations

import asyncio

from encamp.manager.following import Followers


async def test_all_commands_are_looked_at_first() -> None:
    with Followers().follow(["b", "a"]) as follower:
        assert await follower.next() == ["a", "b"]


async def test_what_happens_during_a_look_is_told_afterwards() -> None:
    followers = Followers()
    with followers.follow(["a", "b", "c"]) as follower:
        await follower.next()
        for command_id in ("c", "a", "c"):
            followers.tell(command_id)
        assert await follower.next() == ["a", "c"]
        waiting = asyncio.create_task(follower.next())
        await asyncio.sleep(0)
        assert not waiting.done()
        followers.tell("b")
        assert await waiting == ["b"]


async def test_only_what_was_wanted_is_told_and_nothing_after_the_end() -> None:
    followers = Followers()
    with followers.follow(["a"]) as one, followers.follow(["a", "b"]) as other:
        await one.next()
        await other.next()
        followers.tell("b")
        assert await other.next() == ["b"]
        followers.tell("a")
        assert await one.next() == await other.next() == ["a"]
    followers.tell("a")
    assert followers._of == {}
