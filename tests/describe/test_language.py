"""What descriptions mean: inheritance, lists, references, images."""

from __future__ import annotations

import pytest

from encamp.describe.attributes import DEVICES
from encamp.describe.sources import Level
from encamp.machines import hardware
from encamp.model.environment import Account, Answer, Context, Readiness, Storage
from encamp.model.machine import After, Share
from encamp.model.recipe import AddedFile, Compression, Kind
from encamp.model.size import MIB, Size
from tests.describe.describing import environments, one, over_shipped, recipe


def test_two_lines_are_a_useful_environment() -> None:
    made = over_shipped("analysis:\n  extends: debian12\n")
    analysis, debian = made.environment("analysis"), made.environment("debian12")
    assert analysis is not None
    assert debian is not None
    assert (analysis.image, analysis.size) == (debian.image, debian.size)
    assert analysis.name == "analysis"
    assert not made.mistakes


def test_every_attribute_arrives_in_the_environment() -> None:
    made = one(
        """
        it:
          summary: All of it
          image: base:1.10
          cpus: 4
          memory: 1.5G
          disk: 10G
          storage: qcow2
          network: user
          shares:
            - data:/data:ro
            - {source: /scratch, path: /tmp/scratch}
            - src
          devices: rng
          kernel_arguments: [quiet, nosmt]
          ready: {answer: ssh, command: [test, -e, /x], port: 22, file: /run/up, timeout: 5m}
          context:
            files:
              - {path: /etc/motd, content: hello, mode: "0640", owner: me}
              - {path: /opt/tools, source: tools}
            variables: {DEBUG: 1, ANSWER: no}
            users: [{name: eve, uid: 1000, ssh_keys: ssh-ed25519 AAAA eve}]
            ssh_keys: [ssh-ed25519 AAAA me]
            user_data: "#cloud-config"
            run: systemctl start it
          after: save
          save_as: mine:2
          templates: false
          labels: {rack: 12}
          classes: [batch, short]
          users: [alice, "@physics"]
          qemu: [-cpu, max]
        """,
        level=Level.SITE,
    )
    assert made.summary == "All of it"
    assert made.image == "base:1.10"
    assert made.size == Size(4, 1536 * MIB, 10240 * MIB)
    assert made.storage is Storage.QCOW2
    assert made.network == "user"
    assert made.shares == (
        Share("/here/data", "/data", True),
        Share("/scratch", "/tmp/scratch"),
        Share("/here/src", "/here/src"),
    )
    assert made.devices == ("rng",)
    assert made.kernel_arguments == ("quiet", "nosmt")
    assert made.ready == Readiness(
        answer=Answer.SSH, command=("test", "-e", "/x"), port=22, file="/run/up", timeout=300
    )
    assert made.context == Context(
        files=(
            AddedFile(path="/etc/motd", content="hello", mode=0o640, owner="me"),
            AddedFile(path="/opt/tools", source="/here/tools"),
        ),
        variables={"DEBUG": "1", "ANSWER": "no"},
        users=(Account(name="eve", uid=1000, ssh_keys=("ssh-ed25519 AAAA eve",)),),
        ssh_keys=("ssh-ed25519 AAAA me",),
        user_data="#cloud-config",
        run=("systemctl start it",),
    )
    assert (made.after, made.save_as) == (After.SAVE, "mine:2")
    assert made.templates is False
    assert made.labels == {"rack": "12"}
    assert made.classes == ("batch", "short")
    assert made.users == ("alice", "@physics")
    assert made.qemu == ("-cpu", "max")
    assert made.origin == "0.yaml"


def test_command_in_one_line_is_run_by_a_shell() -> None:
    made = one("it: {image: x, ready: {command: test -e /x && true}}")
    assert made.ready.command == ("/bin/sh", "-c", "test -e /x && true")


def test_devices_are_those_that_machines_can_have() -> None:
    assert set(DEVICES) == set(hardware.DEVICES)


