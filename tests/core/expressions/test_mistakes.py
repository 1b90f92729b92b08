"""Every mistake is found when an expression is loaded, told with its place and a way out."""

from __future__ import annotations

import pickle

import pytest

from encamp.core.expressions import ExpressionError, compile_expression
from encamp.core.kinds import schema_of
from encamp.core.schema import Type
from encamp.model.command import CommandState
from encamp.model.errors import Code
from encamp.model.host import Presence
from encamp.model.machine import State
from tests.core.expressions.site_of_tests import SCHEMA


def mistakes(text: str, wants: Type | None = Type.BOOL) -> list[str]:
    with pytest.raises(ExpressionError) as raised:
        compile_expression(text, SCHEMA, wants=wants)
    assert raised.value.code is Code.CONFIGURATION
    return [str(mistake) for mistake in raised.value.mistakes]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("host.lod1 > 2", "1:1: a host has no 'lod1'; did you mean 'load1'?"),
        ("host['lod1'] > 2", "1:1: a host has no 'lod1'; did you mean 'load1'?"),
        ("hst.load1 > 2", "1:1: there is no 'hst'; did you mean 'host'?"),
        ("True and machine.hots.load1 > 2", "1:10: a machine has no 'hots'; did you mean 'host'?"),
        ("cuont(hosts) > 2", "1:1: there is no function 'cuont'; did you mean 'count'?"),
        (
            "host.name.startwith('a')",
            "1:1: there is no method 'startwith'; did you mean 'startswith'?",
        ),
        ("len(group('worker')) > 1", "1:11: there is no group 'worker'; did you mean 'workers'?"),
        ("manager.client", "1:1: the manager has no 'client'; there is only manager.clients."),
        (
            "host.load1 > 'a'",
            "1:1: '>' does not go between a number and a text; it compares numbers, or texts.",
        ),
        ("host.name == 3", "1:1: a text and a whole number are never equal."),
        ("host.name in [1, 2]", "1:1: a text is never in this list."),
        (
            "host.load1 + host.name > 1",
            (
                "1:1: '+' does not go between a number and a text; write f'...{value}...',"
                " or str(value)."
            ),
        ),
        (
            "host.name * 3 == ''",
            (
                "1:1: '*' does not go between a text and a whole number; write texts as"
                " f'...{value}...'."
            ),
        ),
        (
            "host.swapping + 1 > 2",
            (
                "1:1: '+' does not go between a truth value and a whole number; count"
                " what is true with"
                " count(... if ...)."
            ),
        ),
        ("host.load1", "1:1: this is a number, not true or false; compare it: '!= 0'."),
        ("host.disks", "1:1: this is a list, not true or false; compare its len(...)."),
        ("not host.load1", "1:5: this is a number, not true or false; compare it: '!= 0'."),
        (
            "hosts",
            (
                "1:1: hosts stands for many hosts; ask for len(...) of it, or any(...), sum(...),"
                " max(...) over it."
            ),
        ),
        (
            "hosts.load1 > 1",
            (
                "1:1: hosts stands for many hosts; write 'host.load1' for each of them, or"
                " max(x.load1 for x in hosts)."
            ),
        ),
        (
            "host.load1 > machine.memory",
            (
                "1:14: this is about each host already, so it cannot be about each machine too; go"
                " through machines with any(... for ... in ...)."
            ),
        ),
        (
            "count(h.load1 > 2 for h in hosts) > 1",
            (
                "1:7: count() counts things, not values; put a condition behind 'if':"
                " count(h for h in"
                " ... if ...)."
            ),
        ),
        ("sum(h.name for h in hosts) > 1", "1:5: sum() is of numbers, not of a text."),
        ("any(h.load1 for h in hosts)", "1:5: any() is of what is true or false, not of a number."),
        ("sum(hosts) > 1", "1:5: sum() of what? Write sum(x.FACT for x in hosts)."),
        (
            "count(m for m in machines if m.memory > host.memory_free) > 1",
            (
                "1:30: inside a loop over things, host can only be compared with '==',"
                " as a condition of"
                " its own: if m.host == host.name."
            ),
        ),
        (
            "any(m.memory > host.memory_free for m in machines)",
            (
                "1:5: inside a loop over things, host can only be compared with '==', as"
                " a condition of"
                " its own: if m.host == host.name."
            ),
        ),
        (
            "any(changed(h.load1) for h in hosts)",
            "1:5: changed() cannot be asked inside a loop; ask it of the thing this is about.",
        ),
        (
            "any(count(m for m in machines if m.host == h.name) > 1 for h in hosts)",
            (
                "1:10: a collection cannot be gone through inside a loop over another;"
                " what is asked about"
                " each thing must be one of its facts."
            ),
        ),
        ("changed(host)", "1:9: changed() is asked of a fact, such as changed(host.presence)."),
        ("1 / 0 > 1", "1:1: this has no value: 1 / 0 divides by zero."),
        ("matches(host.name, host.presence)", "1:20: a pattern must be written as it is: 'node*'."),
        ("matches(host.name, '[a')", "1:20: a '[' in the pattern has no ']'."),
        (
            "f'{host.load1:>9.1q}' == ''",
            (
                "1:4: ':>9.1q' is no format; there are such as ':.1f', ':,', ':>10',"
                " with at most 99"
                " characters or digits."
            ),
        ),
        ("f'{host.name:.1f}' == ''", "1:4: ':.1f' is no format for a text."),
        ("round(1, 2, 3) > 1", "1:1: 'round' is written round(number)  round(number, digits)."),
        ("round(number=1) > 1", "1:1: round() takes no arguments by name."),
        (
            "host.load1 = 3",
            "1:12: this is not Python's syntax: nothing can be assigned; did you mean '=='?",
        ),
        ("host.load1 >", "1:13: this is not Python's syntax: something is missing at the end."),
        ("True\n  and 1 )", "2:9: this is not Python's syntax: "),
        ("host.load1 is 3", "1:1: 'is' goes only before None; write ==."),
        (
            "host.load1 > 1 | host.load1 < 2",
            ("1:14: '|' is not part of the language; did you mean 'or'?"),
        ),
        ("hosts[0].load1 > 1", "1:1: the key of one is expected here: hosts['name']."),
        ("host.name[0] == 'a'", "1:1: a text has no elements to be chosen with []."),
        ("host.disks['a'] == 1", "1:12: a list is not looked into with a text."),
        ("host.rooms.a == 1", "1:1: host.rooms is a dict; its parts are written host.rooms['a']."),
        ("host.load1.x > 1", "1:1: host.load1 is a number and has no 'x'."),
        ("count > 1", "1:1: 'count' is a function; write count(...)."),
        (
            "any(x > 1 for x in host.name)",
            "1:20: a loop goes through a collection or a list, not through a text.",
        ),
        (
            "any(x > 1 for x, y in host.disks)",
            ("1:15: a loop needs one plain name: 'for h in hosts'."),
        ),
        (
            "True and host.presence == 'joind'",
            (
                "1:27: a host's presence is never 'joind'; did you mean 'joined'? It is one of:"
                " joined, left, lost."
            ),
        ),
        (
            "'offline' != host['presence']",
            "1:1: a host's presence is never 'offline'; it is one of: joined, left, lost.",
        ),
        (
            "machine.host.presence in ('left', 'losst', machine.id)",
            (
                "1:35: a host's presence is never 'losst'; did you mean 'lost'? It is one of:"
                " joined, left, lost."
            ),
        ),
        (
            "host.presence not in ['Joined']",
            (
                "1:23: a host's presence is never 'Joined'; did you mean 'joined'? It is one of:"
                " joined, left, lost."
            ),
        ),
        (
            "count(m for m in machines if m.host == 'node1' and m.state == 'runing') > 1",
            (
                "1:63: a machine's state is never 'runing'; did you mean 'running'? It is one of:"
                " running, paused, failed."
            ),
        ),
        (
            "any(m.state == 'broken' for m in machines)",
            "1:16: a machine's state is never 'broken'; it is one of: running, paused, failed.",
        ),
        (
            "previous(host.presence) == 'gone'",
            "1:28: a host's presence is never 'gone'; it is one of: joined, left, lost.",
        ),
        (
            "hosts['node1'].presence == 'lo' + 'ss'",
            (
                "1:28: a host's presence is never 'loss'; did you mean 'lost'? It is one of:"
                " joined, left, lost."
            ),
        ),
        ("", "1:1: there is nothing here; an expression is expected."),
        ("(1", "1:1: this is not Python's syntax: '(' was never closed."),
    ],
)
def test_mistake(text: str, told: str) -> None:
    found = mistakes(text)
    assert len(found) == 1
    assert found[0].startswith(told) if told.endswith(" ") else found[0] == told


