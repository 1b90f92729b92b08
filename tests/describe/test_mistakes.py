"""Every mistake is reported, at its line and column, with what is expected there."""

from __future__ import annotations

import pytest

from encamp.describe.nodes import SHOWN_MISTAKES
from encamp.describe.sources import Level
from encamp.model.errors import Code, EncampError
from tests.describe.describing import library, mistakes


@pytest.mark.parametrize(
    ("text", "told"),
    [
        # names of attributes
        (
            "it:\n  image: x\n  memroy: 1G\n",
            "0.yaml:3:3: there is no attribute 'memroy' in an environment; did you mean 'memory'?",
        ),
        (
            "it:\n  image: {debian: sid, pakages: [x]}\n",
            "0.yaml:2:24: there is no attribute 'pakages' in an image; did you mean 'packages'?",
        ),
        (
            "it:\n  image: x\n  ready:\n    time: 3s\n",
            "0.yaml:4:5: there is no attribute 'time' in 'ready'; did you mean 'timeout'?",
        ),
        (
            "it:\n  image: x\n  qqq: 1\n",
            "0.yaml:3:3: there is no attribute 'qqq' in an environment",
        ),
        (
            "it:\n  image: x\n  <<: {cpus: 2}\n",
            "0.yaml:3:3: '<<' is not part of this language: 'extends' inherits from an environment",
        ),
        (
            "it:\n  image: x\n  cpus+: 2\n",
            "0.yaml:3:3: 'cpus+': only lists can be added to, and 'cpus' is none",
        ),
        (
            "it:\n  image: x\n  classes: [a]\n  classes+: [b]\n",
            "0.yaml:4:3: 'classes' is given here too: put the items into one list",
        ),
        # values
        (
            "it:\n  image: x\n  memory: lots\n",
            "0.yaml:3:11: a size such as 512M or 2G is expected here, not 'lots'; at least 96 MiB",
        ),
        (
            "it:\n  image: x\n  memory: 1M\n",
            "0.yaml:3:11: a size such as 512M or 2G is expected here, not '1M'; at least 96 MiB",
        ),
        (
            f"it:\n  image: x\n  disk: {'9' * 400}T\n",
            (
                f"0.yaml:3:9: a size such as 10G is expected here, not '{'9' * 57}...';"
                " at least 16 MiB"
            ),
        ),
        (
            "it:\n  image: x\n  cpus: -1\n",
            "0.yaml:3:9: a number from 1 is expected here, not '-1'",
        ),
        (
            "it:\n  image: x\n  cpus: 1.5\n",
            "0.yaml:3:9: a number from 1 is expected here, not '1.5'",
        ),
        (
            'it:\n  image: x\n  cpus: "2"\n',
            "0.yaml:3:9: a number from 1 is expected here, not '2' in quotes",
        ),
        (
            "it:\n  image: x\n  cpus: [2]\n",
            "0.yaml:3:9: a number from 1 is expected here, not a list",
        ),
        (
            "it:\n  image: x\n  cpus:\n",
            (
                "0.yaml:3:3: 'cpus' has no value: a number from 1 is expected"
                " (null: back to the default)"
            ),
        ),
        (
            "it:\n  image: x\n  templates: no\n",
            (
                "0.yaml:3:14: true or false is expected here, not 'no', which means different"
                " things to different readers of YAML"
            ),
        ),
        (
            "it:\n  image: x\n  after: destory\n",
            (
                "0.yaml:3:10: one of destroy, shutdown, pause, suspend, keep, save is expected"
                " here, not 'destory'; did you mean 'destroy'?"
            ),
        ),
        (
            "it:\n  image: x\n  network: moon\n",
            "0.yaml:3:12: one of none, user, bridge is expected here, not 'moon'",
        ),
        (
            "it:\n  image: x\n  ready: {timeout: soon}\n",
            "0.yaml:3:20: a time such as 30s or 2m is expected here, not 'soon'",
        ),
        (
            "it:\n  image: x\n  ready: {interval: 0}\n",
            "0.yaml:3:21: a time such as 0.5s or 2s is expected here, not '0'",
        ),
        (
            "it:\n  image: x\n  ready: {port: 65536}\n",
            "0.yaml:3:17: a port, from 1 to 65535, is expected here, not '65536'",
        ),
        (
            "it:\n  image: x\n  ready: 5\n",
            (
                "0.yaml:3:10: a mapping with answer, command, port, file and so on is expected"
                " here, not '5'"
            ),
        ),
        (
            "it:\n  image: x\n  context: {variables: {a-b: 1}}\n",
            "0.yaml:3:25: 'a-b' is no name for variables",
        ),
        (
            "it:\n  image: x\n  context: {files: [{path: /x, content: y, mode: 0644}]}\n",
            (
                '0.yaml:3:50: permissions in quotes, such as "0644", is expected here, not'
                " '0644' without quotes"
            ),
        ),
        (
            "it:\n  image: x\n  context: {files: [{path: /x}]}\n",
            "0.yaml:3:21: either 'content' or 'source' is needed, and not more than one of them",
        ),
        (
            "it:\n  image: x\n  context: {files: [{content: x}]}\n",
            "0.yaml:3:21: 'path' is missing: a file needs it",
        ),
        (
            "it:\n  image: x\n  shares: ['a:b:c']\n",
            "0.yaml:3:12: DIR[:PATH][:ro] is expected here, not 'a:b:c'",
        ),
        (
            "it:\n  image: x\n  qemu: [-s]\n",
            "0.yaml:3:3: 'qemu' may only be written in the files of the site's administrators",
        ),
        (
            "it:\n  image: x\n  classes: [a, null]\n",
            "0.yaml:3:16: an item of a list cannot be null; leave it out",
        ),
        (
            "it:\n  image: ${ready}\n",
            (
                "0.yaml:2:10: this image says nothing it starts from: one of debian, mini, oci,"
                " rootfs, disk, from is expected"
            ),
        ),
        (
            'it:\n  image: x\n  "\\e[2J": 1\n',
            "0.yaml:3:3: there is no attribute '\\x1b[2J' in an environment",
        ),
        # environments
        (
            "it:\n",
            "0.yaml:1:1: environment 'it' says nothing: it needs 'extends' or 'image'",
        ),
        (
            "it: 5\n",
            "0.yaml:1:5: the attributes of environment 'it' are expected here, not '5'",
        ),
        (
            "it:\n  cpus: 2\n",
            (
                "0.yaml:1:1: environment 'it' has no image: it needs 'image', or to extend an"
                " environment that has one"
            ),
        ),
        (
            "it_1: {image: x}\n",
            (
                "0.yaml:1:1: 'it_1' cannot be an environment's name: letters, digits and '-' make"
                " one, up to 56, beginning with a letter"
            ),
        ),
        (
            "memory: {image: x}\n",
            "0.yaml:1:1: no environment can be called 'memory': references use that word",
        ),
        (
            "base: {image: x}\nit:\n  extends: bsae\n",
            (
                "0.yaml:3:12: there is no environment 'bsae' in this file or in one before it;"
                " did you mean 'base'?"
            ),
        ),
        (
            "base: {image: x}\nit:\n  extends: [base, base]\n",
            "0.yaml:3:19: 'base' is extended twice",
        ),
        (
            "it:\n  extends: ${x}\n  image: x\n",
            "0.yaml:2:12: 'extends' takes the names of environments, no references",
        ),
        (
            "a:\n  extends: b\nb:\n  extends: c\nc:\n  extends: a\n  image: x\n",
            "0.yaml:6:12: 'a' extends itself: a → b → c → a",
        ),
        (
            "it:\n  image: {packages: [x]}\n",
            (
                "0.yaml:2:10: this image says nothing it starts from: one of debian, mini, oci,"
                " rootfs, disk, from is expected"
            ),
        ),
        (
            "it:\n  image: {oci: x, disk: y}\n",
            (
                "0.yaml:2:10: this image starts from several things: one of debian, mini, oci,"
                " rootfs, disk, from is expected"
            ),
        ),
        (
            "it:\n  image: {debian: sid, suite: bookworm}\n",
            "0.yaml:2:31: 'debian' says already which release it is",
        ),
        (
            "it:\n  image: {from: it}\n",
            "0.yaml:2:17: this image stands on itself: it → it",
        ),
        # references
        (
            "it:\n  image: x\n  cpus: ${ready.prot}\n",
            "0.yaml:3:9: there is no 'ready.prot' in environment 'it' to refer to",
        ),
        (
            "it:\n  image: x\n  values: {speed: 1}\n  cpus: ${values.sped}\n",
            (
                "0.yaml:4:9: there is no 'values.sped' in environment 'it' to refer to;"
                " did you mean 'speed'?"
            ),
        ),
        (
            "base: {image: x}\nit:\n  image: x\n  cpus: ${bas.cpus}\n",
            (
                "0.yaml:4:9: '${bas.cpus}' refers to nothing: 'bas' is neither an attribute nor an"
                " environment of this file or of one before it; did you mean 'base'?; write '$${'"
                " for the characters '${'"
            ),
        ),
        (
            "base: {image: x}\nit:\n  image: x\n  cpus: ${base}\n",
            (
                "0.yaml:4:9: '${base}' is a whole environment; name one of its attributes, as in"
                " ${base.memory}"
            ),
        ),
        (
            "it:\n  image: x\n  cpus: ${cpus}\n",
            "0.yaml:3:9: this reference leads back to itself: it.cpus → it.cpus",
        ),
        (
            "it:\n  image: x\n  summary: a ${memory\n",
            (
                "0.yaml:3:12: '${' begins a reference that does not end; a '}' is missing, or write"
                " '$${' for the characters '${'"
            ),
        ),
        (
            "it:\n  image: x\n  summary: ${a b}\n",
            (
                "0.yaml:3:12: '${a b}' is not a reference such as ${memory} or ${debian12.memory};"
                " write '$${' for the characters '${'"
            ),
        ),
        (
            "it:\n  image: x\n  summary: a ${ready} b\n",
            "0.yaml:3:12: '${ready}' is a mapping, which cannot stand in a text",
        ),
        (
            "it:\n  image: x\n  cpus: ${memory}\n",
            "0.yaml:3:9: a number from 1 is expected here, not '512M'",
        ),
        (
            "it:\n  image: x\n  cpus: ${up.up.x}\n",
            "0.yaml:3:9: '${up.up.x}' climbs out of all that is described",
        ),
        (
            "it:\n  image: x\n  cpus: ${up}\n",
            "0.yaml:3:9: '${up}' does not say what is wanted from up there",
        ),
        (
            "it:\n  image: x\n  context: {user_data: '${late.machine.adress}'}\n",
            (
                "0.yaml:3:24: no machine knows 'machine.adress' of '${late.machine.adress}';"
                " did you mean 'machine.address'?"
            ),
        ),
        (
            "it:\n  image: x\n  cpus: ${late.machine.name}\n",
            (
                "0.yaml:3:9: a late reference has no value yet when this is needed; late references"
                " are for what a machine is handed: context and ready"
            ),
        ),
        # YAML itself
        (
            "it: {image: x}\nit: {image: y}\n",
            "0.yaml:2:1: 'it' was given already, at line 1, column 1",
        ),
        (
            "it:\n  image: x\n  cpus: 2\n  cpus: 3\n",
            "0.yaml:4:3: 'cpus' was given already, at line 3, column 3",
        ),
        (
            "it:\n  image: x\n  labels: {1: x}\n",
            "0.yaml:3:12: a name is expected here, not '1'; if it is one, write it in quotes",
        ),
        (
            "it:\n  image: x\n  labels: {null: x}\n",
            "0.yaml:3:12: a name is expected here, not 'null'; if it is one, write it in quotes",
        ),
        (
            "it:\n  image: x\n  labels: {[a]: x}\n",
            "0.yaml:3:12: a name is expected here, not a list",
        ),
        ("it:\n\timage: x\n", "0.yaml:2:1: a tab; indent with spaces"),
        ("- it\n", "0.yaml:1:1: a mapping of names is expected here"),
        ("it: {image: x}\n---\nb: {image: x}\n", "0.yaml:2:1: a second document begins here"),
        (
            "it:\n  image: !!python/name:os.system x\n",
            (
                "0.yaml:2:10: the tag !!python/name:os.system is not part of this language; leave"
                " it out"
            ),
        ),
        (
            "it:\n  image: *x\n",
            "0.yaml:2:10: *x: nothing before this is called &x",
        ),
        (
            "it:\n  image: x\n  values: &v {x: *v}\n",
            "0.yaml:3:18: *v: this is part of &v",
        ),
    ],
)
def test_mistake_is_told_where_it_is_with_what_is_expected(text: str, told: str) -> None:
    assert told in mistakes(text)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"it:\n  image: \xff\n", "x.yaml:2:10: this is not UTF-8 text"),
        (b"\xff\xfei\0t\0", "x.yaml:1:1: this is not UTF-8 text"),
        (b"it:\n  image: a\x01\n", "x.yaml:2:11: a control character is not allowed here"),
    ],
)
def test_bytes_that_are_no_text_are_told_where_they_are(data: bytes, told: str) -> None:
    from encamp.describe.library import load
    from encamp.describe.sources import Source

    made = load([(Source("x.yaml", Level.HERE, 0, "/"), data)])
    assert [str(mistake) for mistake in made.mistakes.found] == [told]


