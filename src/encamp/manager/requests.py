"""Requests: taken in, looked up, ended. What is accepted is on the disk before it is answered."""

from __future__ import annotations

import asyncio
import hashlib
import os
import pwd
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

import msgspec

from encamp.core.actions import PlaceMachines
from encamp.core.happenings import EndWanted, Happening, Submitted
from encamp.core.step import Core
from encamp.describe.environments import is_shipped
from encamp.door.peer import Peer, check_asker, group_name
from encamp.home import user_name
from encamp.manager.bounds import HIGHEST_PRIORITY, LONGEST_LABEL, check_bounds
from encamp.manager.environments import Environments, check_use
from encamp.manager.rights import check_submit
from encamp.manager.standing import Standing
from encamp.manager.store.store import Store
from encamp.manager.writing import Writing
from encamp.model.environment import DescriptionFile
from encamp.model.errors import Code, EncampError
from encamp.model.job import MachineRequest, User
from encamp.model.request import (
    OWN,
    REQUEST_OVER,
    Request,
    RequestRecord,
)
from encamp.model.site import Site
from encamp.model.wanted import wanted_size

LAST = -HIGHEST_PRIORITY
"""What is made ready for later comes after all that is wanted now."""
NOBODY = 65534
CLOSING = 0.5
"""Seconds that what is being written has when the manager ends."""
IN_ONE_GO = 500
"""Requests that are looked at before others get a turn."""
MOST_QUEUED = 1_000_000
"""Requests of all owners together that are not over."""

T = TypeVar("T")


