"""Commands that were sent, on their way: output as it comes, what was returned, how they ended."""

from __future__ import annotations

import asyncio
import codecs
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from encamp.cli.asking import asked_for_two, door, following
from encamp.cli.cleaning import clean_lines, json_text, remark
from encamp.cli.standing import Standing
from encamp.cli.values import value_text
from encamp.door.client import ask, ask_async
from encamp.door.questions import CancelCommand, FollowCommands, IssueCommand, LeftOut, Output
from encamp.model.command import IN_WORDS, CommandRecord, CommandState
from encamp.model.errors import Code, EncampError

EXIT_CODES = {
    CommandState.FAILED: Code.COMMAND_FAILED,
    CommandState.TIMED_OUT: Code.TIMEOUT,
    CommandState.REFUSED: Code.NOT_PERMITTED,
    CommandState.CANCELLED: Code.WRONG_STATE,
    CommandState.LOST: Code.UNREACHABLE,
}
"""What the command line ends with, if one of the commands ended so; the first that fits counts."""


def issue(question: IssueCommand) -> list[CommandRecord]:
    answer = asked_for_two(question, CommandRecord, LeftOut)
    records = [item for item in answer if isinstance(item, CommandRecord)]
    for item in answer:
        if isinstance(item, LeftOut):
            remark(f"{item.host} is left out: it {item.reason}.")
    if not records:
        raise EncampError(
            Code.USAGE,
            f"No host of the site fits {' or '.join(question.hosts)}.",
            "'encamp hosts' lists them.",
        )
    return records


def print_issued(records: list[CommandRecord], *, as_json: bool) -> None:
    for record in records:
        if as_json:
            print(json_text(record))
        elif len(records) == 1:
            print(record.id)
        else:
            print(f"{record.id}  {record.host}")


def wait_for_all(records: list[CommandRecord], *, as_json: bool) -> int:
    """Show what the commands do until all of them are over; the exit code that tells how."""
    printer = JsonPrinter() if as_json else Printer(records)
    ended = asyncio.run(_wait(records, printer))
    for state, code in EXIT_CODES.items():
        if any(record.state is state for record in ended):
            return code.value
    return 0


def ended(record: CommandRecord) -> CommandRecord:
    """How a command has ended, when it has; what it prints and returns is not shown."""

    async def last() -> CommandRecord:
        async with aclosing(_follow([record])) as parts:
            async for part in parts:
                if isinstance(part, CommandRecord):
                    return part
        return record

    return asyncio.run(last())


async def _wait(records: list[CommandRecord], printer: Printer) -> list[CommandRecord]:
    """The first Ctrl-C cancels the commands on their hosts; the second leaves them alone."""
    standing = Standing(records)
    watching = asyncio.create_task(_watch(records, printer, standing))
    tasks: list[asyncio.Task[None] | asyncio.Task[list[CommandRecord]]] = [watching]

    def interrupted() -> None:
        standing.take_back()
        if len(tasks) == 1:
            tasks.append(asyncio.create_task(_cancel(records)))
        else:
            watching.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted)
    try:
        await asyncio.wait({watching})
        if watching.cancelled():
            raise KeyboardInterrupt
        return watching.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _watch(
    records: list[CommandRecord], printer: Printer, standing: Standing
) -> list[CommandRecord]:
    known = {record.id: record for record in records}
    ended: list[CommandRecord] = []
    async with (
        standing.shown(lambda: printer.at_line_start),
        aclosing(_follow(records, standing.take_back)) as parts,
    ):
        async for part in parts:
            standing.take_back()
            if isinstance(part, Output):
                printer.piece(known[part.command], part)
            else:
                printer.end(part)
                ended.append(part)
                standing.over(part.id)
    return ended