def test_all_mistakes_of_a_file_are_told_at_once_and_in_order() -> None:
    told = mistakes(
        """\
        a:
          extends: nothing
          memroy: 1G
          cpus: none
          after: party
        b:
          image: {debian: sid}
          cpus: ${c.cpus}
          summary: ${nothing.at.all}
        c:
          image: {packages: [x]}
          cpus: ${b.cpus}
        """
    )
    assert [line.split(": ")[0] for line in told] == [
        "0.yaml:2:12",
        "0.yaml:3:3",
        "0.yaml:4:9",
        "0.yaml:5:10",
        "0.yaml:9:12",
        "0.yaml:11:10",
        "0.yaml:12:9",
    ]


def test_inherited_mistake_is_told_once() -> None:
    text = "base: {image: x, cpus: '${nothing.x}'}\n"
    text += "".join(f"heir{number}: {{extends: base}}\n" for number in range(50))
    assert len(mistakes(text)) == 1


def test_mistakes_are_one_error_that_lists_them() -> None:
    made = library("a: {image: x, cpus: x}\nb: {image: x, cpus: y}\n")
    made.all()
    with pytest.raises(EncampError) as refused:
        made.mistakes.raise_any()
    assert refused.value.code is Code.CONFIGURATION
    assert refused.value.sentence == "There are 2 mistakes in 0.yaml."
    assert len(refused.value.detail.splitlines()) == 2


