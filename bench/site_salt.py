"""What a reply costs the manager, compared with what a return costs a Salt master."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from bench.ground import Ground
from bench.measure import ImpossibleError, Series, ratio, rounds
from bench.processes import family_seconds
from bench.report import Figure, Goal, Report
from bench.salt import installed, salt_master, version
from bench.site import enrol, site

TITLE = "a reply to the manager against a return to a Salt master"

EXPLANATION = """
Both ask all their clients once a second for a value of 10 kB, other characters each time, and have
as many clients, as many as fit: agents of a swarm for Encamp, `salt-minion` processes for Salt. The
processor time of the manager's process, and that of all of the master's processes together, is
divided by the replies that came; what both use while nothing is asked, measured before, is taken
off. Salt is the latest release on PyPI with its own settings (five worker processes, job cache on
disk), and is asked by its own client, `LocalClient.cmd`, whose time does not count.

They do not do the same. A Salt master also encrypts what it sends and decrypts what it gets, and
passes on the messages itself, which for Encamp the NATS server does: with the server's time added
the ratio is the second one. The manager compares each value with the one before, judges triggers,
and answers its agent; the master writes each return to its job cache, and tells its event bus.
"""

SIZE = 10_000
PERIOD = 1.0


def measure(ground: Ground, *, quick: bool) -> Report:
    clients = 4 if quick else 40
    blocks = 2 if quick else 6
    seconds = 5 if quick else 15
    reply = Series("Encamp, a reply", "µs of CPU")
    served = Series("Encamp, a reply, with the NATS server", "µs of CPU")
    returned = Series("Salt, a return", "µs of CPU")
    report = Report(background=[reply, served])
    _encamp(ground.scratch / "site", clients, blocks, seconds, reply, served)
    try:
        _salt(ground.scratch / "salt", clients, blocks, seconds, returned)
    except ImpossibleError as reason:
        report.remarks.append(f"Not compared with Salt: {reason}")
        return report
    report.background.append(returned)
    tenth = (Goal.AT_MOST, 0.1)
    report.figures = [
        Figure("manager, a reply / Salt's master, a return", ratio(reply, returned), goal=tenth),
        Figure("manager and NATS server / Salt's master", ratio(served, returned)),
    ]
    report.remarks.append(f"Salt {version(installed())}, {clients} clients on both sides.")
    return report


def _encamp(
    directory: Path, clients: int, blocks: int, seconds: int, reply: Series, served: Series
) -> None:
    traffic = {"traffic": {"poll": f"{PERIOD:.0f}s"}}
    enrolled = enrol(directory / "config", clients)
    with site(directory / "idle", enrolled) as quiet:
        quiet.grow(clients, SIZE)
        idle = _idle(lambda: family_seconds(quiet.manager.pid), seconds)
        idle_server = _idle(lambda: family_seconds(quiet.server.pid), seconds)
    with site(directory / "polling", enrolled, traffic) as running:
        running.grow(clients, SIZE)
        time.sleep(3 * PERIOD)
        for _ in rounds("site_salt, Encamp", blocks):
            started, before = time.monotonic(), running.status().messages
            manager, server = (
                family_seconds(running.manager.pid),
                family_seconds(running.server.pid),
            )
            time.sleep(seconds * PERIOD)
            manager = family_seconds(running.manager.pid) - manager
            server = family_seconds(running.server.pid) - server
            took = time.monotonic() - started
            replies = running.status().messages - before
            own = manager - idle * took
            reply.add(own / replies * 1e6)
            served.add((own + server - idle_server * took) / replies * 1e6)


def _salt(directory: Path, clients: int, blocks: int, seconds: int, returned: Series) -> None:
    with salt_master(directory, clients) as master:
        master.ask(SIZE)

        def used() -> float:
            return family_seconds(master.pid)

        idle = _idle(used, seconds)
        for _ in rounds("site_salt, Salt", blocks):
            started, before, returns = time.monotonic(), used(), 0
            for number in range(1, seconds + 1):
                returns += master.ask(SIZE)
                time.sleep(max(0.0, started + number * PERIOD - time.monotonic()))
            took = time.monotonic() - started
            returned.add((used() - before - idle * took) / returns * 1e6)


def _idle(used: Callable[[], float], seconds: int) -> float:
    """What is used of the processors in a second while nothing is asked."""
    time.sleep(2.0)
    before, started = used(), time.monotonic()
    time.sleep(seconds)
    return (used() - before) / (time.monotonic() - started)