# ── images ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("written", "kind", "fields"),
    [
        ("debian: trixie", Kind.DEBIAN, {"suite": "trixie", "source": None}),
        ("mini: bookworm", Kind.MINI, {"suite": "bookworm"}),
        ("oci: image.tar", Kind.OCI, {"source": "/here/image.tar"}),
        ("oci: docker://busybox", Kind.OCI, {"source": "docker://busybox"}),
        ("rootfs: /srv/tree", Kind.ROOTFS, {"source": "/srv/tree", "suite": "bookworm"}),
        ("{rootfs: ../tree, suite: trixie}", Kind.ROOTFS, {"source": "/tree", "suite": "trixie"}),
        ("disk: cloud.qcow2", Kind.DISK, {"source": "/here/cloud.qcow2"}),
        ("from: base:3", Kind.LAYER, {"parent": "base:3"}),
    ],
)
def test_image_is_of_the_kind_it_starts_from(
    written: str, kind: Kind, fields: dict[str, object]
) -> None:
    written = written if written.startswith("{") else f"{{{written}}}"
    made = recipe(one(f"it: {{image: {written}}}"))
    assert made.kind is kind
    assert {name: getattr(made, name) for name in fields} == fields
    assert made.name == "it"


def test_recipe_carries_what_is_added() -> None:
    made = recipe(
        one(
            """
            it:
              image:
                debian: bookworm
                name: other
                version: 1.10
                packages: [vim, "g++"]
                sources: deb [trusted=yes] file:/srv/packages ./
                files: [{path: /etc/x, content: y}]
                run: [ldconfig]
                kernel: linux-image-cloud-amd64
                compression: lz4
            """
        )
    )
    assert (made.name, made.version) == ("other", "1.10")
    assert made.packages == ("vim", "g++")
    assert made.sources == ("deb [trusted=yes] file:/srv/packages ./",)
    assert made.files == (AddedFile(path="/etc/x", content="y"),)
    assert made.run == ("ldconfig",)
    assert made.kernel == "linux-image-cloud-amd64"
    assert made.compression is Compression.LZ4


def test_layer_stands_on_the_image_of_the_environment_it_is_from() -> None:
    made = environments("base: {image: {debian: bookworm}}\ntop: {image: {from: base, run: x}}")
    top = recipe(made["top"])
    assert top.kind is Kind.LAYER
    assert top.parent == made["base"].image


def test_image_is_shared_by_heirs_that_do_not_change_it() -> None:
    made = environments(
        """
        base: {image: {debian: bookworm, packages: [vim]}}
        heir: {extends: base, memory: 1G}
        other: {extends: base, image: {packages+: [git]}}
        grandchild: {extends: other, cpus: 2}
        """
    )
    assert made["heir"].image == made["base"].image
    assert recipe(made["other"]).name == "other"
    assert recipe(made["other"]).packages == ("vim", "git")
    assert made["grandchild"].image == made["other"].image


def test_image_that_starts_from_something_else_inherits_nothing_of_an_image() -> None:
    made = environments(
        """
        base: {image: {debian: bookworm, packages: [vim]}}
        heir: {extends: base, image: {oci: x.tar}}
        """
    )
    assert recipe(made["heir"]).packages == ()
    assert recipe(made["heir"]).kind is Kind.OCI


# ── inheritance ──────────────────────────────────────────────────────────────────────────────────


def test_of_several_parents_the_later_wins_and_own_values_win_over_all() -> None:
    made = one(
        """
        a: {image: a, cpus: 1, memory: 1G, disk: 1G}
        b: {image: b, cpus: 2, memory: 2G}
        it: {extends: [a, b], cpus: 3}
        """
    )
    assert made.image == "b"
    assert made.size == Size(3, 2048 * MIB, 1024 * MIB)