def test_file_that_is_wrong_throughout_does_not_flood_its_reader() -> None:
    made = library("".join(f"e{number}: {{image: x, cpus: x}}\n" for number in range(1000)))
    assert len(made.mistakes.error().detail.splitlines()) == SHOWN_MISTAKES + 1
    assert made.mistakes.error().detail.endswith("... and 800 more")


def test_later_file_may_extend_earlier_ones_but_not_the_other_way_round() -> None:
    assert mistakes("a: {image: x}", "b: {extends: a}") == []
    assert mistakes("b: {extends: a}", "a: {image: x}") == [
        "0.yaml:1:14: there is no environment 'a' in this file or in one before it; there are: b"
    ]
    (told,) = mistakes("b: {image: x, cpus: '${a.cpus}'}", "a: {image: x, cpus: 2}")
    assert told.startswith("0.yaml:1:21: '${a.cpus}' refers to nothing")


def test_later_file_cannot_change_what_an_earlier_one_describes() -> None:
    (told,) = mistakes("a: {image: x}", "b: {image: x}\na: {image: y}")
    assert told == (
        "1.yaml:2:1: 'a' is described already, at 0.yaml:1:1; choose another name, and let it"
        " extend 'a'"
    )


def test_value_that_is_wrong_elsewhere_is_not_replaced_by_a_default() -> None:
    made = library("a: {image: x, cpus: many}", "b: {image: x, cpus: '${a.cpus}'}")
    assert made.environment("b") is None
    assert [mistake.path for mistake in made.mistakes.found] == ["0.yaml"]


