"""What all benchmarks stand on: a home with an image and a template of the environment `mini`."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from encamp.agent.keeper import Keeper
from encamp.agent.plan import Plan
from encamp.cli.options import caller
from encamp.describe.environments import find_environment
from encamp.describe.shipped import MINI
from encamp.home import default_home
from encamp.machines import accelerator
from encamp.machines.account import process_user
from encamp.machines.hardware import Hardware
from encamp.machines.template import Template
from encamp.model.job import Command, Job, MachineRequest, User
from encamp.model.wanted import wanted_size
from encamp.progress import Silent

ENVIRONMENT = "mini"


@dataclass
class Ground:
    keeper: Keeper
    plan: Plan
    template: Template
    scratch: Path
    """For files of the benchmarks themselves, on the same file system as the home."""

    @property
    def owner(self) -> User:
        return self.plan.request.owner

    def job(self, *words: str) -> Job:
        return Job(machine=self.plan.request, command=Command(arguments=words))

    def memory(self) -> Path:
        return self.keeper.maker.templates.origin(self.template).memory

    def state(self) -> Path:
        return self.keeper.maker.templates.origin(self.template).state


@contextmanager
def prepared() -> Iterator[Ground]:
    """The ground, with everything built that a first run would have to build."""
    keeper = Keeper.open(default_home())
    plan, template = asyncio.run(_plan(keeper))
    scratch = Path(tempfile.mkdtemp(prefix="bench-", dir=keeper.home.root))
    # Machines may run as an account of their own, which has to get through to its directory.
    scratch.chmod(0o711)
    try:
        yield Ground(keeper, plan, template, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


async def _plan(keeper: Keeper) -> tuple[Plan, Template]:
    request = MachineRequest(environment=ENVIRONMENT, owner=caller())
    environment = find_environment(ENVIRONMENT)
    user = process_user(os.geteuid())
    image = await asyncio.to_thread(keeper.maker.images.ensure, MINI, Silent())
    verdict = await accelerator.decide(keeper.home, image, user, Silent())
    size = wanted_size(request, environment)
    hardware = Hardware(verdict.driver, size, environment.network)
    plan = Plan(request, environment, image, hardware, user)
    return plan, await keeper.maker.template(plan, Silent())
