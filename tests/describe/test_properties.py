"""What holds for every description: laws of inheritance, a model to compare with, no crashes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from encamp.describe.library import Library, load
from encamp.describe.showing import as_yaml, resolved
from encamp.describe.sources import Level, Source
from encamp.model.environment import Environment
from encamp.model.size import MIB
from tests.describe.describing import environments, library, recipe

patient = settings(deadline=None, max_examples=100)
"""How long something takes is not what these tests are about."""


def loaded(data: Any) -> Library:
    """A description that was put together as data."""
    return library(yaml.safe_dump(data, sort_keys=False, default_flow_style=None))


def everything(data: Any) -> dict[str, Environment]:
    made = loaded(data)
    found = made.all()
    assert not made.mistakes, [str(mistake) for mistake in made.mistakes.found]
    return found


# ── a model to compare with ──────────────────────────────────────────────────────────────────────
#
# Environments e0, e1, ... that extend earlier ones; each may set, add to, refer to and take away.

CLASS = st.sampled_from("abcdef")
NUMBER = st.integers(1, 9)
VARIABLE = st.sampled_from(["A", "B", "C"])


@dataclass
class Written:
    parents: list[int] = field(default_factory=list)
    cpus: int | str | None = None
    """A number, or the index of the environment whose number it is, as text."""
    memory: int | None = None
    classes: list[str] | None = None
    added: list[str] | None = None
    variables: dict[str, str | None] = field(default_factory=dict)
    """`cpus` for a reference to the environment's own number; None takes away."""

    def data(self) -> dict[str, Any]:
        made: dict[str, Any] = {}
        if self.parents:
            made["extends"] = [f"e{parent}" for parent in self.parents]
        else:
            made["image"] = "x"
        if self.cpus is not None:
            refers = isinstance(self.cpus, str)
            made["cpus"] = f"${{e{self.cpus}.cpus}}" if refers else self.cpus
        if self.memory is not None:
            made["memory"] = f"{self.memory}G"
        if self.classes is not None:
            made["classes"] = self.classes
        elif self.added is not None:
            made["classes+"] = self.added
        if self.variables:
            written = {
                name: "${cpus}/${name}" if value == "cpus" else value
                for name, value in self.variables.items()
            }
            made["context"] = {"variables": written}
        return made


@st.composite
def written(draw: st.DrawFn) -> list[Written]:
    made = []
    for index in range(draw(st.integers(1, 7))):
        earlier = st.lists(st.integers(0, index - 1), max_size=3, unique=True)
        value = st.one_of(st.just("cpus"), st.none(), CLASS)
        made.append(
            Written(
                parents=draw(earlier) if index else [],
                cpus=draw(
                    st.one_of(
                        st.none(),
                        NUMBER,
                        st.integers(0, index - 1).map(str) if index else st.none(),
                    )
                ),
                memory=draw(st.none() | NUMBER),
                classes=draw(st.none() | st.lists(CLASS, max_size=3)),
                added=draw(st.none() | st.lists(CLASS, max_size=3)),
                variables=draw(st.dictionaries(VARIABLE, value, max_size=3)),
            )
        )
    return made


@dataclass
class Expected:
    cpus: int = 1
    memory: int = 512
    classes: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)


def line(index: int, all_written: list[Written]) -> list[int]:
    """Ancestors first, each once: the order in which they are laid one over the other."""
    made: list[int] = []
    for parent in all_written[index].parents:
        made += [one for one in line(parent, all_written) if one not in made]
    return [*made, index]


def expected(index: int, all_written: list[Written]) -> Expected:
    made = Expected()
    raw: dict[str, str] = {}
    for layer in (all_written[one] for one in line(index, all_written)):
        if isinstance(layer.cpus, str):
            made.cpus = expected(int(layer.cpus), all_written).cpus
        elif layer.cpus is not None:
            made.cpus = layer.cpus
        if layer.memory is not None:
            made.memory = layer.memory * 1024
        if layer.classes is not None:
            made.classes = layer.classes
        elif layer.added is not None:
            made.classes = made.classes + layer.added
        for name, value in layer.variables.items():
            raw.pop(name, None)
            if value is not None:
                raw[name] = value
    made.variables = {
        name: f"{made.cpus}/e{index}" if value == "cpus" else value for name, value in raw.items()
    }
    return made


@given(written())
@patient
def test_resolving_equals_the_model(all_written: list[Written]) -> None:
    found = everything({f"e{index}": one.data() for index, one in enumerate(all_written)})
    for index in range(len(all_written)):
        made, model = found[f"e{index}"], expected(index, all_written)
        assert made.size.cpus == model.cpus
        assert made.size.memory == model.memory * MIB
        assert list(made.classes) == model.classes
        assert made.context.variables == model.variables


@given(written(), st.randoms(use_true_random=False))
@patient
def test_order_in_a_file_and_order_of_asking_do_not_matter(
    all_written: list[Written], random: Any
) -> None:
    data = {f"e{index}": one.data() for index, one in enumerate(all_written)}
    straight = everything(data)
    names = list(data)
    random.shuffle(names)
    shuffled = loaded({name: data[name] for name in names})
    random.shuffle(names)
    assert {name: shuffled.environment(name) for name in names} == straight


@given(written())
@patient
def test_extending_without_a_word_changes_nothing_but_the_name(all_written: list[Written]) -> None:
    last = f"e{len(all_written) - 1}"
    data = {f"e{index}": one.data() for index, one in enumerate(all_written)}
    data["heir"] = {"extends": last}
    found = everything(data)
    own, inherited = found["heir"], found[last]
    assert (own.size, own.classes, own.image) == (
        inherited.size,
        inherited.classes,
        inherited.image,
    )


