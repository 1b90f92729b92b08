"""Testing whether a machine is ready for work. It is when all that its environment asks for holds
at the same time; why it does not is said as it is found, for whoever is waiting."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable

from encamp.agent.context import last_lines
from encamp.agent.copying import ROOT, builtin, outcome
from encamp.agent.surroundings import variables_for
from encamp.guest.channel import Channel, Exec
from encamp.model.environment import Environment, Readiness
from encamp.model.errors import Code, EncampError
from encamp.model.machine import Machine

Tell = Callable[[str], None]
"""Called with why the machine is not ready, whenever that has changed."""


class Tests:
    """One machine's tests, tried again and again. `failing` says what does not hold, in the words
    of the last try that came to an end."""

    def __init__(self, channel: Channel, machine: Machine, ready: Readiness) -> None:
        self._channel = channel
        self._machine = machine
        self._ready = ready
        self.failing: dict[str, str] = {}
        if ready.file is not None:
            self.failing["file"] = f"file {ready.file} was not looked for yet"
        if ready.port is not None:
            self.failing["port"] = f"port {ready.port} was not tried yet"
        if ready.command:
            self.failing["command"] = f"command '{self._line}' has not ended"

    @property
    def _line(self) -> str:
        return shlex.join(self._ready.command)

    @property
    def reason(self) -> str:
        return "; ".join(self.failing.values())

    async def hold(self) -> bool:
        """Try them all once."""
        tests = []
        if self._ready.file is not None:
            tests.append(self._probe("file", "exists", self._ready.file))
        if self._ready.port is not None:
            tests.append(self._probe("port", "answers", str(self._ready.port)))
        if self._ready.command:
            tests.append(self._command())
        await asyncio.gather(*tests)
        return not self.failing

    async def _probe(self, name: str, *words: str) -> None:
        stream = builtin(self._channel, ROOT, *words)
        stream.stdout.discard()
        await stream.end()
        ended, said = await outcome(stream)
        if ended.code == 0:
            self.failing.pop(name, None)
        else:
            self.failing[name] = last_lines(said) or f"{' '.join(words)}: exit code {ended.code}"

    async def _command(self) -> None:
        stream = self._channel.execute(
            Exec(args=list(self._ready.command), env=variables_for(ROOT, self._machine), cwd="/")
        )
        stream.stdout.discard()
        await stream.end()
        ended, said = await outcome(stream)
        if ended.code == 0:
            self.failing.pop("command", None)
            return
        reason = f"command '{self._line}' exited with {ended.code}"
        if not ended.started:
            reason = f"command '{self._line}' could not be run"
        self.failing["command"] = reason + (f", saying: {last_lines(said)}" if said else "")


async def wait_until_ready(
    channel: Channel, machine: Machine, environment: Environment, patience: float, tell: Tell
) -> None:
    """Test until all holds. `patience`: the seconds that are left for it."""
    ready = environment.ready
    tests = Tests(channel, machine, ready)
    told = ""
    try:
        async with asyncio.timeout(patience):
            while not await tests.hold():
                if tests.reason != told:
                    told = tests.reason
                    tell(told)
                await asyncio.sleep(ready.interval)
    except TimeoutError:
        raise EncampError(
            Code.NOT_READY,
            f"Environment '{environment.name}' was not ready after {ready.timeout:g} s:"
            f" {tests.reason}.",
            "See what 'ready' says in its description; 'timeout' there gives it more time.",
        ) from None
