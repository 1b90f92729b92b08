"""A small site in virtual time, for tests of triggers."""

from __future__ import annotations

from collections.abc import Mapping

from encamp.core.actions import Action, InOrder, Judged, Judgement, Notify
from encamp.core.kinds import machine_key, schema_of
from encamp.core.triggers import Engine
from encamp.core.world import Known, World
from encamp.describe.sources import Level, Source
from encamp.describe.trigger_files import read_triggers
from encamp.model.command import CommandDefinition, Parameter
from encamp.model.property import PropertyDefinition, ValueKind
from encamp.model.trigger import TriggerDefinition

PROPERTIES = [
    PropertyDefinition(name="load1", command="load", return_type=ValueKind.FLOAT),
    PropertyDefinition(name="cpus", command="cpu", return_type=ValueKind.INT),
    PropertyDefinition(name="memory_free", command="memory", return_type=ValueKind.INT),
    PropertyDefinition(name="kernel", command="kernel", return_type=ValueKind.STR),
]

COMMANDS = {
    command.name: command
    for command in (
        CommandDefinition(name="agent.ping"),
        CommandDefinition(
            name="machine.start",
            parameters=(
                Parameter("environment"),
                Parameter("name", required=False),
                Parameter("memory", ValueKind.INT, required=False),
            ),
        ),
        CommandDefinition(name="machine.stop", parameters=(Parameter("machine"),)),
        CommandDefinition(name="machine.remove", parameters=(Parameter("machine"),)),
        CommandDefinition(name="machine.pause", parameters=(Parameter("machine"),)),
        CommandDefinition(name="image.pull", parameters=(Parameter("image"),)),
    )
}

START = 1_000_000.0


def source(name: str = "triggers.yaml") -> Source:
    return Source(name, Level.SITE, 0, "/")


def parse(text: str, name: str = "triggers.yaml") -> list[TriggerDefinition]:
    schema = schema_of(PROPERTIES, ["workers"])
    return read_triggers([(source(name), text.encode())], schema, COMMANDS)


class SmallSite:
    def __init__(self, triggers: str = "", *, name: str = "triggers.yaml") -> None:
        self.world = World(schema_of(PROPERTIES, ["workers"]))
        self.engine = Engine(self.world)
        self.now = START
        self.told: list[Judged] = []
        self.done: list[tuple[float, Action]] = []
        """All actions, and when, counted from the start."""
        if triggers:
            self.load(triggers, name=name)

    def load(
        self,
        text: str,
        *,
        name: str = "triggers.yaml",
        commands: Mapping[str, CommandDefinition] = COMMANDS,
    ) -> None:
        definitions = read_triggers([(source(name), text.encode())], self.world.schema, commands)
        self.engine.load(definitions, commands, self.now)

    def host(self, name: str = "node1", **facts: Known) -> None:
        """A host, or news of one; time does not pass."""
        known = {"name": name, **facts}
        if name not in self.world.things["host"]:
            known = {"presence": "joined", "groups": ["workers"], **known}
        self.world.put("host", name, known)

    def machine(self, host: str, machine_id: str, **facts: Known) -> None:
        key = machine_key(host, machine_id)
        self.world.put("machine", key, {"id": machine_id, "host": host, **facts})

    def command(self, command_id: str, host: str, issuer: str, state: str, name: str) -> None:
        """A command, or news of one."""
        facts: dict[str, Known] = {"id": command_id, "host": host, "issuer": issuer}
        self.world.put("command", command_id, {**facts, "name": name, "state": state})

    def step(self) -> list[Action]:
        """What the triggers do now; entries of the log are kept apart."""
        actions = self.engine.step(self.world.take_changes(), self.now)
        while self.engine.next_look() == 0.0:
            actions += self.engine.step((), self.now)
        self.told += [action for action in actions if isinstance(action, Judged)]
        done: list[Action] = [action for action in actions if not isinstance(action, Judged)]
        self.done += [(round(self.now - START, 6), action) for action in done]
        return done

    def set(self, name: str = "node1", **facts: Known) -> list[Action]:
        """News of a host, and what the triggers do."""
        self.host(name, **facts)
        return self.step()

    def wait(self, seconds: float) -> list[Action]:
        """Let time pass, with a step whenever the engine wants one."""
        end = self.now + seconds
        actions: list[Action] = []
        while (due := self.engine.next_look()) is not None and due <= end:
            self.now = max(self.now, due)
            actions += self.step()
        self.now = end
        return actions

    def times(self) -> list[float]:
        """When something was done, in seconds from the start."""
        return [at for at, _ in self.done]

    def texts(self) -> list[str]:
        """What was logged, in order."""
        return texts([action for _, action in self.done])

    def judgements(self, trigger: str = "") -> list[Judgement]:
        return [entry.judgement for entry in self.told if trigger in ("", entry.trigger)]


def texts(actions: list[Action]) -> list[str]:
    found = []
    for action in actions:
        if isinstance(action, Notify):
            found.append(action.text)
        elif isinstance(action, InOrder):
            found += texts([step for together in action.steps for step in together])
    return found
