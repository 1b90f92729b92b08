"""A site with something of everything in it."""

from __future__ import annotations

from encamp.cli.top_view import Snapshot
from encamp.core.actions import Judged, Judgement
from encamp.door import questions
from encamp.model.command import (
    OVER,
    CommandDefinition,
    CommandRecord,
    CommandState,
    Parameter,
)
from encamp.model.event import Event, EventKind
from encamp.model.host import Host, Presence
from encamp.model.job import Command, Job, MachineRequest, User
from encamp.model.machine import Machine, State
from encamp.model.property import PropertyDefinition, Reading, ValueKind
from encamp.model.request import Part, Reason, Request, RequestRecord, RequestState
from encamp.model.size import Size
from encamp.model.trigger import TriggerView

GIB = 1 << 30
ESCAPE = "\x1b[31m[red]"
"""What a terminal, or whoever draws tables, must not be told by anybody from elsewhere."""

PROPERTIES = (
    PropertyDefinition(
        name="memory_total", command="memory", return_type=ValueKind.INT, unit="bytes"
    ),
    PropertyDefinition(
        name="memory_free", command="memory", return_type=ValueKind.INT, unit="bytes"
    ),
    PropertyDefinition(name="cpus", command="cpu", return_type=ValueKind.INT, ticks=0),
    PropertyDefinition(
        name="cpu_used", command="cpu", return_type=ValueKind.FLOAT, unit="fraction"
    ),
    PropertyDefinition(name="load1", command="load", return_type=ValueKind.FLOAT),
    PropertyDefinition(name="kernel", command="kernel"),
    PropertyDefinition(name="gpus", command="accelerators", return_type=ValueKind.INT),
    PropertyDefinition(name="silent", command="program"),
)
COMMANDS = (
    CommandDefinition(
        name="machine.start",
        parameters=(Parameter("environment"), Parameter("cpus", ValueKind.INT, required=False)),
        returns=ValueKind.DICT,
        help="start a machine",
    ),
    CommandDefinition(name="agent.ping", returns=ValueKind.FLOAT, help="say that it is there"),
)


