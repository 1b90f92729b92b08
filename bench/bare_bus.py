"""The bus with nothing around it: a NATS server, one who asks and one who answers.

python -m bench.bare_bus URL        answers everything under `echo`
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from bench.network import free_ports, listens
from bench.processes import running, wait_until
from bench.site import nats_server

SUBJECT = "echo"


@asynccontextmanager
async def bare_bus(directory: Path) -> AsyncIterator[Client]:
    """A client whose requests under `echo` somebody in another process answers."""
    [port] = free_ports(1)
    directory.mkdir()
    url = f"nats://127.0.0.1:{port}"
    server = [nats_server(), "--addr", "127.0.0.1", "--port", str(port)]
    answering = [sys.executable, "-m", "bench.bare_bus", url]
    with running(server, directory / "server.log"):
        wait_until("The server did not listen", lambda: listens(port))
        with running(answering, directory / "answering.log", grace=0):
            client = await nats.connect(url)
            try:
                await _until_answered(client)
                yield client
            finally:
                await client.close()


async def _until_answered(client: Client) -> None:
    while True:
        try:
            await client.request(SUBJECT, b"")
        except nats.errors.NoRespondersError:
            await asyncio.sleep(0.05)
        else:
            return


async def _answer(url: str) -> None:
    client = await nats.connect(url)

    async def answer(message: Msg) -> None:
        await message.respond(message.data)

    await client.subscribe(SUBJECT, cb=answer)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_answer(sys.argv[1]))
