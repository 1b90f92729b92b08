"""Talking to a machine's QEMU: the few things Encamp asks of it, in Encamp's words."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from qemu.qmp import ConnectError, ExecuteError, QMPClient, QMPError

from encamp.model.errors import Code, EncampError

POLL = 0.005
SETTLED = (None, "none", "completed", "failed", "cancelled")
"""What QEMU says of a migration that is not under way, or not any more."""
FORWARD = re.compile(r"HOST_FORWARD\]\s+\d+\s+\S+\s+(?P<outside>\d+)\s+\S+\s+(?P<inside>\d+)")
ANSWER_TIMEOUT = 20.0


class Monitor:
    """One connection to one QEMU. QEMU serves one at a time; others wait their turn."""

    def __init__(self, client: QMPClient) -> None:
        self._client = client

    async def _ask(self, command: str, **arguments: object) -> object:
        words = {key.replace("_", "-"): value for key, value in arguments.items()}
        try:
            return await self._client.execute(command, words or None)
        except ExecuteError as error:
            raise EncampError(
                Code.MACHINE_LOST, f"QEMU refused '{command}': {error.error_class}: {error}."
            ) from error
        except QMPError as error:
            raise EncampError(
                Code.MACHINE_LOST, f"QEMU ended while '{command}' was asked of it."
            ) from error

    async def status(self) -> str:
        """QEMU's own word for what the machine is doing: running, paused, inmigrate, ..."""
        answer = await self._ask("query-status")
        assert isinstance(answer, dict)
        return str(answer["status"])

    async def failed_writes(self, drive: str) -> int:
        """How often the host refused to write what the guest had written to a drive."""
        answer = await self._ask("query-blockstats")
        assert isinstance(answer, list)
        for found in answer:
            if found.get("device") == drive:
                return int(found["stats"]["failed_wr_operations"])
        return 0

    async def pause(self) -> None:
        await self._ask("stop")

    async def resume(self) -> None:
        await self._ask("cont")

    async def power_down(self) -> None:
        """Press the power button, so to speak."""
        await self._ask("system_powerdown")

    async def forward(self, port: int) -> int:
        """Lead a free port of this host, for this host alone, to a port of the guest."""
        said = ""
        outside = await self._forwarded(port)
        if outside is None:
            said = await self._say(f"hostfwd_add network tcp:127.0.0.1:0-:{port}")
            outside = await self._forwarded(port)
        if outside is None:
            raise EncampError(
                Code.MACHINE_LOST, f"QEMU would not forward a port to the machine: {said.strip()}."
            )
        return outside

    async def _forwarded(self, port: int) -> int | None:
        for found in FORWARD.finditer(await self._say("info usernet")):
            if int(found["inside"]) == port:
                return int(found["outside"])
        return None

    async def _say(self, line: str) -> str:
        """What QMP has no words for."""
        return str(await self._ask("human-monitor-command", command_line=line))

    async def load(self, file: int, *, memory_is_mapped: bool) -> str:
        """Let a machine started with `-incoming defer` take on the state in an open file.

        Returns its status then: a machine comes back as it was saved, running or not. If QEMU
        dies over it, this never returns: watch the process too.
        `memory_is_mapped`: the state has no memory in it, that is mapped from the template."""
        await self.hand_over(file)
        await self._mapped(memory_is_mapped)
        with self._client.listener("RESUME") as resumed:
            await self._ask("migrate-incoming", uri="fd:state")
            while (status := await self.status()) == "inmigrate":
                # One that was saved running says when it runs; one that was not says nothing.
                with suppress(TimeoutError):
                    await asyncio.wait_for(resumed.get(), POLL)
        return status

    async def hand_over(self, file: int) -> None:
        """Give QEMU an open file to load its state from, or to save it to."""
        self._client.send_fd_scm(file)
        await self._ask("getfd", fdname="state")

    async def save(self, *, memory_is_mapped: bool) -> None:
        """Write the machine's state to the file that was handed over."""
        await self._mapped(memory_is_mapped)
        await self._ask("migrate", uri="fd:state")
        while True:
            answer = await self._ask("query-migrate")
            assert isinstance(answer, dict)
            match answer.get("status"):
                case "completed":
                    return
                case "failed" | "cancelled":
                    raise EncampError(
                        Code.DISK_FULL,
                        "The machine's state could not be written.",
                        f"QEMU said: {answer.get('error-desc', 'nothing')}",
                    )
            await asyncio.sleep(POLL)

    async def give_up(self) -> None:
        """End a save that has failed or that nobody wants any more. Before it has ended, QEMU
        would not resume the machine, or would stop it again."""
        with suppress(EncampError):  # A save that has begun has taken the file.
            await self._ask("closefd", fdname="state")
        await self._ask("migrate_cancel")
        while True:
            answer = await self._ask("query-migrate")
            assert isinstance(answer, dict)
            if answer.get("status") in SETTLED:
                return
            await asyncio.sleep(POLL)

    async def _mapped(self, mapped: bool) -> None:
        capability = {"capability": "x-ignore-shared", "state": mapped}
        await self._ask("migrate-set-capabilities", capabilities=[capability])

    async def full_speed(self) -> None:
        """Saving to a file need not spare a network."""
        await self._ask("migrate-set-parameters", max_bandwidth=1 << 40)


@asynccontextmanager
async def monitor(connection: socket.socket) -> AsyncIterator[Monitor]:
    """Speak with QEMU over a connected socket, and hang up afterwards."""
    client = QMPClient("encamp")
    try:
        await asyncio.wait_for(client.connect(connection), ANSWER_TIMEOUT)
    except (ConnectError, TimeoutError) as error:
        connection.close()
        raise EncampError(
            Code.MACHINE_LOST, "QEMU did not answer on its control socket."
        ) from error
    try:
        yield Monitor(client)
    finally:
        # If it is gone already, that is what was wanted.
        with suppress(QMPError, OSError, EOFError):
            await client.disconnect()