@given(written())
@patient
def test_naming_an_ancestor_again_changes_nothing(all_written: list[Written]) -> None:
    data = {f"e{index}": one.data() for index, one in enumerate(all_written)}
    last = len(all_written) - 1
    data["one"] = {"extends": f"e{last}"}
    for ancestor in line(last, all_written)[:-1]:
        data[f"again{ancestor}"] = {"extends": [f"e{last}", f"e{ancestor}"]}
    found = everything(data)
    for name, made in found.items():
        if name.startswith("again"):
            assert (made.size, made.classes) == (found["one"].size, found["one"].classes)


@given(st.lists(st.lists(CLASS, max_size=4), min_size=1, max_size=8))
@patient
def test_adding_step_by_step_is_adding_at_once(steps: list[list[str]]) -> None:
    data: dict[str, Any] = {"e0": {"image": "x", "classes": steps[0]}}
    for number, step in enumerate(steps[1:], 1):
        data[f"e{number}"] = {"extends": f"e{number - 1}", "classes+": step}
    found = everything(data)
    assert list(found[f"e{len(steps) - 1}"].classes) == [one for step in steps for one in step]


# ── shown, and read again ────────────────────────────────────────────────────────────────────────

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
PRINTABLE = TEXT.filter(lambda text: text.isprintable())


def escaped(text: str) -> str:
    return text.replace("${", "$${")


@given(
    st.fixed_dictionaries(
        {"image": st.just({"debian": "sid", "packages": ["a", "b"], "run": ["echo $x"]})},
        optional={
            "summary": TEXT.map(escaped),
            "cpus": NUMBER,
            "memory": NUMBER.map(lambda size: f"{size}G"),
            "disk": st.sampled_from([0, "16M", "1.5G"]),
            "templates": st.booleans(),
            "labels": st.dictionaries(CLASS, TEXT.map(escaped)),
            "classes": st.lists(CLASS),
            "shares": st.lists(
                st.sampled_from(["a", "a:/b", "a\\:b:/c:ro", {"source": "x", "readonly": True}])
            ),
            "ready": st.fixed_dictionaries(
                {},
                optional={
                    "command": TEXT.filter(bool).map(escaped) | st.lists(TEXT.map(escaped)),
                    "port": st.integers(1, 65535),
                    "timeout": st.sampled_from(["30s", 5, "1.5m"]),
                },
            ),
            "context": st.fixed_dictionaries(
                {},
                optional={
                    "variables": st.dictionaries(
                        st.sampled_from(["A", "NO", "y", "null_"]),
                        TEXT.map(escaped) | st.just("${late.machine.name} in ${name}"),
                    ),
                    "files": st.lists(
                        st.fixed_dictionaries(
                            {"path": st.just("/x"), "content": TEXT.map(escaped)},
                            optional={"mode": st.sampled_from(["0644", "755"])},
                        )
                    ),
                    "user_data": TEXT.map(escaped) | st.just("$${late.machine.name}"),
                },
            ),
        },
    )
)
@patient
def test_what_is_shown_resolved_means_the_same_when_it_is_read(data: dict[str, Any]) -> None:
    made = loaded({"base": data, "it": {"extends": "base"}})
    environment = made.environment("it")
    assert environment is not None, [str(mistake) for mistake in made.mistakes.found]
    shown = as_yaml("it", resolved(made, "it"))
    again = environments(shown)["it"]
    assert again == environment, shown
    assert recipe(again).digest() == recipe(environment).digest()


# ── whatever somebody writes ─────────────────────────────────────────────────────────────────────


def survives(data: bytes) -> None:
    """Mistakes are reported, each at a place in the file, and nothing else happens."""
    made = load([(Source("x.yaml", Level.HERE, 0, "/"), data)])
    made.all()
    lines = data.count(b"\n") + data.count(b"\r") + 10
    for mistake in made.mistakes.found:
        assert 1 <= mistake.line <= lines
        assert mistake.column >= 1


@given(st.binary(max_size=200))
@patient
def test_any_bytes_are_survived(data: bytes) -> None:
    survives(data)


FRAGMENTS = st.sampled_from(
    [
        *("it", "a", "b", "extends", "image", "cpus", "memory", "context", "variables", "values"),
        *("packages+", "debian", "from", "ready", "null", "~", "true", "1", "[", "]", "{", "}"),
        *(": ", ", ", "\n", "\n  ", "\n    ", "- ", "${a.cpus}", "${cpus}", "${up.x}", "$${", "${"),
        *("&x ", "*x", "!!str ", "---\n", "#", "'", '"', "|\n", ">\n", "<<", "\t", "? ", "é", "%"),
    ]
)


@given(st.lists(FRAGMENTS, max_size=40).map("".join))
@patient
def test_anything_that_nearly_is_a_description_is_survived(text: str) -> None:
    survives(text.encode())


NAMES = st.sampled_from(
    [
        *("extends", "image", "cpus", "memory", "shares", "context", "ready", "values", "classes+"),
        *("variables", "files", "packages", "from", "debian", "summary", "users", "abstract", "a"),
    ]
)
LEAVES: st.SearchStrategy[Any] = st.sampled_from(
    [
        *("a", "b", "${a.cpus}", "${b.values}", "${values}", "${up.up.cpus}", "${late.owner.uid}"),
        *(1, -1, True, None, 1.5, "2G", "${a.image}", "x ${name} ${cpus}", [], {}),
    ]
)
TREES = st.recursive(
    LEAVES, lambda tree: st.lists(tree, max_size=3) | st.dictionaries(NAMES, tree, max_size=4)
)


@given(st.dictionaries(st.sampled_from("abc"), st.dictionaries(NAMES, TREES, max_size=6)))
@patient
def test_any_tree_of_known_words_is_survived(data: Any) -> None:
    survives(yaml.safe_dump(data).encode())
