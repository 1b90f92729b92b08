"""However an expression is written and whatever the values are, it ends soon and stays small."""

from __future__ import annotations

import sys
import tracemalloc

import msgspec
import pytest

from encamp.core.expressions import (
    Argument,
    Evaluator,
    ExpressionError,
    Signature,
    compile_call,
    compile_expression,
    language,
)
from encamp.core.expressions.carrying import parts_within
from encamp.core.expressions.frame import TOO_MUCH, Frame
from encamp.core.expressions.globs import Glob
from encamp.core.world import Known, Unknown, World
from encamp.model.property import Value
from tests.core.expressions.site_of_tests import SCHEMA, compiled, small_site, value


@pytest.mark.parametrize(
    "text",
    [
        "(" * 3000 + "1" + ")" * 3000,
        "[" * 150 + "]" * 150,
        "-" * 8000 + "1",
        "not " * 2000 + "True",
        "1" + "+1" * 4000,
        "host" + ".x" * 4000,
        "host" + "[0]" * 2500,
        "1 if True else " * 500 + "1",
        "lambda:" * 1000 + "1",
        "1" + "**1" * 2500,
        "f'{" * 100 + "1" + "}'" * 100,
        "len(" * 1500 + "hosts" + ")" * 1500,
        "[" + "1," * 4000 + "1]",
        "{" + "1," * 4000 + "1}",
        "{" + "'a':1," * 1300 + "}",
        "1" + "<1" * 4000,
        "a" * 9000,
        "'" + "a" * 9000 + "'",
        "9" * 5000,
        "x" * 8000 + "()",
        "\n" * 8000 + "(",
        "max(" + "1," * 60 + "1)",
    ],
)
def test_a_text_that_is_too_much_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError) as raised:
        compile_expression(text, SCHEMA, wants=None)
    assert len(raised.value.mistakes) <= 50


def run(text: str, **facts: Known) -> Known:
    world = small_site()
    world.put("host", "node1", facts)
    return value(text, "node1", world=world)


BIG = 1 << 126
LONG = "a" * 60_000


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("host.memory_free * host.memory_free", {"memory_free": BIG}),
        ("host.memory_free + host.memory_free + host.memory_free", {"memory_free": BIG}),
        ("-host.memory_free - host.memory_free * 2", {"memory_free": BIG}),
        ("host.name + host.name", {"name": LONG}),
        ("f'{host.name}{host.name}'", {"name": LONG}),
        ("','.join([host.name, host.name])", {"name": LONG}),
        ("str(host.disks)", {"disks": list(range(100_000))}),
        ("int(host.name)", {"name": "9" * 1000}),
        ("int(host.name)", {"name": "9" * 40}),
        ("float(host.name)", {"name": "9" * 41}),
        ("int(host.load1)", {"load1": float("inf")}),
        ("int(host.load1)", {"load1": float("nan")}),
        ("int(host.load1)", {"load1": 1e300}),
        ("round(host.load1)", {"load1": 1e300}),
        ("round(host.memory_free, int(-host.disks[0]))", {"memory_free": 1, "disks": [10**9]}),
        ("round(host.load1, host.disks[0])", {"load1": 1.5, "disks": [10**9]}),
        ("round(host.load1, host.memory_free)", {"load1": 1.5, "memory_free": 10**9}),
        ("host.memory_free / 3", {"memory_free": 1 << 5000}),
        ("host.load1 + host.memory_free", {"load1": 1.0, "memory_free": 1 << 5000}),
        ("f'{host.load1:.99f}{host.name}'", {"load1": 1e308, "name": LONG + "a" * 5400}),
        ("host.extra * 1000000000", {"extra": "a"}),
        ("host.extra * 1000000000", {"extra": [1]}),
        ("1000000000 * host.extra", {"extra": "a"}),
        ("host.extra % 3", {"extra": "%s"}),
        ("matches(host.name, '*a*b')", {"name": "a" * 100_000}),
        ("sum(h.memory_free for h in hosts)", {"memory_free": 1 << 127}),
        (("[a for a in host.disks if len([b for b in host.disks if len([c for c in"
        " host.disks]) > 0]) > 0]"),
         {"disks": list(range(300))}),
        ("sum(sum(a * b for a in host.disks) for b in host.disks)",
         {"disks": list(range(100_000))}),
        ("any(any(any(a == b for a in host.disks) for b in host.disks) for c in host.disks)",
         {"disks": [[1] * 50] * 100_000}),
        ("[host.name + str(a) for a in host.disks]", {"disks": list(range(65_000)), "name": LONG}),
        ("[f'{host.name}{a}' for a in host.disks]", {"disks": list(range(65_000)), "name": LONG}),
        ("[host.name.upper() for a in host.disks]", {"disks": list(range(65_000)), "name": LONG}),
        ("[a for a in host.disks if a in host.disks]", {"disks": list(range(65_000))}),
        ("[1 for a in host.disks if matches(host.name, '*aaab*')]",
         {"disks": list(range(65_000)), "name": LONG}),
    ],
)  # fmt: skip
def test_a_value_that_is_too_much_is_not_known(text: str, facts: dict[str, Value]) -> None:
    found = run(text, **facts)
    assert isinstance(found, Unknown)
    assert len(found.reason) < 500