class Requests:
    def __init__(
        self,
        core: Core,
        store: Store,
        writing: Writing,
        site: Callable[[], Site],
        happened: Callable[[Happening], None],
    ) -> None:
        self._core = core
        self._store = store
        self._writing = writing
        self._site = site
        self._happened = happened
        self.environments = Environments()
        self.standing = Standing()
        self._under_way: set[asyncio.Task[RequestRecord]] = set()
        self._keyed: dict[str, asyncio.Task[RequestRecord]] = {}

    # ── taking in ────────────────────────────────────────────────────────────────────────────────

    async def submit(
        self,
        peer: Peer,
        asked: Request,
        key: str,
        files: Sequence[DescriptionFile] = (),
        *,
        administrator: bool,
    ) -> RequestRecord:
        """`key`: asked again with the same one, it is the same request. `files`: descriptions of
        the asker's own."""
        if not administrator:
            check_submit(self._site().submit, peer.user, peer.groups)
        environment, own = await self.environments.find_for(
            peer, asked.environment, files, administrator=administrator
        )
        machine = _owned(asked.machine, asked.environment, peer)
        request = msgspec.structs.replace(
            asked,
            id=known_by(peer.user, key) if key else uuid.uuid4().hex,
            owner=peer.user,
            groups=peer.groups,
            submitted=time.time(),
            # What limits and shares go by is not for its owner to say.
            classes=(OWN,) if own else environment.classes,
            described=None if is_shipped(environment) else environment,
            own=own,
            size=wanted_size(machine, environment),
            machine=machine,
            job=None if asked.job is None else msgspec.structs.replace(asked.job, machine=machine),
        )
        check_bounds(request)
        # Whoever asked may be gone before it is written down: it goes on all the same.
        running = self._keyed.get(request.id)
        if running is None:
            running = asyncio.create_task(self._take(request, again=bool(key)))
            self._under_way.add(running)
            running.add_done_callback(self._under_way.discard)
            if key:
                self._keyed[request.id] = running
                running.add_done_callback(lambda _: self._keyed.pop(request.id, None))
        record = await asyncio.shield(running)
        if key and not _is_same(record.request, request):
            raise EncampError(
                Code.WRONG_STATE,
                f"The key was used before, for another request: {record.request.id[:8]}.",
                "Choose a new key for what is new.",
            )
        return record

    async def place(self, wanted: PlaceMachines, request: str) -> None:
        """Have one machine made ready for jobs of an owner to come; `request`: the id it has, now
        and whenever this is asked again."""
        owner = wanted.owner or user_name(os.geteuid())
        peer = await asyncio.to_thread(_somebody, owner)
        environment = await self.environments.find(wanted.environment)
        check_use(environment, peer, administrator=peer.uid in (0, os.geteuid()))
        if not environment.reuse:
            raise EncampError(
                Code.USAGE,
                f"Machines of {environment.name} cannot stand ready for jobs: each job gets its"
                " own.",
                "'reuse: true' in its description lets them have one job after the other.",
            )
        machine = MachineRequest(environment.name, _nobody(owner), batch=wanted.batch)
        asked = Request(
            id=request,
            owner=owner,
            groups=peer.groups,
            submitted=time.time(),
            environment=environment.name,
            classes=environment.classes,
            described=None if is_shipped(environment) else environment,
            size=wanted_size(machine, environment),
            label=f"trigger:{wanted.trigger}"[:LONGEST_LABEL],
            machine=machine,
            detached=True,
            reuse=True,
            priority=LAST,
        )
        await self._take(asked, again=True)

    async def _take(self, request: Request, *, again: bool) -> RequestRecord:
        if again:
            former = await self._former(request.id)
            if former is not None:
                return former
        check_asker(request.owner)
        self._check_room(request.owner)
        self._core.check_request(request)
        record = RequestRecord(request=request, changed=request.submitted)
        self.standing.opened(request)
        try:
            await self._store.add_request(record)
        except BaseException:
            self.standing.closed(request.id)
            raise
        self._happened(Submitted(request))
        return self._core.placement.records.get(request.id, record)

    async def _former(self, request: str) -> RequestRecord | None:
        try:
            found = await self.look(request)
        except EncampError as error:
            if error.code is not Code.USAGE:
                raise
            return None
        # Anybody can have labelled another so.
        return found if found.request.id == request else None

    def _check_room(self, owner: str) -> None:
        most = self._site().placement.queued
        present = self.standing.of(owner)
        if present >= most:
            raise EncampError(
                Code.NO_ROOM,
                f"{owner} has {present:,} jobs and machines in the queue or under way,"
                f" and may have {most:,}.",
                "Wait until some have ended, or cancel some: 'encamp jobs' lists them. 'queued' in"
                " site.yaml says how many may be there.",
                transient=True,
            )
        if len(self.standing) >= MOST_QUEUED:
            raise EncampError(
                Code.NO_ROOM,
                f"The queue of this site is full: {len(self.standing):,} requests are in it.",
                "Try again when some have ended.",
                transient=True,
            )

    # ── looking up, and ending ───────────────────────────────────────────────────────────────────

    def present(self, stored: RequestRecord) -> RequestRecord:
        """How far a request has come by now, as opposed to when it was written down."""
        request = stored.request.id
        return (
            self._core.placement.records.get(request) or self._writing.unwritten(request) or stored
        )

    async def look(self, name: str, owner: str = "") -> RequestRecord:
        """The one whose id begins so, or that is labelled so; of one owner, if one is given."""
        record = self._core.placement.records.get(name)
        if record is not None and owner in ("", record.request.owner):
            return record
        return self.present(await self._store.request(name, owner))

    async def meant(self, peer: Peer, name: str, *, administrator: bool) -> RequestRecord:
        """What somebody means by a name: of administrators their own first, and then anybody's. A
        whole id is no label."""
        if administrator and name in self._core.placement.records:
            return await self.look(name)
        try:
            return await self.look(name, peer.user)
        except EncampError as error:
            if error.code is not Code.USAGE or not administrator:
                raise
            return await self.look(name)

    async def latest(self, owner: str, last: int) -> AsyncIterator[RequestRecord]:
        """The latest first."""
        async for record in in_turns(await self._store.requests(owner, last)):
            yield self.present(record)

    async def under_way(self, owner: str, last: int) -> AsyncIterator[RequestRecord]:
        """Those that are not over, the latest first."""
        records = self._core.placement.records
        async for request in in_turns(self.standing.latest(owner, last)):
            if request in records:
                yield records[request]

    async def end(self, name: str, owner: str, by: str) -> RequestRecord:
        record = await self.look(name, owner)
        if record.state in REQUEST_OVER:
            raise EncampError(
                Code.WRONG_STATE,
                f"There is nothing to cancel: {record.request.id[:8]} is {record.state.value}"
                " already.",
                f"'encamp why {record.request.id[:8]}' tells more.",
            )
        self._happened(EndWanted(record.request.id, by))
        await self._writing.written(record.request.id)
        return self.present(await self._store.request(record.request.id))

    async def close(self) -> None:
        """What was begun to be taken in is taken in, if that does not take long."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=CLOSING)
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)


def _somebody(name: str) -> Peer:
    """A user of this host, as if he had come to the door. Looks names up, which may take long."""
    try:
        account = pwd.getpwnam(name)
    except KeyError:
        raise EncampError(Code.USAGE, f"There is no user '{name}' on the manager's host.") from None
    groups = os.getgrouplist(name, account.pw_gid)
    names = tuple(sorted({group_name(number) for number in groups}))
    return Peer(account.pw_uid, account.pw_gid, 0, name, names)


def _nobody(name: str) -> User:
    """Hosts look up by name who that is there."""
    return User(name, NOBODY, NOBODY, name, (), "/")


async def in_turns(items: Sequence[T]) -> AsyncIterator[T]:
    """There may be very many, and to look at one takes its time: others get a turn in between."""
    for number, item in enumerate(items):
        if number % IN_ONE_GO == IN_ONE_GO - 1:
            await asyncio.sleep(0)
        yield item


def known_by(owner: str, key: str) -> str:
    return hashlib.sha256(f"{owner}\0{key}".encode("utf-8", "replace")).hexdigest()[:32]


def _is_same(one: Request, other: Request) -> bool:
    """Do they ask for the same?"""
    return (
        msgspec.structs.replace(
            one,
            submitted=other.submitted,
            groups=other.groups,
            classes=other.classes,
            described=other.described,
            own=other.own,
            size=other.size,
        )
        == other
    )


def _owned(machine: MachineRequest, environment: str, peer: Peer) -> MachineRequest:
    """Hosts look up by name who that is there."""
    owner = msgspec.structs.replace(machine.owner, name=peer.user)
    return msgspec.structs.replace(machine, environment=environment, owner=owner)