async def _follow(
    records: list[CommandRecord], before_it_is_said: Callable[[], None] = lambda: None
) -> AsyncGenerator[Output | CommandRecord, None]:
    """Goes on where it was when the manager is restarted, and tells nothing twice."""
    offsets = {record.id: 0 for record in records}

    def question() -> FollowCommands:
        return FollowCommands(offsets=dict(offsets))

    answering = following(question, Output, CommandRecord, before_it_is_said=before_it_is_said)
    async with aclosing(answering) as answer:
        async for part in answer:
            if isinstance(part, Output):
                offsets[part.command] = part.offset + len(part.piece)
            else:
                offsets.pop(part.id, None)
            yield part


async def _cancel(records: list[CommandRecord]) -> None:
    """Those that are over already stay as they are."""
    remark("Cancelling; Ctrl-C again to leave at once.")
    for record in records:
        question = CancelCommand(id=record.id)
        try:
            async with aclosing(ask_async(door(), question, CommandRecord)) as answer:
                async for _ in answer:
                    pass
        except EncampError as error:
            if error.code is not Code.WRONG_STATE:
                remark(f"{record.host}: {error}")


class Printer:
    """Output as it comes; of several hosts in whole lines, with the host before each. A terminal is
    not told by hosts what to do; whatever else reads the output gets it as it is."""

    def __init__(self, records: list[CommandRecord]) -> None:
        self._letters = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._terminal = sys.stdout.isatty()
        self._several = len(records) > 1
        self._width = max((len(record.host) for record in records), default=0)
        self._begun: dict[str, bytes] = {}
        self.at_line_start = True
        """Whether nothing stands in the terminal's current line yet."""

    def piece(self, record: CommandRecord, part: Output) -> None:
        if not self._several:
            self._write(part.piece)
            return
        text = self._begun.pop(record.id, b"") + part.piece
        whole, newline, rest = text.rpartition(b"\n")
        if newline:
            self._lines(record, whole)
        if rest:
            self._begun[record.id] = rest

    def end(self, record: CommandRecord) -> None:
        rest = self._begun.pop(record.id, b"")
        if rest:
            self._lines(record, rest)
        if record.value is not None:
            text = value_text(record.value).encode()
            if self._several:
                self._lines(record, text)
            else:
                self._write(text + b"\n")
        if record.state is not CommandState.DONE or record.reason:
            remark(ending(record))

    def _lines(self, record: CommandRecord, text: bytes) -> None:
        prefix = f"{record.host:<{self._width}}  ".encode()
        self._write(b"".join(prefix + line + b"\n" for line in text.split(b"\n")))

    def _write(self, data: bytes) -> None:
        if self._terminal:
            # A letter may come in two pieces.
            data = clean_lines(self._letters.decode(data)).encode()
            self.at_line_start = data.endswith(b"\n") if data else self.at_line_start
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


class JsonPrinter(Printer):
    """A line for each piece of output (its bytes in base64), and one for how each command ended."""

    def __init__(self) -> None:
        super().__init__([])

    def piece(self, record: CommandRecord, part: Output) -> None:
        self._object({"id": record.id, "host": record.host, "output": part})

    def end(self, record: CommandRecord) -> None:
        self._object({"id": record.id, "host": record.host, "record": record})

    def _object(self, value: object) -> None:
        self._write(json_text(value).encode() + b"\n")


def ending(record: CommandRecord) -> str:
    reason = f": {record.reason}" if record.reason else "."
    return f"{record.name} on {record.host} {IN_WORDS[record.state]}{reason}"


def print_output(record: CommandRecord, *, follow: bool, as_json: bool) -> None:
    printer = JsonPrinter() if as_json else Printer([record])
    if follow:
        asyncio.run(_print_followed(record, printer))
        return
    # What there is at this moment.
    left = record.output
    parts = ask(door(), FollowCommands(offsets={record.id: 0}), Output, CommandRecord)
    while left > 0:
        part = next(parts, None)
        if not isinstance(part, Output):
            break
        piece = part.piece[:left]
        printer.piece(record, Output(record.id, part.offset, piece))
        left -= len(piece)
    parts.close()


async def _print_followed(record: CommandRecord, printer: Printer) -> None:
    async with aclosing(_follow([record])) as parts:
        async for part in parts:
            if isinstance(part, Output):
                printer.piece(record, part)
