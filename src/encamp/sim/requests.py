"""What jobs and triggers ask of a simulated manager."""

from __future__ import annotations

from encamp.core.actions import PlaceMachines
from encamp.model.errors import Code, EncampError
from encamp.model.job import Command, Job, MachineRequest, User
from encamp.model.request import Request
from encamp.sim.dividing import own_group
from encamp.sim.workload import SimulatedJob, both
from encamp.sim.world import World

WORK = Command(arguments=("work",))

MANAGER = "manager"
"""The manager's own user."""
LAST = -1_000_000
"""The priority of what is not wanted yet."""


def job_request(world: World, job: SimulatedJob, *, reuse: bool) -> Request:
    """`reuse`: it asks for a machine that was left, where the environment allows it."""
    environment = world.environments[job.environment]
    groups = [*job.hosts]
    if world.installed:
        groups.insert(0, (own_group(job.environment),))
    machine = MachineRequest(environment=job.environment, owner=_user(world, job.owner))
    return Request(
        id=job.id,
        owner=job.owner,
        submitted=world.clock.now,
        environment=job.environment,
        classes=environment.classes,
        size=job.size,
        count=job.count,
        together=job.together,
        requirements=both([*map(_in_groups, groups), job.requirements]),
        rank=job.rank,
        priority=job.priority,
        retries=job.retries,
        job=None if job.standing else Job(machine=machine, command=WORK),
        machine=machine,
        detached=True,
        reuse=reuse and environment.reuse and not job.standing,
    )


def ready_request(world: World, wanted: PlaceMachines, request: str) -> Request:
    """One machine that is to stand ready for jobs of an owner to come, as the real manager asks
    for it. Raises EncampError, if there can be none."""
    owner = wanted.owner or MANAGER
    environment = world.environments.get(wanted.environment)
    if environment is None or owner not in world.users:
        what, name = ("user", owner) if environment else ("environment", wanted.environment)
        raise EncampError(Code.USAGE, f"There is no {what} '{name}' on the simulated site.")
    if not environment.reuse:
        raise EncampError(
            Code.USAGE,
            f"Machines of {environment.name} cannot stand ready for jobs: each job gets its own.",
            "'reuse: true' in its description lets them have one job after the other.",
        )
    return Request(
        id=request,
        owner=owner,
        submitted=world.clock.now,
        environment=environment.name,
        classes=environment.classes,
        size=environment.size,
        label=f"trigger:{wanted.trigger}",
        machine=MachineRequest(environment=environment.name, owner=_user(world, owner)),
        detached=True,
        reuse=True,
        priority=LAST,
    )


def _user(world: World, name: str) -> User:
    number = world.users[name]
    return User(name=name, uid=number, gid=number, group=name, groups=(), home="/")


def _in_groups(groups: tuple[str, ...]) -> str:
    return " or ".join(f"'{group}' in host.groups" for group in groups)