class Site:
    """What the manager of the sample site knows at a moment."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.hosts = [
            _host(now, "head", 4, 0.31, 1.2, 15.6, 9.8, ("batch",)),
            _host(now, "node01", 16, 0.94, 15.7, 62.8, 3.1, ("workers",)),
            _host(now, "node02", 16, 0.78, 12.4, 62.8, 21.5, ("workers",)),
            _host(now, "node03", 16, 0.05, 0.3, 62.8, 58.9, ("workers",), offset=3605.0),
            _host(now, "node04", 16, 0.52, 8.1, 62.8, 33.0, ("workers", "gpu")),
            _lost(now, "node05"),
        ]
        self.machines = [
            _machine(now, "node01", 1, "pilot-7", "debian12", State.RUNNING, 4020),
            _machine(now, "node01", 2, "pilot-8", "debian12", State.RUNNING, 610),
            _machine(now, "node02", 3, "analysis", "scientific", State.RUNNING, 75),
            _machine(now, "node02", 4, "build-41", "debian13", State.STARTING, 0),
            _machine(now, "node04", 5, "notebook", "scientific", State.PAUSED, 9300),
            _machine(now, "node05", 6, "pilot-9", "debian12", State.RUNNING, 7300, known=False),
        ]
        self.commands = [
            command_record(
                now, 1, "node02", "machine.start", "trigger:more_workers", CommandState.RUNNING
            ),
            command_record(now, 2, "node03", "image.pull", "root", CommandState.RUNNING),
            command_record(now, 3, "node04", "machine.save", "alice", CommandState.WAITING),
            command_record(now, 4, "node01", "program.tidy", "alice", CommandState.FAILED),
        ]
        self.events = [
            _event(now, 1, 190, EventKind.MANAGER_STARTED, "", "The manager started."),
            _event(now, 2, 188, EventKind.HOST_JOINED, "node03", "node03 joined (workers)."),
            _event(
                now,
                3,
                187,
                EventKind.HOST_TROUBLE,
                "node03",
                "The clock of node03 is 3605 s ahead.",
            ),
            _event(now, 4, 120, EventKind.COMMAND_ISSUED, "node03", "root issued image.pull."),
            _event(
                now,
                5,
                61,
                EventKind.HOST_LOST,
                "node05",
                "node05 was lost: nothing was heard of it for 6 seconds.",
            ),
            _event(
                now,
                6,
                9,
                EventKind.TRIGGER_FIRED,
                "",
                "more_workers fired: machine.start was sent to node02.",
            ),
            _event(
                now,
                7,
                2,
                EventKind.MACHINE_APPEARED,
                "node02",
                "Machine build-41 (debian13) appeared on node02.",
            ),
        ]
        self.triggers = [
            TriggerView(
                name="more_workers",
                expression="avg(host.load1 for host in group('workers')) > 8",
                commands=("send('machine.start', least_loaded, environment='debian12')",),
                place="/etc/encamp/triggers.yaml:3",
                options={"hold": 30.0, "cooldown": 600.0},
                fired=4,
                last_fired=now - 9,
                true_for=("more_workers",),
            ),
            TriggerView(
                name="runaway",
                expression="host.load1 > 1",
                commands=("notify('busy')",),
                place="/etc/encamp/triggers.yaml:9",
                options={},
                about="host",
                stopped="it fired 20 times on its own effect",
            ),
        ]
        self.log = [
            Judged(
                trigger="more_workers",
                at=now - 40,
                judgement=Judgement.HOLDING,
                reason="true for 0 of 30 seconds",
                seen={"node01.load1": 15.7},
            ),
            Judged(
                trigger="more_workers",
                at=now - 9,
                judgement=Judgement.FIRED,
                seen={"node01.load1": 15.7},
                actions=("machine.start to node02",),
            ),
        ]

    @property
    def requests(self) -> list[RequestRecord]:
        """The latest first."""
        crowded = "5 hosts have less than 2 processors free"
        return [
            _request(self.now, 3, "bob", "./render.sh --all", RequestState.RUNNING, 40, "node02"),
            _request(self.now, 2, "bob", "make", RequestState.WAITING, 75, why=crowded),
            _request(self.now, 1, "alice", "./fit", RequestState.WAITING, 190, why=crowded),
        ]

    @property
    def status(self) -> questions.Status:
        presences = [host.presence for host in self.hosts]
        return questions.Status(
            site="perugia",
            version="0.1.0",
            instance="i",
            started=self.now - 190,
            hosts={presence.value: presences.count(presence) for presence in Presence},
            machines=len(self.machines),
            commands_under_way=sum(record.state not in OVER for record in self.commands),
            triggers=len(self.triggers),
            store="",
            messages=5123,
            requests={"waiting": 2, "running": 1},
        )

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot(
            at=self.now,
            status=self.status,
            hosts=self.hosts,
            machines=self.machines,
            requests=self.requests,
            commands=[record for record in self.commands if record.state not in OVER],
            events=self.events,
        )


def _host(
    now: float,
    name: str,
    cpus: int,
    used: float,
    load: float,
    total: float,
    free: float,
    groups: tuple[str, ...],
    offset: float = 0.0,
) -> Host:
    at = now - 4 + offset
    readings = {
        "memory_total": Reading(int(total * GIB), at=at),
        "memory_free": Reading(int(free * GIB), at=at),
        "cpus": Reading(cpus, at=at),
        "cpu_used": Reading(used, at=at),
        "load1": Reading(load, at=at),
        "kernel": Reading(f"6.1.0-25{ESCAPE}", at=at),
        "gpus": Reading(error="its plug-in failed: no such file: /dev/nvidia0", at=at),
    }
    return Host(
        name=name,
        groups=groups,
        since=now - 188,
        version="0.1.0",
        clock_offset=offset,
        properties=PROPERTIES,
        commands=COMMANDS,
        readings=readings,
        machines=tuple(_machine(now, name, 1, "m", "mini", State.RUNNING, 1).machine for _ in "ab"),
    )


def _lost(now: float, name: str) -> Host:
    return Host(
        name=name,
        groups=("workers",),
        presence=Presence.LOST,
        reason="nothing was heard of it for 6 seconds",
        since=now - 61,
        version="0.1.0",
    )


def _machine(
    now: float,
    host: str,
    number: int,
    name: str,
    environment: str,
    state: State,
    age: float,
    *,
    known: bool = True,
) -> questions.SiteMachine:
    machine = Machine(
        id=f"{number:02x}ab34cd{number:08x}",
        name=name,
        owner=1000,
        host=host,
        environment=environment,
        image="sha256:0",
        size=Size(2, 2 * GIB),
        state=state,
        reason=f"as asked {ESCAPE}",
        created=now - age,
        changed=now - age,
    )
    return questions.SiteMachine(host=host, known=known, machine=machine)


def command_record(
    now: float, number: int, host: str, name: str, issuer: str, state: CommandState
) -> CommandRecord:
    over = state in OVER
    return CommandRecord(
        id=f"{number}f00{number:028x}",
        host=host,
        name=name,
        arguments={"environment": "debian12"},
        issuer=issuer,
        issued=now - 10 * number,
        timeout=600.0,
        state=state,
        reason="the program ended with 3" if over else "",
        changed=now - 9 * number,
        started=0.0 if state is CommandState.WAITING else now - 9 * number,
        ended=now - 5 if over else 0.0,
        exit_code=3 if over else None,
        output=11 if over else 0,
    )


def _request(
    now: float,
    number: int,
    owner: str,
    words: str,
    state: RequestState,
    age: float,
    host: str = "",
    why: str = "",
) -> RequestRecord:
    user = User(owner, 1000 + number, 1000, owner, (), f"/home/{owner}")
    machine = MachineRequest(environment="debian12", owner=user)
    request = Request(
        id=f"{number}e57ab00{number:024x}",
        owner=owner,
        submitted=now - age,
        environment="debian12",
        size=Size(2, 2 * GIB),
        machine=machine,
        job=Job(machine=machine, command=Command(tuple(words.split()))),
    )
    return RequestRecord(
        request=request,
        state=state,
        reason=Reason(sentence=why),
        changed=now - age / 2,
        parts=(Part(number=0, host=host),) if host else (),
    )


def _event(now: float, number: int, age: float, kind: EventKind, host: str, sentence: str) -> Event:
    return Event(number=number, at=now - age, kind=kind, sentence=sentence, host=host)
