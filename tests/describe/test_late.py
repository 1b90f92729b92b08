"""Late references: kept until a machine exists, then replaced by what it knows."""

from __future__ import annotations

import pytest

from encamp.describe.late import late_references, resolve_late, resolve_text
from encamp.model.environment import Context, Readiness
from encamp.model.errors import Code, EncampError
from tests.describe.describing import one

FACTS = {
    "machine.name": "work",
    "machine.id": "abc",
    "owner.name": "eve",
    "peers.db.address": "::1",
}


def test_late_references_stay_while_early_ones_are_replaced() -> None:
    made = one(
        """
        it:
          image: x
          cpus: 2
          context: {variables: {A: "${cpus} on ${late.machine.name}"}}
          ready: {command: "ping ${late.peers.db.address}"}
        """
    )
    assert made.context.variables == {"A": "2 on ${late.machine.name}"}
    assert late_references(made.context) == ["machine.name"]
    assert late_references(made.ready) == ["peers.db.address"]
    assert resolve_late(made.context, FACTS).variables == {"A": "2 on work"}
    assert resolve_late(made.ready, FACTS).command == ("/bin/sh", "-c", "ping ::1")


def test_late_references_are_replaced_wherever_a_machine_is_handed_text() -> None:
    made = one(
        """
        it:
          image: x
          values: {who: "${late.owner.name}"}
          context:
            files: [{path: "/home/${values.who}/id", content: "${late.machine.id}"}]
            ssh_keys: ["ssh-ed25519 AAAA ${values.who}"]
            user_data: "host: ${late.machine.name}"
            run: ["echo ${late.machine.id}"]
          ready: {file: "/run/${late.machine.name}", command: [test, "${values.who}"], port: 22}
        """
    )
    context = resolve_late(made.context, FACTS)
    assert (context.files[0].path, context.files[0].content) == ("/home/eve/id", "abc")
    assert context.ssh_keys == ("ssh-ed25519 AAAA eve",)
    assert (context.user_data, context.run) == ("host: work", ("echo abc",))
    assert resolve_late(made.ready, FACTS) == Readiness(
        file="/run/work", command=("test", "eve"), port=22
    )


def test_text_that_only_looks_like_a_late_reference_survives() -> None:
    made = one("it: {image: x, context: {user_data: 'a $${late.machine.name} $${HOME}'}}")
    assert late_references(made.context) == []
    assert resolve_late(made.context, {}).user_data == "a ${late.machine.name} ${HOME}"
    summary = one("it: {image: x, summary: 'a $${late.machine.name}'}").summary
    assert summary == "a ${late.machine.name}"


def test_text_without_late_references_is_left_alone() -> None:
    context = Context(variables={"A": "$HOME ${x} $$"}, user_data="${")
    assert resolve_late(context, {}) == context


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("machine.address", "the machine has no address"),
        ("peers.web.id", "there is no peer 'web'"),
        ("peers.web.address", "there is no peer 'web': a machine that is made alone has none"),
        ("machine.host", "the machine does not know it"),
    ],
)
def test_fact_without_a_value_is_told(name: str, why: str) -> None:
    with pytest.raises(EncampError, match=why) as refused:
        resolve_text(f"x ${{late.{name}}}", {**FACTS, "machine.host": ""})
    assert refused.value.code is Code.CONFIGURATION


def test_what_a_fact_contains_is_not_looked_at_again() -> None:
    facts = {"machine.name": "${late.machine.id}", "machine.id": "abc"}
    assert resolve_text("${late.machine.name}", facts) == "${late.machine.id}"


@pytest.mark.parametrize("path", ["${late.owner.home}/.netrc", "/srv/${late.owner.name}/x"])
def test_path_may_begin_where_the_owners_home_is(path: str) -> None:
    made = one(f"it: {{image: x, context: {{files: [{{path: '{path}', content: ''}}]}}}}")
    assert made.context.files[0].path == path


@pytest.mark.parametrize(
    "path", ["${late.owner.name}/x", "$${late.owner.home}/x", "x/${late.owner.home}"]
)
def test_path_that_no_reference_makes_absolute_is_refused(path: str) -> None:
    with pytest.raises(AssertionError, match="an absolute path is expected"):
        one(f"it: {{image: x, context: {{files: [{{path: '{path}', content: ''}}]}}}}")