def test_all_mistakes_are_told_at_once_in_order() -> None:
    text = "host.lod1 > 2\n  and hosts['a'].nme == 'b'\n  and 1 + 'ä' + host.prsence == 'c'"
    assert mistakes(text) == [
        "1:1: a host has no 'lod1'; did you mean 'load1'?",
        "2:7: a host has no 'nme'; did you mean 'name'?",
        (
            "3:7: '+' does not go between a whole number and a text; write f'...{value}...', or"
            " str(value)."
        ),
        "3:17: a host has no 'prsence'; did you mean 'presence'?",
    ]


def test_a_fact_of_few_words_is_compared_freely_with_those_and_with_what_is_not_written() -> None:
    for text in (
        "host.presence == 'joined' or host.presence in ['left', 'lost']",
        "host.presence == host.name and host.presence in host.groups",
        "host.presence.upper() == 'JOINED' and 'jo' in host.presence",
        "machine.state != machine.host.presence",
        "host.name == 'joind'",
    ):
        compile_expression(text, SCHEMA)


def test_the_words_of_a_site_are_those_of_its_model() -> None:
    site = schema_of(())
    for words, kind, fact in (
        (Presence, "host", "presence"),
        (State, "machine", "state"),
        (State, "job", "state"),
        (CommandState, "command", "state"),
    ):
        for word in words:
            compile_expression(f"{kind}.{fact} == '{word.value}'", site)
        with pytest.raises(ExpressionError, match=f"a {kind}'s {fact} is never 'nonsense'"):
            compile_expression(f"{kind}.{fact} == 'nonsense'", site)


def test_what_it_may_be_about_can_be_restricted() -> None:
    compile_expression("host.load1 > 2", SCHEMA, about={"host"})
    with pytest.raises(ExpressionError, match="there is no single machine here"):
        compile_expression("machine.memory > 2", SCHEMA, about={"host"})
    with pytest.raises(ExpressionError, match="there is no single machine here; speak of all"):
        compile_expression("machine.memory > 2", SCHEMA, about=())


def test_the_type_that_is_needed_is_insisted_on() -> None:
    assert compile_expression("host.memory_free / 2", SCHEMA, wants=Type.FLOAT).type is Type.FLOAT
    assert compile_expression("host.memory_free", SCHEMA, wants=Type.FLOAT).type is Type.INT
    assert mistakes("host.name", Type.FLOAT) == ["1:1: a number is needed here, not a text."]
    assert compile_expression("host.extra", SCHEMA, wants=Type.STR).type is Type.STR


def test_the_error_can_cross_between_processes() -> None:
    with pytest.raises(ExpressionError) as raised:
        compile_expression("host.lod1 > 2 and nothing", SCHEMA)
    again = pickle.loads(pickle.dumps(raised.value))
    assert again.mistakes == raised.value.mistakes
