"""site.yaml: what it may say, and what is told about mistakes in it."""

from __future__ import annotations

import pytest

from encamp.describe.site_file import SITE_FILE, load_site
from encamp.model.errors import Code, EncampError
from encamp.model.policy import Policy
from encamp.model.site import Presences, Right, Site, Traffic
from tests.describe.conftest import Host, root_only

pytestmark = root_only


def refused() -> EncampError:
    with pytest.raises(EncampError) as caught:
        load_site()
    assert caught.value.code is Code.CONFIGURATION
    return caught.value


def test_without_a_file_the_host_is_part_of_no_site(host: Host) -> None:
    assert load_site() is None


def test_an_empty_file_is_a_site_in_one_process(host: Host) -> None:
    host.write(host.site, "", "site.yaml")
    assert load_site() == Site()


def test_everything_can_be_set(host: Host) -> None:
    host.write(
        host.site,
        """
        name: perugia
        bus: [tls://bus1.example.org:4222, "tls://[2001:db8::1]:4222"]
        credential: credentials/{name}.creds
        authority: /etc/ssl/site.pem
        host: node7.example.org
        groups: [blue, batch]
        store: postgresql://db/encamp
        door: /run/encamp/door
        presence: { interval: 1s, silence: 4s }
        traffic: { limit: 10, poll: 10s }
        rights:
          - who: [alice, "@staff"]
            commands: machine.*
            hosts: ["@blue", node*]
          - { who: bob }
        submit: [alice, "@staff"]
        placement: { aging: 2h }
        keep_events: 7d
        mail_program: [/usr/bin/msmtp, -t]
        """,
        "site.yaml",
    )
    assert load_site() == Site(
        name="perugia",
        bus=("tls://bus1.example.org:4222", "tls://[2001:db8::1]:4222"),
        credential=f"{host.site}/credentials/{{name}}.creds",
        authority="/etc/ssl/site.pem",
        host="node7.example.org",
        groups=("blue", "batch"),
        store="postgresql://db/encamp",
        door="/run/encamp/door",
        presence=Presences(interval=1.0, silence=4.0),
        traffic=Traffic(limit=10, poll=10.0),
        rights=(
            Right(
                who=("alice", "@staff"),
                commands=("machine.*",),
                hosts=("@blue", "node*"),
            ),
            Right(who=("bob",)),
        ),
        submit=("alice", "@staff"),
        placement=Policy(aging=7200.0),
        keep_events=7 * 86400.0,
        mail_program=("/usr/bin/msmtp", "-t"),
    )
    assert set(SITE_FILE.attributes) == set(Site.__struct_fields__), "everything can be written"


def test_all_mistakes_are_told_with_their_places(host: Host) -> None:
    path = host.write(
        host.site,
        """\
        presense: {interval: 2s}
        bus: [http://host:1, nats://user@host:4222, nats://host]
        host: -x
        rights: [{commands: x}]
        traffic: {limit: 0}
        name: ${site}
        """,
        "site.yaml",
    )
    told = refused().detail.splitlines()
    assert told[0] == (
        f"{path}:1:1: there is no attribute 'presense' in the site's file; did you mean 'presence'?"
    )
    assert [line.removeprefix(f"{path}:").split(":")[0] for line in told] == list("12223456")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("presence: {interval: 4s, silence: 6s}", "at least twice 'interval'"),
        ("host: manager", "the manager's name on the bus"),
        ("bus: nats://far:4222", "needs a 'credential'"),
        (
            "bus: nats://127.0.0.1:4222\ncredential: x\nauthority: y",
            "no server in 'bus' has a tls:// URL",
        ),
        ("name: x\nplacement:\n  pause: 2h", "site.yaml:3:3: it must not be shorter than 'pause'"),
    ],
)
def test_what_makes_no_sense_together_is_refused(host: Host, text: str, said: str) -> None:
    host.write(host.site, text, "site.yaml")
    assert said in refused().detail


def test_a_file_that_others_could_have_written_is_not_believed(host: Host) -> None:
    host.write(host.site, "name: x", "site.yaml").chmod(0o666)
    assert "can be written to by others" in refused().sentence
