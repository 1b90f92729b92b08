"""Carrying out what the core decides. What must survive a crash is written down first."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence

import msgspec

from encamp.core.actions import (
    Action,
    AskProperties,
    InOrder,
    IssueCommand,
    Judged,
    Judgement,
    Notify,
    PlaceMachines,
    Step,
)
from encamp.manager.dispatching import Dispatcher
from encamp.manager.notifying import Notifier
from encamp.manager.querying import Querier
from encamp.manager.recording import Recorder, whose
from encamp.manager.store.store import Store
from encamp.model.command import IN_WORDS, CommandState
from encamp.model.errors import EncampError
from encamp.model.event import Event, EventKind

log = logging.getLogger(__name__)

MOST_WAITING = 10_000
"""Batches of actions that may wait; a site in which more do has worse troubles."""
MOST_AT_ONCE = 1000
"""Actions that are being carried out at the same time."""

PLANS = "plan "
"""With an id: the key in the store of what is being carried out."""

EVENTS = {
    Judgement.FIRED: EventKind.TRIGGER_FIRED,
    Judgement.STOPPED: EventKind.TRIGGER_STOPPED,
}
"""What a trigger's judgement is worth telling as."""


class Plan(msgspec.Struct, frozen=True):
    """What a trigger decided, and how far it has got. Its commands have their ids before they are
    issued, so that a manager that takes over knows which of them were."""

    action: InOrder
    step: int = 0
    ids: tuple[tuple[str, ...], ...] = ()
    """Of each thing in the step that is under way, the ids of its commands, a host each."""