def test_a_list_of_the_same_list_many_times_over_is_not_written_down_to_see_how_long_it_is() -> (
    None
):
    disks: Value = ["x"] * 5_000
    for text in ("str([host.disks for x in host.disks])", "f'{[host.disks for x in host.disks]}'"):
        tracemalloc.start()
        try:
            found = run(text, disks=disks)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert isinstance(found, Unknown)
        assert "longer than 65,536 characters" in found.reason
        # Written down it would have a hundred million characters.
        assert most < 20_000_000


def test_nor_is_it_for_the_log() -> None:
    world = small_site()
    nested: Value = [[1] * 20_000] * 150
    world.put("host", "node1", {"extra": nested})
    tracemalloc.start()
    try:
        seen = Evaluator(world).evaluate(compiled("known(host.extra)"), "node1", 0.0).seen
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seen == {"host.extra": "150 elements"}
    assert most < 1_000_000


@pytest.mark.parametrize(
    "value_to_write",
    [[], {}, [[], {}], [1, 2.5, True, None, "a"], {"a": [1], "b": {"c": "d"}}, ["\n\u20ac"]],
)
def test_whatever_is_short_enough_is_written(value_to_write: Value) -> None:
    written = msgspec.json.encode(value_to_write).decode()
    assert run("str(host.extra)", extra=value_to_write) == written
    assert parts_within(value_to_write, len(written))


def test_steps_of_a_text_made_of_a_list_are_counted() -> None:
    text = "any(known(str(host.extra)) for x in host.disks)"
    assert run(text, extra=[1] * 60_000, disks=[1] * 10) is False
    assert run(text, extra=[1] * 60_000, disks=[1] * 100) == TOO_MUCH


def test_steps_of_a_match_follow_what_may_have_to_be_tried() -> None:
    hard = "*" + "?" * 150 + "b*"
    assert run(f"matches(host.name, '{hard}')", name=LONG) is False
    many = f"any(matches(host.name, '{hard}') for x in host.disks)"
    assert run(many, name=LONG, disks=[1] * 5) == TOO_MUCH
    easy = "any(matches(host.name, 'web*.example') for x in host.disks)"
    assert run(easy, name=LONG, disks=[1] * 5) is False


def test_a_text_with_half_of_a_character_is_refused() -> None:
    for text in (
        r"host.name == '\ud800'",
        r"f'{host.name}\udfff' == ''",
        r"host.rooms == {'\ud800': 1}",
        r"matches(host.name, '\ud800*')",
    ):
        with pytest.raises(ExpressionError) as raised:
            compile_expression(text, SCHEMA)
        assert "half of a character" in str(raised.value.mistakes[0])
    assert run(r"len('\U0001f600')") == 1


def test_the_best_of_a_list_is_found_without_keeping_the_others() -> None:
    numbers: Value = [float(number) for number in range(100_000)]
    tracemalloc.start()
    try:
        found = run("max(host.disks) - min(host.disks)", disks=numbers)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == 99_999.0
    assert most < 5_000_000
    mixed: Value = ["a", None, True, float("nan"), 3, 2.5]
    assert run("max(host.disks)", disks=mixed) == 3
    assert run("min(d for d in host.disks)", disks=mixed) == 2.5
    assert isinstance(run("min(host.disks)", disks=["a"]), Unknown)


def test_a_reason_is_put_into_words_once() -> None:
    expression = compiled("host.disks[0] + 1 > 3")
    world = small_site()
    world.put("host", "node1", {"disks": [{"a": 1}]})
    evaluator = Evaluator(world)
    first = evaluator.value(expression, "node1", 0.0)
    assert isinstance(first, Unknown)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ast.unparse", lambda node: pytest.fail("it was written again"))
        assert evaluator.value(expression, "node1", 0.0) == first


