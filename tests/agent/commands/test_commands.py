"""What is promised of a command that is issued, carried out, and told about."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from encamp.agent.commands import caretaker
from encamp.agent.commands.records import Records
from encamp.bus.messages import Execute
from encamp.home import Home
from encamp.manager.store import commands as commands_in_store
from encamp.model.command import LARGEST_OUTPUT, CommandState
from encamp.model.errors import Code, EncampError
from tests.agent.commands.listening import Asker, carrier_of, execute


async def test_arguments_and_return_values_are_typed(host: Home, asker: Asker) -> None:
    async with asker.agent(host) as commands:
        given: dict[str, Any] = {
            "text": "ä",
            "number": 7,
            "items": [1, "two", None],
            "table": {"a": {"b": 1.5}},
        }
        done = await asker.run(commands, "test.everything", **given)
        assert done.state is CommandState.DONE
        assert done.value == {**given, "share": 0.5, "really": False, "issuer": "alice"}
        assert done.last is not None
        assert 0 < done.last.started <= done.last.ended
        definition = next(one for one in commands.definitions if one.name == "test.everything")
        assert definition.timeout == 30
        assert definition.help == "Return what it was given."
        assert [parameter.required for parameter in definition.parameters] == [True] * 2 + [
            False
        ] * 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "'text' is missing: it is a text."),
        ({"text": "a", "number": "7"}, "'number' is to be a whole number, not '7'."),
        ({"text": "a", "number": True}, "'number' is to be a whole number, not True."),
        ({"text": "a", "numbr": 7}, "there is no argument 'numbr'. Did you mean 'number'?"),
        ({"text": "a", "number": 1 << 70}, "too large"),
        ({"text": "a\0b", "number": 1}, "zero byte"),
        ({"text": "a" * 300_000, "number": 1}, "the arguments are too large"),
        ({"text": "a", "number": 1, "share": float("nan")}, "'share'"),
    ],
)
async def test_wrong_arguments_are_refused_with_what_is_right(
    host: Home, asker: Asker, arguments: dict[str, Any], said: str
) -> None:
    async with asker.agent(host) as commands:
        with pytest.raises(EncampError, match=r"test\.everything") as refused:
            await asker.execute(commands, "test.everything", **arguments)
        assert refused.value.code is Code.USAGE
        assert said in refused.value.sentence
        assert "text: str, number: int, share: float = 0.5" in refused.value.hint
        assert commands.under_way() == ()


async def test_ids_names_and_limits_that_make_no_sense_are_refused(
    host: Home, asker: Asker
) -> None:
    good = execute("agent.ping")
    async with asker.agent(host) as commands:
        for id in ("../../etc", "", "a/b", ".", "a" * 65, "a\n", "ü"):
            with pytest.raises(EncampError, match="cannot be a command's id"):
                await commands.execute(
                    Execute(id=id, name=good.name, issuer=good.issuer, timeout=1.0)
                )
        for timeout in (0.0, -1.0, float("nan"), float("inf"), 1e12):
            with pytest.raises(EncampError, match="is no time limit"):
                await asker.execute(commands, "agent.ping", timeout=timeout)
        for issuer in ("a\nb", "x" * 301):
            with pytest.raises(EncampError, match="cannot have issued it"):
                await commands.execute(
                    Execute(id=good.id, name=good.name, issuer=issuer, timeout=1.0)
                )
        with pytest.raises(EncampError, match=r"no command 'agent\.pnig'") as refused:
            await asker.execute(commands, "agent.pnig")
        assert refused.value.hint == "Did you mean 'agent.ping'?"
        with pytest.raises(EncampError, match=r"no command '\.\./machine'"):
            await asker.execute(commands, "../machine")
    assert [path.name for path in (host.root / "commands" / "under-way").iterdir()] == []


async def test_output_is_streamed_whole_and_in_order(host: Home, asker: Asker) -> None:
    async with asker.agent(host) as commands:
        id = await asker.execute(commands, "test.talk", lines=60, seconds=0.01)
        done = await asker.until_over(commands, id)
        assert done.output == b"".join(b"line %d\n" % number for number in range(60))
        assert done.value == 60
        assert done.pieces > 2, "it was not streamed"


async def test_large_output_travels_in_bounded_messages_and_is_cut_where_it_must(
    host: Home, asker: Asker
) -> None:
    async with asker.agent(host) as commands:
        small = await asker.execute(commands, "test.flood", megabytes=3)
        large = await asker.execute(commands, "test.flood", megabytes=17)
        done = await asker.until_over(commands, small, large)
    assert len(done.output) == 3 << 20
    assert done.reason == ""
    assert asker.largest <= 256 << 10
    cut = asker.heard[large]
    assert cut.state is CommandState.DONE
    assert cut.reason == "Its output was cut after 16 MiB."
    assert cut.output.endswith(b"x\n[encamp: Its output was cut after 16 MiB.]\n")
    assert LARGEST_OUTPUT < len(cut.output) < LARGEST_OUTPUT + 100
    # The manager keeps all of it.
    assert len(cut.output) <= commands_in_store.LARGEST_OUTPUT


@pytest.mark.parametrize(
    ("name", "arguments", "reason", "output"),
    [
        ("test.refuse", {}, "There is no room. Make some.", b"  | what was said\n"),
        ("test.stumble", {}, "The plug-in made a mistake: KeyError: 'missing'.", b"Traceback"),
        ("test.fill", {}, "The host could not do it: No space left on device.", b"Traceback"),
        ("test.boast", {"size": 2_000_000}, "is too large", b""),
        ("test.lie", {}, "returned str, not int", b""),
        ("test.vanish", {}, "It was killed by signal 9 (Killed).", b""),
    ],
)
async def test_failures_say_why(
    host: Home, asker: Asker, name: str, arguments: dict[str, Any], reason: str, output: bytes
) -> None:
    async with asker.agent(host) as commands:
        failed = await asker.run(commands, name, **arguments)
    assert failed.state is CommandState.FAILED
    assert reason in failed.reason
    assert failed.output.startswith(output)


async def test_a_large_value_arrives_beside_large_output(host: Home, asker: Asker) -> None:
    async with asker.agent(host) as commands:
        done = await asker.run(commands, "test.boast", size=800_000)
    assert done.value == "x" * 800_000


async def test_a_request_delivered_twice_is_carried_out_once_and_its_end_told_again(
    host: Home, asker: Asker, tmp_path: Path
) -> None:
    counter = tmp_path / "counter"
    message = execute("test.count", file=str(counter), seconds=0.2)
    async with asker.agent(host) as commands:
        await asyncio.gather(*(commands.execute(message) for _ in range(20)))
        await asyncio.sleep(0.1)
        await commands.execute(message)
        first = (await asker.until_over(commands, message.id)).last
        assert first is not None
        assert commands.under_way() == ()
    async with asker.agent(host) as commands:
        assert commands.tell() == ()
        # As a manager asks that knows nothing of its end: its store was put back from a copy.
        await commands.execute(message)
        assert commands.under_way() == (message.id,)
        (told,) = commands.tell()
        assert (told.state, told.value) == (first.state, first.value)
        assert (told.started, told.ended) == (first.started, first.ended)
        commands.taken({}, (told,))
        assert commands.under_way() == ()
        assert commands.tell() == ()
    assert counter.read_text() == "once\n"


async def test_a_command_that_comes_after_it_was_cancelled_is_not_begun(
    host: Home, asker: Asker, tmp_path: Path
) -> None:
    message = execute("test.count", file=str(tmp_path / "counter"), seconds=0.0)
    async with asker.agent(host) as commands:
        await asyncio.gather(*(commands.cancel(message.id) for _ in range(5)))
        await commands.execute(message)
        ended = await asker.until_over(commands, message.id)
        assert ended.state is CommandState.CANCELLED
        assert commands.tell() == ()
    async with asker.agent(host) as commands:
        await commands.execute(message)
        (told,) = commands.tell()
        assert told.state is CommandState.CANCELLED
        for id in ("../over", "", ".a", "a/b"):
            with pytest.raises(EncampError, match="cannot be a command's id"):
                await commands.cancel(id)
    assert not (tmp_path / "counter").exists()


async def test_little_is_remembered_of_a_command_that_returned_much(
    host: Home, asker: Asker
) -> None:
    given: dict[str, Any] = {"text": "x" * 100_000, "number": 1}
    message = execute("test.everything", **given)
    async with asker.agent(host) as commands:
        await commands.execute(message)
        first = await asker.until_over(commands, message.id)
        assert isinstance(first.value, dict)
        assert first.value["text"] == given["text"]
        (kept,) = (host.root / "commands" / "over").iterdir()
        assert kept.stat().st_size < 1000
        await commands.execute(message)
        (told,) = commands.tell()
        assert (told.state, told.value) == (CommandState.DONE, None)
        assert told.reason == "What it returned is not kept."


async def test_what_was_not_taken_is_told_again(host: Home, asker: Asker) -> None:
    async with asker.agent(host) as commands:
        id = await asker.execute(commands, "test.talk", lines=3)
        while not commands.tell() or commands.tell()[0].state is CommandState.RUNNING:
            await asyncio.sleep(0.02)
            commands.taken({id: 0}, commands.tell())
        told = commands.tell()
        assert told == commands.tell()
        # The manager has lost what it had, but for a few bytes.
        commands.taken({id: 5}, told)
        (again,) = commands.tell()
        assert (again.offset, again.piece) == (5, b"0\nline 1\nline 2\n")
        assert commands.under_way() == (id,)
        commands.taken({id: 21}, (again,))
        assert commands.under_way() == ()
        assert commands.tell() == ()


async def test_cancelling_lets_a_command_tidy_up(host: Home, asker: Asker, tmp_path: Path) -> None:
    async with asker.agent(host) as commands:
        id = await asker.execute(commands, "test.wait", file=str(tmp_path / "tidy"))
        await asker.listen(commands, lambda: id in asker.heard and bool(asker.heard[id].output))
        await commands.cancel(id)
        ended = await asker.until_over(commands, id)
        assert (ended.state, ended.reason) == (CommandState.CANCELLED, "It was cancelled.")
        assert (tmp_path / "tidy").read_text() == "tidied up"
        await commands.cancel(id)
        await commands.cancel("unknown")


async def test_a_time_limit_ends_a_command_with_all_its_processes(
    host: Home, asker: Asker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    async with asker.agent(host) as commands:
        id = await asker.execute(commands, "test.deaf", timeout=10.0, file=str(pids))
        ended = await asker.until_over(commands, id)
    assert ended.state is CommandState.TIMED_OUT
    assert ended.reason == "It was ended after its time limit of 10 seconds."
    assert ended.output == b"started\n"
    assert len(pids.read_text().split()) == 2
    for pid in pids.read_text().split():
        assert not _alive(int(pid))


async def test_two_run_at_once_and_the_others_wait_for_their_turn(
    host: Home, asker: Asker, configuration: Path, tmp_path: Path
) -> None:
    (configuration / "commands.yaml").write_text("commands: {at_once: 2}\n")
    async with asker.agent(host) as commands:
        ids = [
            await asker.execute(commands, "test.wait", file=str(tmp_path / f"{number}"))
            for number in range(4)
        ]
        await asker.listen(commands, lambda: all(id in asker.heard for id in ids))

        def started() -> list[bool]:
            return [bool(asker.heard[id].output) for id in ids]

        await asker.listen(commands, lambda: started() == [True, True, False, False])
        # One that has not begun is cancelled at once; when one has ended, the next begins.
        await commands.cancel(ids[2])
        waited = await asker.until_over(commands, ids[2])
        assert waited.reason == "It was cancelled before it began."
        await commands.cancel(ids[0])
        await asker.listen(commands, lambda: started() == [True, True, False, True])
        assert commands.under_way() == (ids[1], ids[3])
        for id in (ids[1], ids[3]):
            await commands.cancel(id)
        await asker.until_over(commands, *ids)
    assert not (tmp_path / "2").exists()


async def test_long_output_of_one_does_not_hold_up_news_of_another(
    host: Home, asker: Asker
) -> None:
    async with asker.agent(host) as commands:
        long = [await asker.execute(commands, "test.flood", megabytes=4) for _ in range(8)]
        short = await asker.execute(commands, "agent.ping")
        while not all(tracked.is_over() for tracked in commands._tracked.values()):
            await asyncio.sleep(0.02)
        messages = 0

        def counted() -> bool:
            nonlocal messages
            messages += 1
            return short in asker.heard and asker.heard[short].last is not None

        await asker.listen(commands, counted)
        assert messages < 10
        await asker.until_over(commands, *long)


async def test_processes_that_have_ended_are_not_left_as_zombies(host: Home, asker: Asker) -> None:
    import psutil

    before = set(psutil.Process().children())
    async with asker.agent(host) as commands:
        for _ in range(3):
            await asker.run(commands, "agent.ping")
        while set(psutil.Process().children()) - before:
            await asyncio.sleep(0.05)


async def test_one_home_has_one_agent(host: Home, asker: Asker) -> None:
    async with asker.agent(host):
        with pytest.raises(EncampError, match="Another agent works in"):
            async with asker.agent(host):
                pass
    async with asker.agent(host):
        pass


async def test_plugins_that_cannot_be_used_are_named_and_the_others_work(
    host: Home, asker: Asker
) -> None:
    async with asker.agent(host) as commands:
        said = " ".join(commands.offers.broken)
        assert "'test.unannotated' cannot be used: its parameter 'what' must be annotated" in said
        assert "'test.missing' cannot be used" in said
        assert "'test.leaving' cannot be used" in said
        assert "'Test.Name' cannot be used: its name must be" in said
        assert "'agent.ping' cannot be used: another one has its name" in said
        # Nobody else's plug-in replaces one of Encamp's.
        assert (await asker.run(commands, "agent.ping", text="here")).value == "here"


async def test_a_plugin_that_ends_its_process_takes_only_those_of_others_away(
    host: Home, asker: Asker, package: Path
) -> None:
    (package / "ending.py").write_text("import os\nos._exit(0)\n")
    with (package / "plugins_of_others-1.0.dist-info" / "entry_points.txt").open("a") as entries:
        entries.write("test.ending = ending:nothing\n")
    async with asker.agent(host) as commands:
        names = [definition.name for definition in commands.definitions]
        assert "machine.start" in names
        assert "test.count" not in names
        assert "Plug-ins that are not Encamp's own are not offered" in commands.offers.broken[-1]
        assert (await asker.run(commands, "agent.ping", text="here")).value == "here"


async def test_a_command_whose_carrier_was_stopped_still_has_its_time_limit(
    host: Home, asker: Asker, tmp_path: Path
) -> None:
    async with asker.agent(host) as commands:
        words = {"file": str(tmp_path / "tidy")}
        id = await asker.execute(commands, "test.wait", timeout=10.0, **words)
        await asker.listen(commands, lambda: id in asker.heard and bool(asker.heard[id].output))
        os.kill(carrier_of(id), signal.SIGSTOP)
        ended = await asker.until_over(commands, id)
        assert ended.state is CommandState.TIMED_OUT


@pytest.mark.parametrize("up", [10.0, 1e6])
async def test_ids_are_forgotten_after_a_day(
    host: Home, asker: Asker, up: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the host has been up."""
    booted = time.monotonic() - up
    clock = SimpleNamespace(time=time.time, monotonic=lambda: time.monotonic() - booted)
    monkeypatch.setattr(caretaker, "time", clock)
    async with asker.agent(host) as commands:
        await asker.run(commands, "agent.ping")
        (kept,) = (host.root / "commands" / "over").iterdir()
    async with asker.agent(host):
        await asyncio.sleep(0.1)
        assert kept.exists()
    os.utime(kept, (1, 1))
    async with asker.agent(host):
        while kept.exists():
            await asyncio.sleep(0.01)


async def test_an_agent_with_commands_stays_small(host: Home, asker: Asker) -> None:
    """What is heavy is imported where it is used: not here."""
    import sys

    program = (
        "import sys, encamp.agent.commands.supervising;"
        "print([name for name in sys.modules if name in"
        " ('yaml', 'encamp.agent.keeper', 'encamp.images.store', 'encamp.machines.qemu', 'rich')])"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )
    assert (await process.communicate())[0] == b"[]\n"


def _alive(pid: int) -> bool:
    with suppress(OSError):
        return b") Z" not in Path(f"/proc/{pid}/stat").read_bytes()
    return False


async def test_commands_are_looked_after_though_what_is_left_cannot_be_cleared_away(
    host: Home, asker: Asker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget(records: Records, now: float) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Records, "forget", forget)
    async with asker.agent(host) as commands:
        done = await asker.run(commands, "test.count", file=str(tmp_path / "counter"))
    assert done.state is CommandState.DONE, done.reason