class Hands:
    def __init__(
        self,
        dispatcher: Dispatcher,
        querier: Querier,
        notifier: Notifier,
        recorder: Recorder,
        store: Store,
        remember: Callable[[], Awaitable[None]],
        place: Callable[[PlaceMachines, str], Awaitable[None]],
    ) -> None:
        """`place`: has one machine placed by a request of this id, if there is none of it yet."""
        self._place = place
        self._dispatcher = dispatcher
        self._querier = querier
        self._notifier = notifier
        self._recorder = recorder
        self._store = store
        self._remember = remember
        """Writes down what triggers have to remember."""
        self._actions: asyncio.Queue[Sequence[Action]] = asyncio.Queue(MOST_WAITING)
        self._turn = asyncio.Semaphore(MOST_AT_ONCE)
        self._under_way: set[asyncio.Task[None]] = set()

    def take(self, actions: Sequence[Action]) -> None:
        judged = [action for action in actions if isinstance(action, Judged)]
        if judged:
            self._recorder.judged(judged)
            self._recorder.events(
                _event(entry, self._host_of(entry)) for entry in judged if entry.judgement in EVENTS
            )
        doing = [action for action in actions if not isinstance(action, Judged)]
        if not doing:
            return
        try:
            self._actions.put_nowait(doing)
        except asyncio.QueueFull:
            self._recorder.trouble(
                EventKind.STORE_TROUBLE,
                f"{len(doing)} things that triggers decided are not done: too many are waiting.",
                "",
            )

    def _host_of(self, entry: Judged) -> str:
        """Which host a trigger was judged for: itself, or the one of a machine or a job, whose key
        is HOST/ID; empty, if it was for none."""
        host = entry.subject.partition("/")[0]
        return host if self._dispatcher.has_host(host) else ""

    async def run(self) -> None:
        """Until cancelled."""
        try:
            await self._take_over()
            while True:
                await self._begin(await self._actions.get())
        finally:
            for task in self._under_way:
                task.cancel()
            await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _take_over(self) -> None:
        """Go on with what a former manager was carrying out."""
        for key, kept in (await self._store.kept_under(PLANS)).items():
            try:
                plan = msgspec.msgpack.decode(kept, type=Plan)
            except msgspec.MsgspecError:
                log.warning("What a former manager was carrying out cannot be understood.")
                await self._store.drop(key)
                continue
            await self._spawn(self._carry_out(key, plan, begun=True))

    async def _begin(self, actions: Sequence[Action]) -> None:
        """Write down what is to be done, together with the triggers' knowing that they fired."""
        plans: dict[str, Plan] = {}
        at_once: list[Step] = []
        for action in actions:
            if isinstance(action, IssueCommand):
                action = InOrder(action.issuer.removeprefix("trigger:"), ((action,),))
            elif isinstance(action, PlaceMachines):
                action = InOrder(action.trigger, ((action,),))
            if isinstance(action, InOrder):
                plans[f"{PLANS}{uuid.uuid4().hex}"] = _planned(Plan(action))
            elif not isinstance(action, Judged):
                at_once.append(action)
        written = await asyncio.gather(
            self._remember(), *(self._write(key, plan) for key, plan in plans.items())
        )
        for step in at_once:
            self._do(step)
        for (key, plan), is_written in zip(plans.items(), written[1:], strict=True):
            if is_written:
                await self._spawn(self._carry_out(key, plan, begun=False))

    async def _spawn(self, work: Coroutine[None, None, None]) -> None:
        await self._turn.acquire()
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._turn.release()

    async def _write(self, key: str, plan: Plan) -> bool:
        try:
            await self._store.keep(key, msgspec.msgpack.encode(plan))
        except EncampError as error:
            self._recorder.trouble(
                EventKind.STORE_TROUBLE,
                f"What trigger {plan.action.trigger} decided is not done: {error}",
                plan.action.trigger,
            )
            return False
        return True

    async def _carry_out(self, key: str, plan: Plan, *, begun: bool) -> None:
        """One step after the other. `begun`: the first of them may be under way already."""
        action = plan.action
        while True:
            wrong = await self._step(plan, begun=begun)
            left = len(action.steps) - plan.step - 1
            if wrong and left and not action.ignore_errors:
                self._recorder.event(
                    EventKind.NOTIFICATION,
                    f"Trigger {action.trigger} leaves its last {left} commands out: {wrong}.",
                    subject=action.trigger,
                )
                break
            if not left:
                break
            plan = _planned(Plan(action, plan.step + 1))
            begun = False
            if not await self._write(key, plan):
                break
        with contextlib.suppress(EncampError):
            await self._store.drop(key)

    async def _step(self, plan: Plan, *, begun: bool) -> str:
        """All of a step at the same time, and then its end. Returns what went wrong."""
        wrong = []
        issued: list[str] = []
        for step, ids in zip(plan.action.steps[plan.step], plan.ids, strict=True):
            if isinstance(step, IssueCommand):
                failed = await self._issue(step, ids, issued, begun=begun)
                wrong += [failed] if failed else []
            elif isinstance(step, PlaceMachines):
                failed = await self._have_placed(step, ids)
                wrong += [failed] if failed else []
            elif not begun:
                self._do(step)
        for command in issued:
            end = await self._dispatcher.commands.end_of(command)
            if end.state is not CommandState.DONE:
                wrong.append(f"{end.name} on {end.host} {IN_WORDS[end.state]}")
        return wrong[0] if wrong else ""

    def _do(self, step: Step) -> None:
        """What is over as soon as it has begun."""
        match step:
            case AskProperties():
                self._querier.ask(step.hosts, step.properties)
            case Notify():
                self._notifier.notify(step)

    async def _have_placed(self, step: PlaceMachines, ids: tuple[str, ...]) -> str:
        """Returns what went wrong."""
        try:
            for request in ids:
                await self._place(step, request)
        except EncampError as error:
            wrong = f"machines of {step.environment} could not be asked for"
            self._recorder.event(
                EventKind.NOTIFICATION,
                f"Trigger {step.trigger}: {wrong}: {error}",
                subject=step.trigger,
            )
            return wrong
        return ""

    async def _issue(
        self, step: IssueCommand, ids: tuple[str, ...], issued: list[str], *, begun: bool
    ) -> str:
        """To each host by itself: one that is gone does not keep the others from being told.
        Returns what went wrong."""
        wrong = ""
        for host, command in zip(step.hosts, ids, strict=True):
            try:
                if not (begun and await self._dispatcher.commands.is_known(command)):
                    await self._dispatcher.issue(
                        (host,),
                        step.name,
                        step.arguments,
                        step.issuer,
                        timeout=step.timeout,
                        ids=(command,),
                    )
                issued.append(command)
            except EncampError as error:
                wrong = f"{step.name} could not be issued to {host}"
                self._recorder.event(
                    EventKind.NOTIFICATION,
                    f"{step.issuer} could not issue {step.name} to {host}: {error}",
                    host,
                    step.issuer,
                )
        return wrong


def _planned(plan: Plan) -> Plan:
    """With ids for the commands and requests of its step."""
    ids = tuple(
        tuple(uuid.uuid4().hex for _ in range(_parts(step)))
        for step in plan.action.steps[plan.step]
    )
    return msgspec.structs.replace(plan, ids=ids)


def _parts(step: Step) -> int:
    """How many commands or requests it consists of."""
    if isinstance(step, IssueCommand):
        return len(step.hosts)
    return step.count if isinstance(step, PlaceMachines) else 0


def _event(entry: Judged, host: str) -> Event:
    about = f" for {entry.subject}" if entry.subject else ""
    what = f": {entry.reason}" if entry.reason else "."
    return Event(
        at=entry.at,
        kind=EVENTS[entry.judgement],
        sentence=f"Trigger {entry.trigger} {entry.judgement.value}{about}{what}",
        host=host,
        subject=entry.trigger,
        facts={"for": entry.subject, "seen": entry.seen, **whose(entry.owner)},
    )