HUGE = (1 << 64) - 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sum(h.memory_free for h in hosts)", float(HUGE + (2 << 30))),
        ("-host.memory_free", -float(HUGE)),
        ("host.memory_free", HUGE),
        ("[host.memory_free * 2, {'a': [host.memory_free * 2]}]",
         [float(2 * HUGE), {"a": [float(2 * HUGE)]}]),
    ],
)  # fmt: skip
def test_numbers_that_no_message_can_carry_are_rounded_on_their_way_out(
    text: str, expected: Known
) -> None:
    world = small_site()
    world.put("host", "node1", {"memory_free": HUGE})
    expression = compiled(text)
    outcome = Evaluator(world).evaluate(expression, expression.about and "node1", 0.0)
    assert outcome.value == expected
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode((outcome.value, outcome.seen)))
    assert sent == [expected, outcome.seen]
    (call,) = compile_call(f"tell({text})", SCHEMA, {"tell": TELL})
    prepared = Evaluator(world).prepare(call, call.about and "node1", 0.0)
    assert prepared.arguments == {"what": expected}
    assert msgspec.msgpack.encode((prepared.arguments, prepared.seen))


TELL = Signature("tell", (Argument("what"),))


def test_a_number_that_is_rounded_when_told_is_exact_within_an_expression() -> None:
    exact = "sum(d for d in host.disks) - host.disks[0] == host.disks[1]"
    assert run(exact, disks=[HUGE, HUGE - 1]) is True


def test_chains_inside_chains_do_not_take_twice_as_long_at_each_level() -> None:
    text = "host.swapping"
    for _ in range(30):
        text = f"True == ({text}) == True"
    assert run(text, swapping=True) is True
    assert run(text, swapping=False) is False
    loops = "host.disks"
    for _ in range(9):
        loops = f"[a for a in {loops} if count(b for b in host.disks if b > a) > 0]"
    assert run(f"len({loops}) >= 0", disks=[1, 2, 3]) is True


def test_many_mistakes_are_told_soon() -> None:
    with pytest.raises(ExpressionError) as raised:
        compile_expression(" and ".join(f"hst{n}.lod" for n in range(400)), SCHEMA)
    assert len(raised.value.mistakes) == 50


def test_comparing_large_values_takes_steps() -> None:
    world = small_site()
    for name in ("node1", "node2"):
        nested: Value = [[list(range(1000)) for _ in range(100)]]
        world.put("host", name, {"extra": nested, "disks": list(range(1000))})
    once = "hosts['node1'].extra == hosts['node2'].extra"
    evaluator = Evaluator(world)
    assert evaluator.value(compiled(once), None, 0.0) is True
    for text in (
        f"all({once} for d in hosts['node1'].disks)",
        "all(hosts['node1'].extra in [hosts['node2'].extra] for d in hosts['node1'].disks)",
    ):
        assert evaluator.value(compiled(text), None, 0.0) == TOO_MUCH


def test_a_text_that_is_too_long_is_not_looked_at() -> None:
    long = "a" * 100_000
    for text in ("host.name == host.presence", "host.extra > 'a'", "host.disks[0] == 'a'"):
        found = run(text, name=long, presence=long, extra=long, disks=[long])
        assert isinstance(found, Unknown)
    assert run("count(d for d in host.disks if d > '')", disks=[long, "b"]) == 1


def test_a_long_condition_is_not_a_deep_one() -> None:
    assert run("True" + " and host.load1 > 1" * 200, load1=2.0) is True
    assert run("1" + " < host.load1" * 200, load1=2.0) is False
    assert run("False" + " or host.load1 < 1" * 200, load1=2.0) is False


def test_text_limits_leave_room_for_ordinary_ones() -> None:
    assert run("len(host.name + host.name)", name="a" * 30_000) == 60_000
    assert run("sum(a * a for a in host.disks)", disks=list(range(10_000))) == 333283335000
    assert run("host.memory_free * 8", memory_free=1 << 64) == 1 << 67