def test_common_ancestor_does_not_undo_what_the_first_parent_changed() -> None:
    made = one(
        """
        root: {image: x, cpus: 1, classes: [root]}
        a: {extends: root, cpus: 4, classes+: [a]}
        b: {extends: root, memory: 2G, classes+: [b]}
        it: {extends: [a, b]}
        """
    )
    assert made.size == Size(4, 2048 * MIB)
    assert made.classes == ("root", "a", "b")


def test_part_without_image_can_be_mixed_in() -> None:
    made = environments(
        """
        numpy: {abstract: true, image: {packages+: [python3-numpy]}}
        base: {image: {debian: bookworm, packages: [vim]}}
        it: {extends: [base, numpy]}
        """
    )
    assert "numpy" not in made
    assert recipe(made["it"]).packages == ("vim", "python3-numpy")


def test_mappings_merge_and_lists_are_replaced() -> None:
    made = one(
        """
        base:
          image: x
          classes: [a, b]
          context: {variables: {A: 1, B: 2}, ssh_keys: [k]}
          ready: {port: 22, timeout: 1m}
        it:
          extends: base
          classes: [c]
          context: {variables: {B: 3, C: 4}}
          ready: {timeout: 2m}
        """
    )
    assert made.classes == ("c",)
    assert made.context.variables == {"A": "1", "B": "3", "C": "4"}
    assert made.context.ssh_keys == ("k",)
    assert made.ready == Readiness(port=22, timeout=120)


def test_null_goes_back_to_the_default() -> None:
    made = one(
        """
        base: {image: x, disk: 1G, ready: {port: 22, timeout: 9}, labels: {a: 1, b: 2}}
        it: {extends: base, disk: null, ready: {port: ~}, labels: {a: null}}
        """
    )
    assert made.size.disk == 0
    assert made.ready == Readiness(timeout=9)
    assert made.labels == {"b": "2"}


def test_single_item_is_a_list_of_one_also_when_added_to() -> None:
    made = one("base: {image: x, classes: a}\nit: {extends: base, classes+: b}")
    assert made.classes == ("a", "b")


def test_order_within_a_file_does_not_matter() -> None:
    made = one("it: {extends: base}\nbase: {image: x, cpus: 2}")
    assert made.size.cpus == 2


def test_abstract_is_not_inherited() -> None:
    made = environments("base: {abstract: true, image: x}\nit: {extends: base}")
    assert list(made) == ["it"]


# ── early references ─────────────────────────────────────────────────────────────────────────────


def variables(text: str) -> dict[str, str]:
    return one(text).context.variables


def test_reference_copies_a_value_and_keeps_its_type() -> None:
    made = one(
        """
        base: {image: x, cpus: 3, memory: 2G, templates: false, classes: [a, b]}
        it:
          image: y
          cpus: ${base.cpus}
          memory: ${base.memory}
          templates: ${base.templates}
          classes: ${base.classes}
        """
    )
    assert made.size == Size(3, 2048 * MIB)
    assert made.templates is False
    assert made.classes == ("a", "b")


def test_reference_inside_a_text_becomes_part_of_it() -> None:
    assert variables(
        """
        it: {image: x, cpus: 2, context: {variables: {A: "${name} has ${cpus} of ${cpus}"}}}
        """
    ) == {"A": "it has 2 of 2"}


def test_inherited_reference_means_the_heirs_value() -> None:
    made = environments(
        """
        base: {image: x, memory: 1G, context: {variables: {MEMORY: "${memory}", WHO: "${name}"}}}
        heir: {extends: base, memory: 4G}
        """
    )
    assert made["base"].context.variables == {"MEMORY": "1G", "WHO": "base"}
    assert made["heir"].context.variables == {"MEMORY": "4G", "WHO": "heir"}


def test_absolute_reference_means_the_named_environment_whoever_inherits_it() -> None:
    made = environments(
        """
        base: {image: x, memory: 1G}
        a: {extends: base, memory: 2G, context: {variables: {M: "${base.memory}"}}}
        b: {extends: a, memory: 3G}
        """
    )
    assert made["b"].context.variables == {"M": "1G"}


