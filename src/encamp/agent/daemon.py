"""The agent: the daemon on a host that reads its properties, carries out commands and tells the
manager. Machines and commands outlive it; whatever kills it, the next one goes on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
import uuid
from collections.abc import Callable, Sequence

from encamp import __version__
from encamp.agent import owners
from encamp.agent.bait.serving import Serving, trouble_of, wanted_bait
from encamp.agent.commands.supervising import Commands
from encamp.agent.conversation import Conversation
from encamp.agent.meeting.point import MeetingPoint
from encamp.agent.obeying import Obedience
from encamp.agent.properties.finding import Plugins
from encamp.agent.properties.reader import Reader
from encamp.agent.telling import Teller
from encamp.agent.watching import TROUBLE, MachineWatch
from encamp.agent.witness import Witness
from encamp.bus.bus import Bus, Handler
from encamp.bus.messages import Claim, CommandNews, Execute, Hello, JobsWanted
from encamp.home import Home, home_id_path
from encamp.model.batch import BatchSettings
from encamp.model.batch_record import BatchRecord
from encamp.model.errors import Code, EncampError
from encamp.model.host import NAME
from encamp.model.machine import Machine
from encamp.model.property import PropertyDefinition, Reading
from encamp.model.site import EVERYBODY, MANAGER, Site

log = logging.getLogger(__name__)

FIRST_READING = 3.0
"""Seconds that properties have to be read before the host is introduced."""

NODES_EVERY = 5.0
"""Seconds between two looks at whether there is a worker node."""

Opening = Callable[[str, Sequence[str], Handler], Bus]
"""Opens the bus under a name, in groups."""


class Agent:
    def __init__(
        self,
        home: Home,
        name: str,
        groups: Sequence[str],
        opening: Opening | None,
        definitions: Sequence[PropertyDefinition],
        plugins: Plugins,
        trouble: str = "",
        *,
        site: Site | None = None,
    ) -> None:
        """`opening`: None if there is no site, and nobody to tell anything. `trouble`: what is
        wrong with the definitions of properties, if something is."""
        check_name(name)
        self.name = name
        self._home = home
        self._groups = tuple(groups)
        self._opening = opening
        self._instance = uuid.uuid4().hex
        self._home_id = ""
        self._reader = Reader(definitions, plugins, changed=self._readings_changed, home=home)
        self._watch = MachineWatch(home, self._machines_changed)
        self._commands = Commands(home, news=self._commands_changed)
        self._offered = self._commands.definitions
        self._trouble = trouble
        self._bait = Serving(home, self._commands, name)
        self._bait_trouble = ""
        self._site = site or Site()
        self._meetings: MeetingPoint | None = None
        self._teller: Teller | None = None
        self._witness: Witness | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.joined = asyncio.Event()
        """A manager has come to know this host."""

    async def run(self) -> None:
        """Until cancelled, or until the bus will not have us."""
        self._loop = asyncio.get_running_loop()
        self._home_id = home_id(self._home.prepare())
        settings = self._bait_settings()
        point = MeetingPoint(self._home, self.name, self._home_id, self._site)
        try:
            async with self._commands, self._bait:
                # Jobs of the batch system need no manager.
                await self._bait.begin(settings)
                async with asyncio.TaskGroup() as watching:
                    watching.create_task(self._watch.run())
                    watching.create_task(self._look_after_nodes())
                    if self._opening is not None:
                        await self._join(self._opening, point)
        except asyncio.CancelledError:
            # Nobody would remove them when no job has wanted them for long, or give their room to
            # others. Machines of jobs outlive this process.
            with contextlib.suppress(*TROUBLE):
                await asyncio.to_thread(self._watch.end_idle)
            raise

    async def _join(self, opening: Opening, point: MeetingPoint) -> None:
        async with point:
            self._meetings = point
            self._offered = self._commands.definitions
            self._witness = Witness(self._home)
            conversation = Conversation(
                self.name, self._instance, self, Obedience(self._home), self._witness
            )
            bus = opening(self.name, (EVERYBODY, *self._groups), conversation.take)
            async with bus, asyncio.TaskGroup() as tasks:
                # What is there at first is told with the hello.
                with contextlib.suppress(*TROUBLE):
                    await asyncio.to_thread(self._watch.look, agree=True)
                self._teller = conversation.teller
                # A host that is known without its readings would be judged by what it lacks.
                if ticking := self._reader.ticking:
                    first = tasks.create_task(self._reader.read(ticking))
                    await asyncio.wait([first], timeout=FIRST_READING)
                for work in (self._reader.run(), conversation.run(bus)):
                    tasks.create_task(work)
                tasks.create_task(self._until_ended(bus))
                await conversation.teller.welcomed.wait()
                self.joined.set()

    def _bait_settings(self) -> BatchSettings | None:
        """A mistake in them keeps the host from being a bait, and from nothing else; but without a
        site it would be good for nothing."""
        try:
            return wanted_bait()
        except EncampError as error:
            if self._opening is None:
                raise
            self._bait_in_trouble(error)
            return None

    async def _reload_bait(self) -> None:
        try:
            await self._bait.change(await asyncio.to_thread(wanted_bait))
            self._bait_trouble = ""
        except EncampError as error:
            self._bait_in_trouble(error)

    def _bait_in_trouble(self, error: EncampError) -> None:
        self._bait_trouble = trouble_of(error, self._bait.settings)
        log.warning("%s\n%s\n%s", self._bait_trouble, error.hint, error.detail)

    async def _look_after_nodes(self) -> None:
        """What that takes is brought along when there is a worker node, and not before."""
        while (settings := self._bait.settings) is None or not any(
            machine.node is not None for machine in self._watch.machines
        ):
            await asyncio.sleep(NODES_EVERY if settings is None else settings.every)
        from encamp.agent.nodes.keeping import Nodes

        await Nodes(self._home).run(settings.every)

    async def _until_ended(self, bus: Bus) -> None:
        raise await bus.ended()

    async def reload(
        self, definitions: Sequence[PropertyDefinition] | None, trouble: str = ""
    ) -> None:
        """Read these properties from now on (None: as before, since there is trouble with them),
        offer the commands that are listed now, and take jobs of the batch system by the settings
        that are written now."""
        self._trouble = trouble
        if self._teller is not None:
            # Before anything is reported that the manager has not heard of.
            self._teller.hello()
        if definitions is not None:
            self._reader.replace(definitions)
        await self._commands.reload()
        await self._reload_bait()
        if self._teller is not None:
            self._teller.hello()

    # ── what the manager wants ───────────────────────────────────────────────────────────────────

    async def execute(self, message: Execute) -> None:
        await self._commands.execute(message)

    async def cancel(self, command_id: str) -> None:
        await self._commands.cancel(command_id)

    async def claim(self, message: Claim) -> None:
        await self._commands.claim(message)

    def release(self, claim_id: str) -> None:
        self._commands.release(claim_id)

    async def read(self, properties: tuple[str, ...]) -> dict[str, Reading]:
        known = {definition.name for definition in self._reader.definitions}
        wanted = known.intersection(properties) if properties else known
        return await self._reader.read(wanted) if wanted else {}

    async def jobs(self, wanted: JobsWanted) -> Sequence[BatchRecord]:
        from encamp.agent.bait.records import found

        return await asyncio.to_thread(
            found,
            self._home,
            user=wanted.user,
            id=wanted.id,
            last=wanted.last,
            under_way=wanted.under_way,
        )

    # ── what there is to tell ────────────────────────────────────────────────────────────────────

    def hello(self) -> Hello:
        return Hello(
            instance=self._instance,
            home=self._home_id,
            version=__version__,
            time=time.time(),
            groups=self._groups,
            properties=self._reader.definitions,
            commands=self._commands.definitions,
            machines=self._watch.machines,
            troubles=self._troubles(),
            under_way=self._commands.under_way(),
            owners=owners.served(),
            claims=self._commands.claims(),
            meeting=None if self._meetings is None else self._meetings.meeting,
            written=None if self._witness is None else self._witness.written,
        )

    def _troubles(self) -> tuple[str, ...]:
        offers = self._commands.offers
        closed = "" if self._meetings is None else self._meetings.trouble
        troubles = (self._trouble, self._bait_trouble, closed, offers.trouble, *offers.broken)
        return tuple(filter(None, troubles))

    def readings(self) -> dict[str, Reading]:
        return self._reader.current()

    def machines(self) -> tuple[Machine, ...]:
        return self._watch.machines

    async def look(self) -> bool:
        # What is wrong with that is told by who looks regularly.
        with contextlib.suppress(*TROUBLE):
            return await asyncio.to_thread(self._watch.look, agree=False)
        return False

    def news(self) -> tuple[CommandNews, ...]:
        return self._commands.tell()

    def taken(self, outputs: dict[str, int], told: tuple[CommandNews, ...]) -> None:
        self._commands.taken(outputs, told)

    def start_again(self) -> None:
        self._commands.start_again()

    def _readings_changed(self, readings: dict[str, Reading]) -> None:
        if self._teller is not None:
            self._teller.readings(readings)

    def _machines_changed(self) -> None:
        """Called from the thread that looks at the journal."""
        if self._teller is not None and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # The loop has just ended.
                self._loop.call_soon_threadsafe(self._teller.machines)

    def _commands_changed(self) -> None:
        if self._teller is None:
            return
        if self._commands.definitions != self._offered:
            self._offered = self._commands.definitions
            self._teller.hello()
        self._teller.commands()


def check_name(name: str) -> None:
    if not re.fullmatch(NAME, name) or name in (MANAGER, EVERYBODY):
        raise EncampError(
            Code.CONFIGURATION,
            f"'{name}' cannot be the name of a host.",
            "Names are made of letters, digits, '.', '-' and '_', begin and end with a letter or"
            f" digit, and '{MANAGER}' and '{EVERYBODY}' are taken.",
        )


def home_id(home: Home) -> str:
    """Tells this home from every other that an agent of the same name may work in."""
    path = home_id_path(home)
    with home.lock("agent-id"):
        try:
            return path.read_text().strip()
        except FileNotFoundError:
            made = uuid.uuid4().hex
            path.write_text(made)
            return made