def test_layer_of_an_earlier_file_does_not_see_environments_of_a_later_one() -> None:
    made = library("a: {image: {from: b}}", "b: {image: {debian: sid}}")
    found = made.environment("a")
    assert found is not None
    assert getattr(found.image, "parent", None) == "b"


# ── what heirs must not change ───────────────────────────────────────────────────────────────────

GPU = "gpu: {image: x, users: ['@gpu']}\nlab: {image: x, users: [eve]}\n"


@pytest.mark.parametrize(
    "users", ["users: []", "users: [mallory]", "users+: mallory", "users: null"]
)
def test_who_may_use_an_environment_is_not_for_heirs_in_other_files_to_change(users: str) -> None:
    assert mistakes(GPU, f"mine: {{extends: gpu, {users}}}") == [
        "1.yaml:1:1: who may use 'gpu' is said in 0.yaml and stays so"
    ]
    assert mistakes(GPU, f"open: {{image: x, {users}}}\nmine: {{extends: [gpu, open]}}") == [
        "1.yaml:2:1: who may use 'gpu' is said in 0.yaml and stays so"
    ]


def test_environments_for_different_users_cannot_be_mixed_elsewhere() -> None:
    assert mistakes(GPU, "mine: {extends: [gpu, lab]}") == [
        "1.yaml:1:1: 'gpu' and 'lab' are for different users, so nothing can extend both"
    ]
    assert mistakes(GPU + "mine: {extends: [gpu, lab]}") == []


