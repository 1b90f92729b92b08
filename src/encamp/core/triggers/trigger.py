"""One trigger, checked and ready to be judged."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from encamp.core.actions import Step
from encamp.core.expressions import (
    Call,
    Expression,
    ExpressionError,
    Signature,
    compile_call,
    compile_expression,
)
from encamp.core.schema import Schema
from encamp.core.triggers.calls import Doing, signatures, wrong_with
from encamp.core.triggers.causes import Firing
from encamp.core.triggers.journal import Journal
from encamp.core.triggers.owning import sight_of
from encamp.core.triggers.problems import (
    Problem,
    error_of,
    of_definition,
    of_expression,
    of_passage,
)
from encamp.core.triggers.timing import Standing, Timing
from encamp.model.command import CommandDefinition
from encamp.model.trigger import LEAST_TIME, TriggerDefinition

Steps = tuple[tuple[Step, ...], ...]


class Trigger:
    """What it is; what is remembered of it is beside that, so that it can be carried over."""

    def __init__(
        self,
        definition: TriggerDefinition,
        expression: Expression,
        calls: tuple[Call, ...],
        doing: Doing,
    ) -> None:
        self.definition = definition
        self.name = definition.name
        self.expression = expression
        self.calls = calls
        self.doing = doing
        self.sight = sight_of(expression, calls)
        """Whose business it is what it sees."""
        self.timing = Timing.of(definition, timed=expression.timed, momentary=expression.momentary)
        # ── remembered ──
        self.standings: dict[str | None, Standing] = {}
        self.journal = Journal()
        self.fired = 0
        self.last_fired = 0.0
        self.stopped = ""
        """Why it does not fire any more."""
        self.stopped_for: dict[str, str] = {}
        """Subjects, and hosts with all on them, for which it does not fire any more, and why."""
        self.next_tick: float | None = None
        self.next_wide_look: float | None = None
        self.last_wide_look = 0.0
        self.wide_firings: tuple[Firing, ...] = ()
        """What the changes that call for it may be the effects of."""
        self.unseen: set[str | None] = set()
        """Subjects that changed since the last tick, if it is looked at on ticks only."""
        self.seen_whole = False
        """All subjects were looked at once; what has not changed since is as it was."""

    def must_see_all(self) -> bool:
        """Must every subject be looked at on a tick?"""
        if self.expression.timed:
            return not self.expression.momentary
        return not self.timing.on_update and not self.seen_whole

    def take_over(self, former: Trigger) -> None:
        """Go on where one that meant the same was."""
        self.standings = former.standings
        self.journal = former.journal
        self.fired, self.last_fired = former.fired, former.last_fired
        self.stopped, self.stopped_for = former.stopped, former.stopped_for
        self.next_tick = former.next_tick
        self.unseen, self.seen_whole = former.unseen, former.seen_whole
        self.next_wide_look, self.last_wide_look = former.next_wide_look, former.last_wide_look
        self.wide_firings = former.wide_firings


class Compiler:
    """Checks definitions against what the site knows. What is written alike is compiled once."""

    def __init__(
        self,
        schema: Schema,
        commands: Mapping[str, CommandDefinition],
        environments: Collection[str] = (),
    ) -> None:
        self.schema = schema
        self._environments = environments
        self.commands = commands
        self.signatures: dict[str, Signature] = signatures(commands)
        self.problems: list[Problem] = []
        self._expressions: dict[str, Expression] = {}

    def compile_all(self, definitions: Iterable[TriggerDefinition]) -> list[Trigger]:
        """All of them; an error that tells of all mistakes, if there is any."""
        made = {}
        for definition in definitions:
            if definition.name in made:
                self.problems.append(
                    of_definition(definition, f"there is a trigger '{definition.name}' already")
                )
            made[definition.name] = self.compile(definition)
        if self.problems:
            raise error_of(self.problems)
        return [trigger for trigger in made.values() if trigger is not None]

    def compile(self, definition: TriggerDefinition) -> Trigger | None:
        """None if it is wrong, which is reported."""
        before = len(self.problems)
        expression = self._expression(definition)
        about = None
        if expression is not None:
            about = [] if expression.about is None else [expression.about]
            self._check_timing(definition, expression)
        calls = self._calls(definition, about)
        if expression is None or len(self.problems) > before:
            return None
        doing = Doing(definition.name, self.commands)
        return Trigger(definition, expression, calls, doing)

    def _expression(self, definition: TriggerDefinition) -> Expression | None:
        text = definition.when.text
        found = self._expressions.get(text)
        if found is None:
            try:
                found = self._expressions[text] = compile_expression(text, self.schema)
            except ExpressionError as error:
                self.problems += of_expression(definition.when, error)
        return found

    def _calls(self, definition: TriggerDefinition, about: list[str] | None) -> tuple[Call, ...]:
        made: list[Call] = []
        for passage in definition.do:
            try:
                calls = compile_call(passage.text, self.schema, self.signatures, about=about)
            except ExpressionError as error:
                self.problems += of_expression(passage, error)
                continue
            for call in calls:
                if wrong := wrong_with(call, self.schema, self._environments):
                    self.problems.append(of_passage(passage, call.line, call.column, wrong))
            made += calls
        if not definition.do:
            self.problems.append(of_definition(definition, "'do' is missing: nothing is done"))
        return tuple(made)

    def _check_timing(self, definition: TriggerDefinition, expression: Expression) -> None:
        for name in ("hold", "every", "cooldown", "ticks"):
            seconds = getattr(definition, name)
            if seconds != 0 and not LEAST_TIME <= seconds < math.inf:
                self.problems.append(
                    of_definition(definition, f"'{name}' is less than {LEAST_TIME:g} seconds")
                )
        for holds, sentence in (
            (
                definition.once and definition.every,
                "'once' and 'every' contradict each other: leave one of them out",
            ),
            (
                expression.momentary and definition.hold,
                "'hold' never ends: the expression is only true at the moment of a change",
            ),
            (
                expression.momentary and definition.every,
                "'every' has no meaning: the expression is only true at the moment of a change",
            ),
            (
                expression.momentary and definition.on_update_check is False,
                "it would never be true: changes are only seen with 'on_update_check'",
            ),
        ):
            if holds:
                self.problems.append(of_definition(definition, sentence))


def check(
    definitions: Iterable[TriggerDefinition],
    schema: Schema,
    commands: Mapping[str, CommandDefinition],
) -> list[Problem]:
    """All mistakes of all triggers."""
    compiler = Compiler(schema, commands)
    for definition in definitions:
        compiler.compile(definition)
    return compiler.problems