def test_a_value_that_is_nested_without_end_is_compared_without_harm() -> None:
    deep: Value = []
    for _ in range(100_000):
        deep = [deep]
    other: Value = []
    for _ in range(100_000):
        other = [other]
    world = small_site()
    world.put("host", "node1", {"extra": deep})
    world.put("host", "node2", {"extra": other})
    evaluator = Evaluator(world)
    for text in (
        "hosts['node1'].extra == hosts['node2'].extra",
        "f'{hosts['node1'].extra}' == ''" if sys.version_info >= (3, 12) else
        "str(hosts['node1'].extra) == ''",
        "hosts['node1'].extra in [hosts['node2'].extra]",
    ):  # fmt: skip
        found = evaluator.evaluate(compiled(text), None, 0.0)
        assert found.value is True or isinstance(found.value, Unknown)
    world.things["host"]["node1"].facts.clear()
    for value_to_unwind in (deep, other):
        unwound: Value = value_to_unwind
        while unwound:
            assert isinstance(unwound, list)
            unwound = unwound.pop()


def test_values_of_a_subclass_are_not_taken_for_what_they_pretend_to_be() -> None:
    class Evil(str):
        def __add__(self, other: object) -> str:
            raise AssertionError("it was run")

        __radd__ = __eq__ = __contains__ = __format__ = __add__  # type: ignore[assignment]
        __hash__ = str.__hash__

    class EvilList(list[Value]):
        def __len__(self) -> int:
            raise AssertionError("it was run")

        __iter__ = __contains__ = __len__  # type: ignore[assignment]

    world = small_site()
    facts = world.things["host"]["node1"].facts
    facts.update({"name": Evil("x"), "extra": Evil("y"), "disks": EvilList([1])})
    for text in (
        "host.name + 'a' == 'b'",
        "host.name == 'a'",
        "host.extra == 'a'",
        "f'{host.extra}' == ''",
        "host.extra + 1 > 2",
        "'a' in host.extra",
        "1 in host.disks",
        "len(host.disks) > 0",
        "any(x > 1 for x in host.disks)",
        "count(h for h in hosts if h.name == 'a') > 1 or host.name == 'b'",
    ):
        assert isinstance(value(text, "node1", world=world), Unknown)


def test_elements_of_a_subclass_are_not_handed_out() -> None:
    class Evil(str):
        pass

    world = small_site()
    world.things["host"]["node1"].facts["disks"] = [Evil("x")]
    assert isinstance(value("host.disks[0] == 'x'", "node1", world=world), Unknown)
    counted = "count(d for d in host.disks if d == 'x')"
    assert isinstance(value(counted, "node1", world=world), Unknown)
    world.things["host"]["node1"].facts["disks"] = [Evil("x"), "y", "x"]
    assert value(counted, "node1", world=world) == 1


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("*", "", True),
        ("", "", True),
        ("", "a", False),
        ("a*", "abc", True),
        ("*c", "abc", True),
        ("a*c", "ac", True),
        ("a*a", "a", False),
        ("*b*", "abc", True),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("[a-c]x", "bx", True),
        ("[!a-c]x", "bx", False),
        ("[]]", "]", True),
        ("[a-]", "-", True),
        ("a.c", "abc", False),
        ("a\nb", "a\nb", True),
        ("?", "\n", True),
        ("ab*ab", "ab", False),
        ("ab*ab", "abab", True),
        ("*a*b*c*", "xaxbxcx", True),
        ("*a*b*c*", "xcxbxax", False),
        ("[^]", "^", True),
        ("[\\]", "\\", True),
    ],
)
def test_pattern(pattern: str, text: str, expected: bool) -> None:
    assert Glob(pattern).matches(text) is expected


def test_no_pattern_takes_long() -> None:
    glob = Glob("*a" * 99 + "b")
    assert not glob.matches("a" * 65_536)
    assert not Glob("*" + "?" * 98 + "a*b").matches("a" * 65_536)


def test_steps_of_a_run_are_counted() -> None:
    world = small_site()
    world.put("host", "node1", {"disks": list(range(1000))})
    expression = compiled("sum(d for d in host.disks)")
    evaluator = Evaluator(world)
    frame = Frame(world.things, world.things["host"]["node1"], 0.0, evaluator._lookup)
    expression.run(frame)
    assert 1000 <= language.STEPS - frame.budget <= 20_000


def test_a_run_that_takes_too_long_ends_whatever_it_is_part_of() -> None:
    world = World(SCHEMA)
    world.put("host", "h", {"disks": list(range(10_000))})
    endless = "any(any(a + b < 0 for a in host.disks) for b in host.disks)"
    for text in (endless, f"True or {endless}", f"known({endless})", f"{endless} or True"):
        expected = True if text.startswith("True or") else TOO_MUCH
        assert Evaluator(world).value(compiled(text), "h", 0.0) == expected