def test_heirs_of_a_limited_environment_are_limited_too() -> None:
    made = library(GPU, "mine: {extends: gpu, cpus: 2}\nyours: {extends: mine}")
    found = made.all()
    assert found["yours"].users == ("@gpu",)
    assert not made.mistakes


@pytest.mark.parametrize("attribute", ["qemu", "users"])
def test_what_administrators_decide_does_not_depend_on_what_heirs_override(attribute: str) -> None:
    text = f"it: {{image: x, values: {{a: b}}, {attribute}: ['${{values.a}}']}}"
    (told,) = mistakes(text, level=Level.SITE)
    assert told.endswith(f"there can be no references in '{attribute}'")


def test_heir_keeps_the_administrators_words_for_qemu() -> None:
    from encamp.describe.library import load
    from tests.describe.describing import source

    made = load(
        [
            (source("site", Level.SITE, 0), b"gpu: {image: x, qemu: [-device, gpu]}"),
            (source("user", Level.USER, 1), b"mine: {extends: gpu}"),
        ]
    )
    found = made.environment("mine")
    assert found is not None
    assert found.qemu == ("-device", "gpu")
    assert not made.mistakes


@pytest.mark.parametrize("name", ["x" * 101, "a" * 64, "-x", "x.", "x/y"])
def test_name_that_no_image_can_have_is_told_at_once(name: str) -> None:
    assert mistakes(f"it: {{image: {{mini: bookworm, name: '{name}'}}}}")
    assert mistakes(f"it: {{image: {{mini: bookworm}}, after: save, save_as: '{name}:1'}}")
    if name != "a" * 64:
        assert mistakes(f"it: {{image: '{name}'}}")
        assert mistakes(f"it: {{image: {{mini: bookworm, version: '{name}'}}}}")
        assert mistakes(f"it: {{image: {{from: '{name}'}}}}")
    assert not mistakes(f"it: {{image: '{'a' * 64}'}}")
    assert not mistakes(f"it: {{image: {{mini: bookworm, name: '{'x' * 100}'}}}}")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("it:\n  image: x\n  enrol: slurm\n", "0.yaml:3:10"),
        (
            (
                "node:\n  image: x\n  network: bridge\n  enrol: slurm\n"
                "it:\n  extends: node\n  network: user\n"
            ),
            "0.yaml:7:12",
        ),
    ],
)
def test_environment_that_enrols_has_to_be_on_a_bridge(text: str, place: str) -> None:
    said = "its batch system speaks to a machine that enrols, which needs 'network: bridge'"
    assert mistakes(text, level=Level.SITE) == [f"{place}: {said}"]
