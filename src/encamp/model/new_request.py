"""What a program asks for over HTTP: a job to run, or machines to keep."""

from __future__ import annotations

from typing import Annotated

import msgspec

from encamp.model.errors import Code, EncampError
from encamp.model.job import Command, Job, MachineRequest, User
from encamp.model.request import MOST_MACHINES, Request, Together
from encamp.model.size import Size

Text = Annotated[str, msgspec.Meta(max_length=100_000)]
Label = Annotated[str, msgspec.Meta(max_length=100)]
Labels = Annotated[list[Label], msgspec.Meta(max_length=100)]


class NewRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A job, if there is a command; else machines that stand until they are cancelled."""

    environment: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    command: Annotated[list[Text], msgspec.Meta(min_length=1, max_length=10_000)] | None = None
    """The program and its arguments."""
    variables: dict[str, Text] = {}
    """What it finds in its environment beside what is there anyway."""
    workdir: Annotated[str, msgspec.Meta(max_length=4096)] | None = None
    timeout: Annotated[float, msgspec.Meta(gt=0, le=31_536_000)] | None = None
    """Seconds that the command may take."""
    count: Annotated[int, msgspec.Meta(ge=1, le=MOST_MACHINES)] = 1
    """Machines: all of them are made, or none; each runs the command."""
    cpus: Annotated[int, msgspec.Meta(ge=1, le=4096)] | None = None
    """As the environment says, if not given; so are memory and disk."""
    memory: Annotated[int, msgspec.Meta(ge=1, le=1 << 50)] | None = None
    """Bytes."""
    disk: Annotated[int, msgspec.Meta(ge=0, le=1 << 50)] | None = None
    """Bytes."""
    network: Annotated[str, msgspec.Meta(max_length=100)] | None = None
    image: Annotated[str, msgspec.Meta(max_length=300)] | None = None
    """Another image than the environment's."""
    label: Label = ""
    """What other requests of the same owner call it by."""
    near: Labels = []
    """Labels: only hosts that have a machine of each of these."""
    away: Labels = []
    """Labels: no host that has a machine of any of these."""
    together: Together = Together.ANYWHERE
    requirements: Annotated[str, msgspec.Meta(max_length=10_000)] = ""
    """An expression about a host that must be true of it."""
    rank: Annotated[str, msgspec.Meta(max_length=10_000)] = ""
    """A rank's name or a numeric expression about a host: the higher, the better."""
    priority: Annotated[int, msgspec.Meta(ge=-1_000_000, le=1_000_000)] = 0
    """Among requests of the same owner: the higher, the earlier."""
    retries: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    """How often it may be begun anew after its host was lost or restarted under it, or the process
    that carries it out was killed."""
    wait_at_most: Annotated[float, msgspec.Meta(gt=0, le=31_536_000)] | None = None
    """Seconds after which it is withdrawn if it is in the queue still; it waits for ever, if not
    given."""
    reuse: bool = False
    """May it run in a machine that an earlier job of its owner and environment has left?"""

    def request(self, owner: str) -> Request:
        """Who its owner is on each host, its id and its size are others' to say."""
        user = User(name=owner, uid=-1, gid=-1, group="", groups=(), home="")
        machine = MachineRequest(
            environment=self.environment,
            owner=user,
            cpus=self.cpus,
            memory=self.memory,
            disk=self.disk,
            network=self.network,
            image=self.image,
        )
        job = None
        if self.command is None:
            self._check_alone()
        else:
            command = Command(
                arguments=tuple(self.command),
                variables=tuple(self.variables.items()),
                workdir=self.workdir,
            )
            job = Job(machine=machine, command=command, timeout=self.timeout)
        return Request(
            id="",
            owner=owner,
            submitted=0.0,
            environment=self.environment,
            size=Size(0, 0),
            count=self.count,
            together=self.together,
            label=self.label,
            near=tuple(self.near),
            away=tuple(self.away),
            requirements=self.requirements,
            rank=self.rank,
            priority=self.priority,
            retries=self.retries,
            wait_at_most=self.wait_at_most,
            job=job,
            machine=machine,
            detached=job is not None,
            reuse=self.reuse,
        )

    def _check_alone(self) -> None:
        """What is said about a command is a mistake where there is none."""
        about_it = {"variables": self.variables, "workdir": self.workdir, "timeout": self.timeout}
        for name, said in about_it.items():
            if said:
                raise EncampError(
                    Code.USAGE,
                    f"'{name}' is about a command, and there is none.",
                    "Give a 'command', or leave it out.",
                )
