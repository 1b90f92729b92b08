"""What agents take of a machine: one that is idle, and fifty on one machine."""

from __future__ import annotations

import sys
import time
from contextlib import suppress

from bench.ground import Ground
from bench.measure import MIB, Series, ratio, rounds
from bench.processes import Held, family, family_seconds, held, running
from bench.report import Figure, Goal, Report
from bench.site import Running, enrol, name_of, site

TITLE = "agents on one machine"

EXPLANATION = """
Agents as `encamp agent` starts them: each a process with a home and a credential of its own, on
NATS, reading every property that Encamp ships on its tick, watching machines, and telling the
manager what changes. Nothing is asked of them. *Resident* is what the kernel counts for the
process, shared libraries and all; *proportional* has of what is shared with the other agents only
its part, so that of all of them together is what they really take. The paper's testbed ran up to 50
clients on each of its workstations.
"""

MANY = 50


class Agents:
    """Agents that run, each in a process."""

    def __init__(self, site: Running) -> None:
        self._site = site
        self._pids: list[int] = []

    def grow(self, wanted: int) -> None:
        for number in range(len(self._pids), wanted):
            home = self._site.directory / f"agent-{number}"
            command = [sys.executable, "-m", "encamp.cli.main", "agent", "--name", name_of(number)]
            process = running(
                command,
                self._site.directory / f"agent-{number}.log",
                {**self._site.environment, "ENCAMP_HOME": str(home)},
            )
            self._pids.append(self._site.stack.enter_context(process).pid)
            self._site.wait_for(len(self._pids))

    def memory(self) -> list[Held]:
        """Of each, with what it may have started."""
        found = []
        for pid in self._pids:
            total = Held()
            for one in family(pid):
                with suppress(OSError):
                    total += held(one)
            found.append(total)
        return found

    def processor(self, seconds: float) -> float:
        """Of one processor, by all of them together."""
        before, started = sum(map(family_seconds, self._pids)), time.monotonic()
        time.sleep(seconds)
        used = sum(map(family_seconds, self._pids)) - before
        return used / (time.monotonic() - started)


def measure(ground: Ground, *, quick: bool) -> Report:
    many = 3 if quick else MANY
    seconds = 5.0 if quick else 60.0
    resident = Series("one idle agent, resident", "MB")
    alone = Series("one idle agent, proportional", "MB")
    shared = Series(f"each of {many}, proportional", "MB")
    with site(ground.scratch / "site", enrol(ground.scratch / "config", many)) as running_site:
        agents = Agents(running_site)
        agents.grow(1)
        time.sleep(seconds / 2)
        one = agents.processor(seconds)
        for _ in rounds("site_agents, one", 3 if quick else 10):
            [memory] = agents.memory()
            resident.add(memory.resident / 1e6)
            alone.add(memory.proportional / 1e6)
            time.sleep(seconds / 20)
        agents.grow(many)
        time.sleep(seconds / 2)
        all_of_them = agents.processor(seconds)
        memories = agents.memory()
        for memory in memories:
            shared.add(memory.proportional / 1e6)
        joined = running_site.joined()
    together = sum(memory.proportional for memory in memories) / MIB
    return Report(
        figures=[
            Figure("an idle agent, resident", resident.median, "MB", (Goal.AT_MOST, 40)),
            Figure("agents joined from this machine", joined, "", (Goal.AT_LEAST, many)),
            Figure(f"each of {many} / one alone, proportional memory", ratio(shared, alone)),
            Figure(f"{many} agents, proportional memory of all", together, "MiB"),
            Figure("an idle agent, of one processor", one * 100, "%"),
            Figure(f"{many} idle agents, of one processor", all_of_them * 100, "%"),
        ],
        background=[resident, alone, shared],
    )
