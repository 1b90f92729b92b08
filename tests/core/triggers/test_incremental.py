"""However random the site: the engine fires exactly when one would that looks at everything anew
every second. And it does so with work that does not grow with the number of triggers and hosts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from encamp.core.actions import Judged, Judgement
from encamp.core.expressions import Evaluator, compile_expression
from encamp.core.triggers import Engine
from encamp.core.world import Known, Unknown, World
from encamp.model.trigger import Passage, TriggerDefinition
from tests.core.triggers.small_site import COMMANDS, START, SmallSite

# ── the engine that knows nothing but the rules ──────────────────────────────────────────────────


@dataclasses.dataclass
class State:
    since: float | None = None
    done: bool = False
    owed: bool = False
    last: float | None = None
    read: object = None


class NaiveEngine:
    """Works everything out anew, every second."""

    def __init__(self, world: World, definitions: list[TriggerDefinition]) -> None:
        self.world = world
        self.definitions = definitions
        self.expressions = {
            definition.name: compile_expression(definition.when.text, world.schema)
            for definition in definitions
        }
        self.states: dict[tuple[str, str], State] = {}

    def step(self, now: float) -> set[tuple[str, str]]:
        fired = set()
        present = set()
        for definition in self.definitions:
            expression = self.expressions[definition.name]
            about = expression.about
            for subject in [None] if about is None else list(self.world.things[about]):
                name = (definition.name, subject or "")
                present.add(name)
                outcome = Evaluator(self.world).evaluate(expression, subject, now)
                state = self.states.setdefault(name, State())
                thing = self.world.things["host"].get(subject or "")
                read = dict(thing.facts) if thing is not None else {}
                new, state.read = read.get("load1") != state.read, read.get("load1")
                if self._fires(definition, state, outcome.value, new, now):
                    state.last, state.done, state.owed = now, True, False
                    fired.add(name)
        for name in self.states.keys() - present:
            del self.states[name]
        return fired

    def _fires(
        self, definition: TriggerDefinition, state: State, value: Known, new: bool, now: float
    ) -> bool:
        ticks_only = bool(definition.ticks)
        if ticks_only:
            if now == START or (now - START) % definition.ticks:
                return False
            new = True
        if isinstance(value, Unknown) or not value:
            state.since, state.owed = None, False
            state.done = state.done and isinstance(value, Unknown)
            return False
        state.since = now if state.since is None else state.since
        if now - state.since < definition.hold:
            return False
        if not state.done:
            wanted = True
        elif definition.every:
            assert state.last is not None
            wanted = now >= state.last + definition.every
        elif definition.once:
            wanted = False
        else:
            wanted = new or state.owed
        if wanted and state.last is not None and now < state.last + definition.cooldown:
            state.owed = True
            return False
        return wanted


# ── random sites ─────────────────────────────────────────────────────────────────────────────────

SIMPLE = ("host.load1 > 2", "host.load1 >= 1 and host.load1 != 3", "not 2 < host.load1")
"""They read nothing but the load, so that it is plain what is news to them."""
EXPRESSIONS = (
    *SIMPLE,
    "host.load1 > 1 and host.cpus > 1",
    "host.load1 > host.cpus",
    "host.kernel == 'a' or host.cpus == 2",
    "'b' != host.kernel and 1 + 1 >= host.cpus",
    "host.load1 > 1 and (host.cpus < 2 or not host.load1 <= 2)",
    "sum(h.load1 for h in hosts) > 4",
    "len(hosts) >= 2 and len(machines) != 1",
    "any(h.load1 > 2 for h in hosts)",
    "host.load1 > mean(h.load1 for h in hosts)",
    "machine.state == 'running' and machine.host.load1 > 1",
    "len([m for m in machines if m.host == host.name and m.state == 'running']) > 1",
)

SPANS = st.sampled_from([0.0, 0.0, 2.0, 3.0, 5.0])


@st.composite
def definitions(draw: st.DrawFn) -> list[TriggerDefinition]:
    made = []
    for number in range(draw(st.integers(1, 4))):
        once = draw(st.booleans())
        every = 0.0 if once else draw(SPANS)
        ticks = draw(st.sampled_from([0.0, 0.0, 2.0, 3.0]))
        text = draw(st.sampled_from(EXPRESSIONS if once or every or ticks else SIMPLE))
        made.append(
            TriggerDefinition(
                name=f"t{number}",
                when=Passage(text),
                do=(Passage("log('x')"),),
                hold=draw(SPANS),
                once=once,
                every=every,
                cooldown=draw(SPANS),
                ticks=ticks,
            )
        )
    return made


NUMBERS = st.sampled_from([0.0, 1.0, 2.0, 2.5, 3.0, 4.0])
UNKNOWN = st.just(Unknown("it failed"))
NAMES = st.sampled_from(["a", "b", "c"])
Deed = Callable[[World], object]


def _read(name: str, fact: str, value: Known) -> Deed:
    return lambda world: world.put("host", name, {"name": name, fact: value})


def _run(host: str, number: int, state: str) -> Deed:
    facts: dict[str, Known] = {"id": f"m{number}", "host": host, "state": state}
    return lambda world: world.put("machine", f"{host}/m{number}", facts)


DEEDS = st.one_of(
    st.builds(_read, NAMES, st.just("load1"), NUMBERS | UNKNOWN),
    st.builds(_read, NAMES, st.just("cpus"), st.integers(0, 3) | UNKNOWN),
    st.builds(_read, NAMES, st.just("kernel"), st.sampled_from(["a", "b"]) | UNKNOWN),
    st.builds(_run, NAMES, st.integers(0, 1), st.sampled_from(["running", "paused"])),
    NAMES.map(lambda name: lambda world: world.drop("host", name)),
    st.builds(
        lambda host, n: lambda world: world.drop("machine", f"{host}/m{n}"),
        NAMES,
        st.integers(0, 1),
    ),
)


def log_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("encamp.core.triggers.journal.BURST", {True: 1e9, False: 1e9})


@settings(deadline=None, max_examples=200)
# The look at everything after loading is no news to what has fired in the same step.
@example(
    [
        TriggerDefinition(
            name=f"t{number}",
            when=Passage(text),
            do=(Passage("log('x')"),),
            once=False,
            cooldown=2.0,
        )
        for number, text in enumerate(["host.load1 > 2", "not 2 < host.load1"])
    ],
    [],
    [_read("a", "load1", 0.0)],
    5000,
)
@given(
    definitions(),
    st.lists(DEEDS, max_size=8),
    st.lists(st.none() | DEEDS, max_size=25),
    st.sampled_from([5000, 2, 0]),
)
def test_fires_as_one_that_looks_at_everything(
    triggers: list[TriggerDefinition], before: list[Deed], deeds: list[Deed | None], many: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        # However many changes at once are too many to be gone through one by one.
        patched.setattr("encamp.core.triggers.engine.MANY", many)
        log_everything(patched)
        site = SmallSite()
        engine = Engine(site.world)
        for deed in before:
            deed(site.world)
        engine.load(triggers, COMMANDS, START)
        naive = NaiveEngine(site.world, triggers)
        following: list[Deed | None] = [*deeds, *[None] * 12]
        for second, next_deed in enumerate(following):
            now = START + second
            if next_deed is not None:
                next_deed(site.world)
            actions = engine.step(site.world.take_changes(), now)
            fired = [
                (entry.trigger, entry.subject)
                for entry in actions
                if isinstance(entry, Judged) and entry.judgement is Judgement.FIRED
            ]
            assert len(fired) == len(set(fired))
            assert set(fired) == naive.step(now), f"in second {second}"


# ── how much work it is ──────────────────────────────────────────────────────────────────────────


def looks_for_one_change(expression: str, triggers: int, hosts: int) -> int:
    """How many expressions are worked out when the load of one host moves from 3.0 to 3.1."""
    text = "".join(
        f"t{number}:\n  when: {expression.format(number=number)}\n  do: log('x')\n"
        for number in range(triggers)
    )
    site = SmallSite()
    for number in range(hosts):
        site.host(f"node{number}", load1=3.0, cpus=4)
    site.load(text)
    site.step()
    before = site.engine.looks
    site.set("node0", load1=3.1)
    return site.engine.looks - before


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("host.load1 > {number} + 1", 1),
        ("host.load1 > {number}.05", 1),
        ("host.load1 == {number}", 1),
        ("host.cpus > {number}", 0),
        ("host.memory_free > {number} * GiB", 0),
        ("host.load1 > host.cpus + {number}", None),
        ("sum(h.load1 for h in hosts) < -{number}", 0),
        ("min(h.cpus for h in hosts) > {number}", 0),
        ("len(hosts) > {number}", 0),
    ],
)
def test_work_does_not_grow_with_the_number_of_triggers_and_hosts(
    expression: str, expected: int | None
) -> None:
    few = looks_for_one_change(expression, 10, 10)
    many = looks_for_one_change(expression, 100, 200)
    if expected is None:
        # What is no fixed value is worked out for the host that changed, and for no other.
        assert (few, many) == (10, 100)
    else:
        assert (few, many) == (expected, expected)


def test_a_trigger_that_wants_every_update_gets_it_though_others_share_its_expression() -> None:
    site = SmallSite(
        "a: {when: host.load1 > 2, do: log('a'), once: no}\nb: {when: host.load1 > 2, do: log('b')}"
    )
    for load in (3.0, 4.0, 5.0):
        site.set(load1=load)
    assert sorted(site.texts()) == ["a", "a", "a", "b"]


def test_many_changes_are_answered_by_one_look_at_all_who_are_compared_with_each_other() -> None:
    site = SmallSite("t: {when: host.load1 > 2 * mean(h.load1 for h in hosts), do: log(host.name)}")
    for number in range(100):
        site.host(f"node{number}", load1=1.0)
    site.step()
    site.wait(10)
    before = site.engine.looks
    for number in range(50):
        site.now += 0.01
        site.set(f"node{number}", load1=1.0 + number / 100)
    site.wait(5)
    # One at once, one for all that followed within a second, and one for each host that changed.
    assert site.engine.looks - before <= 2 * 100 + 50
    site.set("node3", load1=1000.0)
    site.wait(1)
    assert site.texts() == ["node3"]


def test_a_whole_site_that_is_found_at_once_is_gone_through_in_slices() -> None:
    site = SmallSite(
        "".join(f"t{n}: {{when: host.load1 > {n}, do: log('x')}}\n" for n in range(1, 101))
        + "last: {when: host.load1 > 2 * host.cpus, do: log(host.name)}\n"
        + "new: {when: changed(host.kernel), do: log(host.kernel), cooldown: 1s}\n"
    )
    site.set("node7", load1=0.5, cpus=4, kernel="6.0")
    site.wait(2)
    for number in range(2000):
        site.host(f"node{number}", load1=0.5, cpus=4)
    site.host("node7", load1=9.0, kernel="6.1")
    before = site.engine.looks
    site.step()
    # Those that cannot be true are not even looked at, one by one or in slices.
    assert site.engine.looks - before < 3 * 2000
    assert sorted(site.texts()) == ["6.1", "node7", *["x"] * 8]
