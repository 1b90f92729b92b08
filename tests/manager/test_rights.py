"""Who may issue which command to which host."""

from __future__ import annotations

import pytest

from encamp.manager.rights import check_right, chosen_hosts
from encamp.model.errors import Code, EncampError
from encamp.model.host import Host
from encamp.model.site import Right

NODE = Host(name="node1", groups=("workers",))
OTHER = Host(name="server", groups=())

RIGHTS = (
    Right(who=("alice",), commands=("machine.*",), hosts=("@workers",)),
    Right(who=("@operators",), commands=("agent.ping",)),
)


@pytest.mark.parametrize(
    ("user", "groups", "command", "host"),
    [
        ("alice", (), "machine.start", NODE),
        ("bob", ("operators",), "agent.ping", NODE),
        ("bob", ("operators",), "agent.ping", OTHER),
    ],
)
def test_what_is_granted_is_allowed(
    user: str, groups: tuple[str, ...], command: str, host: Host
) -> None:
    check_right(RIGHTS, user, groups, command, host)


@pytest.mark.parametrize(
    ("user", "groups", "command", "host"),
    [
        ("alice", (), "machine.start", OTHER),
        ("alice", (), "image.pull", NODE),
        ("alice", (), "machine", NODE),
        ("mallory", (), "machine.start", NODE),
        ("bob", ("operators",), "machine.start", NODE),
        # A user who is called like a group is not in it, and a group is no user.
        ("operators", (), "agent.ping", NODE),
        ("@operators", (), "agent.ping", NODE),
        ("bob", ("alice",), "machine.start", NODE),
    ],
)
def test_what_is_not_granted_is_refused(
    user: str, groups: tuple[str, ...], command: str, host: Host
) -> None:
    with pytest.raises(EncampError) as refused:
        check_right(RIGHTS, user, groups, command, host)
    assert refused.value.code is Code.NOT_PERMITTED
    assert command in refused.value.sentence
    assert host.name in refused.value.sentence


def test_hosts_are_chosen_by_name_pattern_and_group() -> None:
    hosts = [OTHER, NODE]
    assert chosen_hosts((), hosts) == [NODE, OTHER]
    assert chosen_hosts(("node*",), hosts) == [NODE]
    assert chosen_hosts(("@workers", "server"), hosts) == [NODE, OTHER]


@pytest.mark.parametrize("pattern", ["node2", "@servers", "x*"])
def test_a_pattern_that_names_no_host_is_an_error(pattern: str) -> None:
    with pytest.raises(EncampError) as refused:
        chosen_hosts(("node1", pattern), [NODE, OTHER])
    assert pattern.lstrip("@") in refused.value.sentence