def test_up_climbs_one_mapping_at_a_time() -> None:
    assert variables(
        """
        it:
          image: x
          cpus: 7
          context:
            user_data: data
            variables: {A: "${up.user_data}", B: "${up.up.cpus}", C: "${up.up.up.other.cpus}"}
        other: {image: x, cpus: 8}
        """
    ) == {"A": "data", "B": "7", "C": "8"}


def test_reference_reaches_down_and_sideways_and_into_lists() -> None:
    assert variables(
        """
        it:
          image: x
          values: {deep: {er: [{x: 1}, {x: 2}]}}
          context: {variables: {A: "${values.deep.er.1.x}", B: "${context.variables.A}"}}
        """
    ) == {"A": "2", "B": "2"}


def test_reference_to_an_attribute_that_nobody_wrote_is_its_default() -> None:
    assert variables(
        "it: {image: x, context: {variables: {A: '${cpus}', B: '${ready.timeout}'}}}"
    ) == {"A": "1", "B": "2m"}


def test_list_referred_to_in_a_list_puts_its_items_there() -> None:
    made = environments(
        """
        base: {image: {debian: bookworm, packages: [a, b]}}
        it: {image: {debian: trixie, packages: ["${base.image.packages}", c]}}
        more: {extends: base, image: {packages+: "${it.image.packages}"}}
        """
    )
    assert recipe(made["it"]).packages == ("a", "b", "c")
    assert recipe(made["more"]).packages == ("a", "b", "a", "b", "c")


def test_whole_mapping_can_be_copied() -> None:
    made = one("a: {image: x, ready: {port: 22}}\nit: {image: y, ready: '${a.ready}'}")
    assert made.ready == Readiness(port=22)


def test_image_that_is_copied_is_named_after_whoever_copies_it() -> None:
    made = environments("a: {image: {debian: sid}}\nb: {image: '${a.image}'}")
    assert recipe(made["a"]).name == "a"
    assert recipe(made["b"]).name == "b"


def test_layer_can_stand_on_the_image_of_an_abstract_environment() -> None:
    made = environments("a: {abstract: true, image: {debian: sid}}\nb: {image: {from: a}}")
    parent = recipe(made["b"]).parent
    assert getattr(parent, "name", None) == "a"


def test_values_of_ones_own_can_be_overridden_by_heirs() -> None:
    made = environments(
        """
        base: {abstract: true, values: {suite: bookworm}, image: {debian: "${values.suite}"}}
        it: {extends: base, values: {suite: trixie}}
        other: {extends: base}
        """
    )
    assert recipe(made["it"]).suite == "trixie"
    assert recipe(made["other"]).suite == "bookworm"
    assert (recipe(made["it"]).name, recipe(made["other"]).name) == ("it", "other")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("$${HOME}", "${HOME}"),
        ("$$${x}", "$${x}"),
        ("$HOME $$ 5$", "$HOME $$ 5$"),
        ("$${cpus} is ${cpus}", "${cpus} is 1"),
        ("}{", "}{"),
    ],
)
def test_dollars_stand_for_themselves_when_escaped(written: str, meant: str) -> None:
    assert variables(f"it: {{image: x, context: {{variables: {{A: '{written}'}}}}}}") == {
        "A": meant
    }


def test_relative_path_that_is_copied_still_starts_where_it_was_written() -> None:
    from encamp.describe.library import load
    from encamp.describe.sources import Source

    made = load(
        [
            (Source("a", Level.SITE, 0, "/site"), b"a: {image: {rootfs: tree}}"),
            (Source("b", Level.USER, 1, "/user"), b"b: {image: {rootfs: '${a.image.rootfs}'}}"),
        ]
    )
    found = made.environment("b")
    assert found is not None
    assert recipe(found).source == "/site/tree"
