"""Doing what triggers decide, as the real manager does it: written down first, one step after the
other, and gone on with by whoever is the manager next.

Machines are placed, and idle ones removed. All else would leave the simulation: it is counted, and
told what would have been done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from encamp.core.actions import (
    Action,
    AskProperties,
    InOrder,
    IssueCommand,
    Judged,
    Notify,
    PlaceMachines,
    Step,
)
from encamp.core.happenings import CommandMoved, Happening
from encamp.core.step import Core
from encamp.core.triggers.calls import words
from encamp.model.command import CommandRecord, CommandState
from encamp.model.errors import EncampError
from encamp.sim.properties import REMOVE
from encamp.sim.said import Answer, Remove
from encamp.sim.sending import Ask
from encamp.sim.world import World
from encamp.sim.written import Written

AGAIN = 5.0
"""Seconds after which a host is told again that has not answered."""
LONGEST = 120.0
"""Seconds that the removal of a machine may take."""


class Hands:
    def __init__(
        self,
        core: Core,
        world: World,
        written: Written,
        ask: Ask,
        happened: Callable[[Happening], None],
        place: Callable[[PlaceMachines, str], None],
        acts: Callable[[Action], None],
    ) -> None:
        """`place`: has one machine placed by a request of this id, if there is none of it yet;
        raises EncampError. `acts`: is called before each thing that is done; the manager may die
        over it."""
        self.alive = True
        self._core = core
        self._world = world
        self._written = written
        self._ask = ask
        self._happened = happened
        self._place = place
        self._acts = acts
        self._former = list(written.plans)
        """What another manager has left."""
        self._under_way: dict[str, set[str]] = {}
        """Of each plan, the commands of its step that are not over."""
        self._failed: set[str] = set()
        """Plans of which a command of the step that is under way has failed."""

    def resume(self) -> None:
        """Go on with what a former manager was about."""
        for key in self._former:
            if self.alive:
                self._do(key, again=True)

    def take(self, actions: Sequence[Action]) -> None:
        doing = [action for action in actions if not isinstance(action, Judged)]
        plans = []
        for action in doing:
            self._acts(action)
            if not self.alive:
                return
            plans.append(self._written.plan(_in_order(action)))
        # What triggers know of their firing is written together with what follows from it.
        for name, memory in self._core.engine.memory_changes().items():
            if memory is None:
                self._written.memory.pop(name, None)
            else:
                self._written.memory[name] = memory
        for key in plans:
            if self.alive:
                self._do(key)

    def _do(self, key: str, *, again: bool = False) -> None:
        """Everything of a step at the same time; `again`: some of it may be done already."""
        plan = self._written.plans[key]
        removals: list[tuple[str, str, IssueCommand]] = []
        for step, ids in zip(plan.action.steps[plan.step], plan.ids, strict=True):
            if isinstance(step, PlaceMachines):
                self._have_placed(key, step, ids)
                if not self.alive:
                    return
            elif isinstance(step, IssueCommand) and _is_removal(step):
                removals += zip(ids, step.hosts, [step] * len(ids), strict=True)
            elif not again:
                self._world.tally.was_not_done(plan.action.trigger, _name(step), words(step))
        self._under_way[key] = {command for command, _, _ in removals}
        for command, host, step in removals:
            self._issue(key, command, host, step)
        if not removals:
            self._next(key)

    def _have_placed(self, key: str, step: PlaceMachines, ids: tuple[str, ...]) -> None:
        for request in ids:
            self._acts(step)
            if not self.alive:
                return
            try:
                self._place(step, request)
            except EncampError as error:
                self._world.log.say("manager", "cannot place", step.environment, error.sentence)
                wrong = f"{words(step)}: {error.sentence}"
                self._world.tally.was_not_done(step.trigger, _name(step), wrong)
                self._failed.add(key)
                return

    # ── idle machines are removed ────────────────────────────────────────────────────────────────

    def _issue(self, key: str, command: str, host: str, step: IssueCommand) -> None:
        now = self._world.clock.now
        record = CommandRecord(
            id=command,
            host=host,
            name=step.name,
            arguments=step.arguments,
            issuer=step.issuer,
            issued=now,
            timeout=LONGEST,
            changed=now,
        )
        self._happened(CommandMoved(record))
        self._send(key, record)

    def _send(self, key: str, record: CommandRecord) -> None:
        state = self._core.picture.hosts.get(record.host)
        machine = str(record.arguments["machine"])
        late = self._world.clock.now > record.issued + LONGEST
        if late or state is None or machine not in state.machines:
            self._over(key, record, CommandState.TIMED_OUT if late else CommandState.FAILED)
            return
        message = Remove(machine, only_idle=True)
        self._ask(record.host, message, lambda answer: self._answered(key, record, answer))

    def _answered(self, key: str, record: CommandRecord, answer: Answer | None) -> None:
        if answer is None:
            self._world.clock.after(AGAIN, self._again, key, record)
            return
        state = CommandState.FAILED if answer.refusal else CommandState.DONE
        self._over(key, record, state)

    def _again(self, key: str, record: CommandRecord) -> None:
        if self.alive:
            self._send(key, record)

    def _over(self, key: str, record: CommandRecord, state: CommandState) -> None:
        now = self._world.clock.now
        self._happened(
            CommandMoved(msgspec.structs.replace(record, state=state, changed=now, ended=now))
        )
        if state is not CommandState.DONE:
            self._failed.add(key)
        under_way = self._under_way.get(key, set())
        under_way.discard(record.id)
        if not under_way:
            self._next(key)

    def _next(self, key: str) -> None:
        """A step is over: the next one follows, unless something of it failed."""
        plan = self._written.plans[key]
        del self._under_way[key]
        failed = key in self._failed and not plan.action.ignore_errors
        self._failed.discard(key)
        if failed or plan.step + 1 >= len(plan.action.steps):
            del self._written.plans[key]
            return
        self._written.go_on(key)
        self._do(key)


def _in_order(action: Step | InOrder) -> InOrder:
    if isinstance(action, InOrder):
        return action
    if isinstance(action, IssueCommand):
        return InOrder(action.issuer.removeprefix("trigger:"), ((action,),))
    trigger = getattr(action, "trigger", "")
    return InOrder(trigger, ((action,),))


def _name(step: Step) -> str:
    """What kind of thing it is."""
    match step:
        case IssueCommand():
            return step.name
        case Notify():
            return step.way.value
        case PlaceMachines():
            return "place"
        case AskProperties():
            return "query"


def _is_removal(step: IssueCommand) -> bool:
    """Of an idle machine; nothing else that hosts can be told has a meaning here."""
    return step.name == REMOVE and step.arguments.get("idle") is True
