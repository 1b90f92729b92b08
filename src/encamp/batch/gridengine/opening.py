"""How a host is closed to Grid Engine and opened again: by a calendar in which there is no time.

Queue instances that have the calendar `encamp` take no jobs (state `D`), and those that run go on.
Only Encamp gives it to them, and to take it away opens nothing that an administrator has disabled
(state `d`). Why a host is closed is what it says of `bait` (`qhost -F bait`).
"""

from __future__ import annotations

import re
from pathlib import PurePath

from encamp.batch.gridengine.answers import Instance, read_states, read_values
from encamp.batch.gridengine.calls import Calls
from encamp.model.batch import Bait, BaitState
from encamp.model.errors import Code, EncampError

CALENDAR = "encamp"
REASON = "bait"
"""The complex that carries the reason."""
STARTER = "encamp-starter"
NOTHING = "NONE"
DISABLED = "d"
NOT_TAKING = "dDsSCEoc"
"""States in which a queue instance takes no job; an overload passes by itself."""
UNHEARD = "u"
LONGEST_REASON = 200


class Opening:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    @property
    def _host(self) -> str:
        return self._calls.host

    # ── looking ──────────────────────────────────────────────────────────────────────────────────

    def instances(self) -> list[Instance]:
        """The queues of this host that start their jobs by Encamp."""
        purpose = f"looking at the queues of {self._host}"
        try:
            text = self._calls("qstat", "-f", "-xml", "-q", f"*@{self._host}", purpose=purpose)
        except EncampError as error:
            if error.code is Code.COMMAND_FAILED and not error.detail.strip():
                return []  # Which is all that it says of a host without a queue.
            raise
        states = read_states(text)
        if not states:
            return []
        shown = self._calls("qconf", "-sq", ",".join(states), purpose=purpose)
        found = []
        for values in read_values(shown):
            name = f"{values.get('qname')}@{values.get('hostname')}"
            starter = PurePath(values.get("starter_method", "")).name
            if name in states and starter == STARTER:
                calendar = values.get("calendar", NOTHING)
                found.append(
                    Instance(name=name, state=states[name], starter=starter, calendar=calendar)
                )
        return found

    def look(self) -> Bait:
        instances = self.instances()
        if not instances:
            return Bait(state=BaitState.UNKNOWN, reason=self._none())
        state = judge(instances)
        if state is BaitState.OPEN:
            # Hosts that change one queue at the same time can undo each other's change.
            return Bait(state=state, partly=any(each.calendar == CALENDAR for each in instances))
        if state is BaitState.UNKNOWN:
            sentence = f"Grid Engine has not heard of {self._host} for a while."
            return Bait(state=state, reason=sentence)
        letters = ", ".join(f"{each.name} is in state {each.state}" for each in instances)
        return Bait(state=state, reason=self.reason() or letters)

    # ── closing and opening ──────────────────────────────────────────────────────────────────────

    def close(self, reason: str) -> None:
        instances = self.instances()
        if not instances or judge(instances) is BaitState.CLOSED:
            return
        taking = [each for each in instances if each.calendar != CALENDAR]
        if taking:
            self.have_calendar()
        self.say(reason)
        for instance in taking:
            if instance.calendar == NOTHING:
                self.change("-rattr", "queue", "calendar", CALENDAR, instance.name)
        foreign = [each for each in taking if each.calendar != NOTHING]
        if foreign and len(foreign) == len(instances):
            raise EncampError(
                Code.WRONG_STATE,
                f"{foreign[0].name} cannot be closed: it has a calendar, '{foreign[0].calendar}'.",
                "Queues with a calendar of their own stay open when the host is full.",
            )

    def open(self) -> None:
        instances = self.instances()
        for instance in instances:
            if instance.calendar == CALENDAR:
                self.change("-purge", "queue", "calendar", instance.name)
        if not any(DISABLED in each.state for each in instances):
            self.say("")

    def close_for_good(self, reason: str) -> None:
        """As an administrator does it."""
        instances = self._some_instances()
        self.say(reason)
        self.enable("-d", [each for each in instances if DISABLED not in each.state])

    def open_for_good(self) -> None:
        self.enable("-e", [each for each in self._some_instances() if DISABLED in each.state])
        self.open()

    def _some_instances(self) -> list[Instance]:
        instances = self.instances()
        if not instances:
            raise EncampError(
                Code.WRONG_STATE,
                self._none(),
                "Add the host to a queue (qconf -aattr queue hostlist HOST QUEUE), or see "
                "'encamp batch install gridengine'.",
            )
        return instances

    def _none(self) -> str:
        return f"No queue of {self._host} starts its jobs by {STARTER}."

    # ── how ──────────────────────────────────────────────────────────────────────────────────────

    def enable(self, option: str, instances: list[Instance]) -> None:
        if instances:
            names = ",".join(each.name for each in instances)
            self._calls("qmod", option, names, purpose=f"changing the queues of {self._host}")

    def change(self, *words: str) -> None:
        self._calls("qconf", *words, purpose=f"changing how {self._host} takes jobs")

    def have_calendar(self) -> None:
        try:
            self._calls("qconf", "-scal", CALENDAR, purpose="looking for a calendar")
        except EncampError as error:
            if error.transient:
                raise
            self._calls.described(
                "-Acal", f"calendar_name {CALENDAR}\nyear NONE\nweek mon-sun=off\n"
            )

    def reason(self) -> str:
        text = self._calls("qconf", "-se", self._host, purpose=f"asking about {self._host}")
        for values in read_values(text):
            for part in values.get("complex_values", "").split(","):
                name, _, value = part.partition("=")
                if name == REASON:
                    return value.replace("_", " ")
        return ""

    def say(self, reason: str) -> None:
        """A site that has no such complex is told nothing, but closed nevertheless."""
        words = ("exechost", "complex_values")
        try:
            if reason:
                self.change("-mattr", *words, f"{REASON}={escaped(reason)}", self._host)
            elif self.reason():
                self.change("-dattr", *words, REASON, self._host)
        except EncampError as error:
            if error.transient:
                raise


def judge(instances: list[Instance]) -> BaitState:
    """Of a host with several queues, one that takes jobs counts."""
    heard = [each for each in instances if UNHEARD not in each.state]
    if not heard:
        return BaitState.UNKNOWN
    if any(not set(each.state) & set(NOT_TAKING) for each in heard):
        return BaitState.OPEN
    ours = [e for e in heard if e.calendar == CALENDAR and DISABLED not in e.state]
    return BaitState.FULL if ours else BaitState.CLOSED


def escaped(reason: str) -> str:
    """A reason as one word of a list: nothing in it can end the word, or begin another."""
    return re.sub(r"[^A-Za-z0-9./:+-]+", "_", reason)[:LONGEST_REASON].strip("_") or "closed"
