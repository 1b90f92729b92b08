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


PLACEMENT = "a mapping with rank, overcommit, memory_reserve, disk_reserve and so on is expected"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("placement:", f"1:1: 'placement' has no value: {PLACEMENT} (null: back to the default)"),
        ("placement: [pack]", f"1:12: {PLACEMENT} here, not a list"),
        ("placement: 7", f"1:12: {PLACEMENT} here, not '7'"),
        ("placement: {ranks: x}", "1:13: there is no attribute 'ranks' in 'placement'; did you"),
        ("placement: {zzz: x}", "1:13: there is no attribute 'zzz' in 'placement'; there are: "),
        ("placement: {pause: 5 parsecs}", "1:20: a time such as 10m is expected here, not '5 "),
        ("placement: {memory_reserve: 5 X}", "1:29: a size such as 512M is expected here, not "),
        ("placement: {rank: ''}", "1:19: a rank's name or an expression is expected here, not ''"),
        ("placement: {shares: }", "'shares' has no value: a mapping from an owner to a number"),
        ("placement: {limits: [x]}", "1:22: a mapping with name, owners, environments, classes"),
        ("placement: {limits: [{name: null}]}", "1:22: 'name' is missing: a limit needs it"),
        ("rights:", "a list, of which each is a mapping with who, commands and hosts, is expected"),
        ("rights: [alice]", "1:10: a mapping with who, commands and hosts is expected here, not "),
        ("rights: [{who: null}]", "1:10: 'who' is missing: a right needs it"),
        ("rights: [{who: a, hosts: }]", "such as node*, is expected (null"),
        ("presence: 2s", "1:11: a mapping with interval and silence is expected here, not '2s'"),
        ("presence:\n  interval: 9s", "2:3: 'silence' must be at least twice 'interval'"),
        ("traffic: {limit: 0}", "1:18: a number of messages a second, from 1, is expected here"),
        ("api: {rate: fast}", "1:13: a number of calls a second, from 1, is expected here, not "),
        ("api:\n  key: x", "2:3: a 'key' is of no use without its 'certificate'"),
        ("api: {listen: '0.0.0.0:1'}", "1:7: 'listen: 0.0.0.0:1' is open to other machines"),
        ("meeting: [a]", "1:10: a mapping with listen and address is expected here, not a list"),
        (
            "name: a b",
            "1:7: a name of letters, digits, '.', '_' and '-' is expected here, not 'a b'",
        ),
        ('submit: "a\\0b"', r"1:9: a user or @group is expected here, not 'a\x00b'"),
        ("mail_program: []", "1:1: the name of a program is expected here"),
        ("- name", "1:1: a mapping of names is expected here"),
    ],
)
def test_mistake_is_told_with_its_place_and_what_is_expected(
    host: Host, text: str, said: str
) -> None:
    host.write(host.site, text, "site.yaml")
    assert said in refused().detail


def test_what_is_wrong_with_the_address_of_a_store_is_not_shown(host: Host) -> None:
    host.write(host.site, "store: mysql://encamp:swordfish@db/encamp", "site.yaml")
    told = refused().detail
    assert "site.yaml:1:8: 'sqlite', or a URL such as postgresql://host/name, is expected" in told
    assert "swordfish" not in told


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
        ("name: x\nplacement:\n  pause: 2h", "site.yaml:3:3: 'longest_pause' must not be shorter"),
    ],
)
def test_what_makes_no_sense_together_is_refused(host: Host, text: str, said: str) -> None:
    host.write(host.site, text, "site.yaml")
    assert said in refused().detail


def test_a_file_that_others_could_have_written_is_not_believed(host: Host) -> None:
    host.write(host.site, "name: x", "site.yaml").chmod(0o666)
    assert "can be written to by others" in refused().sentence
