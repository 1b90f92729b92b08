"""Calls in the command of a trigger: what is told to whom."""

from __future__ import annotations

import pytest

from encamp.core.expressions import (
    Argument,
    Call,
    Evaluator,
    ExpressionError,
    Signature,
    compile_call,
)
from encamp.core.schema import Type
from encamp.core.world import Unknown
from tests.core.expressions.site_of_tests import SCHEMA, small_site

SIGNATURES = {
    signature.name: signature
    for signature in (
        Signature(
            "send",
            (Argument("to", things="host", many=True), Argument("command", Type.STR)),
            chosen_by="command",
            chosen={
                "machine.pause": (Argument("machine", Type.STR),),
                "program.run": (
                    Argument("program", Type.STR),
                    Argument("seconds", Type.FLOAT, required=False),
                ),
            },
        ),
        Signature("sender.send_get_property", (), more=Argument("properties", Type.STR)),
        Signature("log", (Argument("text", Type.STR),)),
        Signature(
            "note", (Argument("value"), Argument("way", Type.STR, False, choices=("a", "b")))
        ),
        Signature("one", (Argument("machine", things="machine"),)),
        Signature("fixed", (Argument("name", Type.STR, constant=True),)),
    )
}


def calls(text: str, about: str | None = None) -> tuple[Call, ...]:
    return compile_call(text, SCHEMA, SIGNATURES, about=about and {about})


def prepared(text: str, subject: str | None = None) -> dict[str, object]:
    (call,) = calls(text)
    evaluator = Evaluator(small_site())
    fresh = evaluator.prepare(call, subject, 1000.0)
    evaluator.add(call)
    assert evaluator.prepare(call, subject, 1000.0) == fresh
    assert fresh.unknown is None
    return dict(fresh.arguments)


@pytest.mark.parametrize(
    ("text", "subject", "arguments"),
    [
        ("sender.send_get_property()", None, {}),
        ("sender.send_get_property('a', 'b')", None, {"properties": ["a", "b"]}),
        (
            "send(machine.host, 'machine.pause', machine=machine.id)",
            "m1",
            {"to": ("node1",), "command": "machine.pause", "machine": "m1"},
        ),
        (
            "send(to=host, command='machine.pause', machine='m1')",
            "node2",
            {"to": ("node2",), "command": "machine.pause", "machine": "m1"},
        ),
        (
            "send(group('workers'), 'program.run', program='df', seconds=3)",
            None,
            {"to": ("node1", "node2"), "command": "program.run", "program": "df", "seconds": 3},
        ),
        (
            "send([h for h in hosts if h.load1 > 1], 'program.run', program='df')",
            None,
            {"to": ("node2",), "command": "program.run", "program": "df"},
        ),
        (
            "send((h for h in hosts if h.presence == 'lost'), 'program.run', program='df')",
            None,
            {"to": (), "command": "program.run", "program": "df"},
        ),
        (
            "send(['node1', machines['m3'].host], 'program.run', program='df')",
            None,
            {"to": ("node1", "node2"), "command": "program.run", "program": "df"},
        ),
        ("log(f'{host.name} is hot: {host.load1:.1f}')", "node2", {"text": "node2 is hot: 4.0"}),
        (
            "log(f'{count(m for m in machines if m.host == host.name)} machines')",
            "node1",
            {"text": "2 machines"},
        ),
        ("note({'a': [1, host.load1]}, way='b')", "node1", {"value": {"a": [1, 0.5]}, "way": "b"}),
        ("note(manager.clients)", None, {"value": ["node1", "node2", "node3"]}),
        ("note(host)", "node1", {"value": "node1"}),
        ("one(machine)", "m1", {"machine": "m1"}),
        ("one('m9')", None, {"machine": "m9"}),
        ("fixed('a' + 'b')", None, {"name": "ab"}),
    ],
)
def test_call(text: str, subject: str | None, arguments: dict[str, object]) -> None:
    assert prepared(text, subject) == arguments


def test_several_calls_in_order() -> None:
    found = calls("log('a'); log('b')\n   log(\n  'c')\n\n# nothing\nsender.send_get_property();")
    assert [call.function for call in found] == ["log"] * 3 + ["sender.send_get_property"]
    assert [call.constants.get("text") for call in found] == ["a", "b", "c", None]
    assert [(call.line, call.column) for call in found] == [(1, 1), (1, 11), (2, 4), (6, 1)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("sned(host)", ["1:1: 'sned' cannot be called here; did you mean 'send'?"]),
        (
            "send(group('workers'), 'machine.puse', machin=3)",
            ["1:24: there is no 'machine.puse'; did you mean 'machine.pause'?"],
        ),
        (
            "send(host, 'program.run', progam='x', seconds='y')",
            [
                "1:1: 'program.run' needs 'program' too.",
                "1:34: there is no argument 'progam'; did you mean 'program'?",
                "1:47: a number is needed here, not a text.",
            ],
        ),
        (
            "send(machine, 'machine.pause', machine='m')",
            ["1:6: 'to' is a host, not a machine; did you mean 'machine.host'?"],
        ),
        ("send(3, 'machine.pause', machine='m')", ["1:6: 'to' is a host, not a whole number."]),
        (
            "send(host, host.name, machine='m')",
            ["1:12: 'command' must be written as it is, in quotes."],
        ),
        ("send(host)", ["1:1: send() needs 'command' too."]),
        ("one(machines)", ["1:5: 'machine' is one machine, not many machines."]),
        ("log(3)", ["1:5: a text is needed here, not a whole number."]),
        ("log('a', 'b')", ["1:10: log() takes 1 arguments without a name."]),
        ("log('a', text='b')", ["1:15: 'text' is given twice."]),
        ("log('a', **{'b': 'a'})", ["1:12: '**' is not part of the language."]),
        ("note(1, way='c')", ["1:13: 'c' is no way; there are: a, b."]),
        ("fixed(host.name)", ["1:7: 'name' must be written as it is."]),
        ("host.load1 > 3", ["1:1: a call is expected here, such as log('hello')."]),
        ("x = log('a')", ["1:1: nothing can be assigned; did you mean '=='?"]),
        ("import os", ["1:1: 'import' is not part of the language."]),
        ("log('a')\nlog(host.lod1)", ["2:5: a host has no 'lod1'; did you mean 'load1'?"]),
        ("", ["1:1: there is nothing here; an expression is expected."]),
        (
            "log(str(host.load1)); log(str(machine.memory))",
            [
                (
                    "1:31: this is about each host already, so it cannot be about each"
                    " machine too; go"
                    " through machines with any(... for ... in ...)."
                )
            ],
        ),
    ],
)
def test_mistake_in_a_call(text: str, told: list[str]) -> None:
    with pytest.raises(ExpressionError) as raised:
        calls(text)
    assert [str(mistake) for mistake in raised.value.mistakes] == told


def test_a_call_is_about_what_its_trigger_is_about() -> None:
    assert calls("log(machine.id)", "machine")[0].about == "machine"
    with pytest.raises(ExpressionError, match="there is no single host here"):
        calls("log(host.name)", "machine")


def test_a_call_without_all_its_values_is_not_made() -> None:
    (call,) = calls("log(f'{host.load1}')")
    found = Evaluator(small_site()).prepare(call, "node3", 0.0)
    assert found.unknown == Unknown("host.load1 is not known: it was never reported")
    assert found.seen == {"host.load1": None}
    gone = Evaluator(small_site()).prepare(call, "nowhere", 0.0)
    assert gone.unknown == Unknown("there is no host 'nowhere'")
