"""The files of a site: who can read them, who gets which rights, and what is refused."""

from __future__ import annotations

import base64
import re
import shutil
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from encamp.bus import secret
from encamp.bus.credentials import Key
from encamp.bus.server_file import Address
from encamp.describe.site_file import read_site
from encamp.describe.sources import Level, Source
from encamp.home import Home
from encamp.manager.enrolment import Enrolment, Members, decoded
from encamp.manager.joining import join
from encamp.manager.membership import Membership
from encamp.manager.store.store import Store
from encamp.model.errors import Code, EncampError
from encamp.model.site import Presences, Site

HERE = Address("127.0.0.1", 4222)


@pytest.fixture
def enrolment(tmp_path: Path) -> Enrolment:
    made = Enrolment(tmp_path / "site")
    made.init("perugia", [HERE], ["n1"])
    return made


def claims(credential: str) -> dict[str, Any]:
    """What an account says about a user."""
    token = credential.splitlines()[1].split(".")[1]
    found: dict[str, Any] = msgspec.json.decode(base64.urlsafe_b64decode(token + "=="))
    return found


def test_secrets_can_be_read_only_by_their_owner(enrolment: Enrolment) -> None:
    modes = {
        str(path.relative_to(enrolment.directory)): path.stat().st_mode & 0o777
        for path in enrolment.directory.rglob("*")
    }
    assert modes == {
        "site.yaml": 0o644,
        "nats-server.conf": 0o644,
        "keys.json": 0o600,
        "members.json": 0o600,
        "credentials": 0o700,
        "credentials/manager.creds": 0o600,
        "credentials/n1.creds": 0o600,
        "credentials/n1.secret": 0o600,
    }
    public = (enrolment.directory / "nats-server.conf").read_text()
    assert not re.search(r"\bS[OAU][A-Z2-7]{50,}", public), "no seed of a key"


def test_a_site_is_not_set_up_twice_in_one_place(enrolment: Enrolment) -> None:
    before = (enrolment.directory / "keys.json").read_bytes()
    with pytest.raises(EncampError, match="already") as caught:
        enrolment.init("other", [HERE], [])
    assert caught.value.code is Code.WRONG_STATE
    assert (enrolment.directory / "keys.json").read_bytes() == before


def test_a_credential_gives_the_rights_of_an_agent_and_no_more(enrolment: Enrolment) -> None:
    invitation = secret.unpack(enrolment.add("n2.x", ("blue",), None))
    about = claims(invitation.credential)
    assert about["nats"]["pub"]["allow"] == [
        *("here.n2=x", "to.manager.n2=x", "re.manager.n2=x"),
        *("to.n2=x.n2=x", "re.n2=x.n2=x"),
    ]
    assert about["nats"]["sub"]["allow"] == [
        *("to.n2=x.*", "re.n2=x.>", "all.agents.*", "all.blue.*")
    ]
    assert "exp" not in about


def test_a_credential_can_expire(enrolment: Enrolment) -> None:
    invitation = secret.unpack(enrolment.add("pilot", (), 3600))
    assert 3590 < claims(invitation.credential)["exp"] - time.time() <= 3600


def test_the_secret_is_one_line_and_half_of_it_is_refused(enrolment: Enrolment) -> None:
    text = enrolment.add("n2", (), None, Presences(interval=1, silence=3))
    assert re.fullmatch(r"[A-Za-z0-9_-]+", text)
    assert secret.unpack(f"\n{text}\n").presence == (1, 3)
    for wrong in (text[: len(text) // 2], text[:-4], text[1:], "", "encamp1-", text + "A" * 8):
        with pytest.raises(EncampError, match="not a secret"):
            secret.unpack(wrong)


@pytest.mark.parametrize("name", ["manager", "a b", "a/b", "../x", "", "a*", ">", "x" * 300])
def test_names_that_cannot_be_an_agents_are_refused(enrolment: Enrolment, name: str) -> None:
    with pytest.raises(EncampError) as caught:
        enrolment.add(name, (), None)
    assert caught.value.code is Code.USAGE


def test_nobody_is_added_twice_or_removed_without_belonging(enrolment: Enrolment) -> None:
    with pytest.raises(EncampError, match="belongs to the site already"):
        enrolment.add("n1", (), None)
    with pytest.raises(EncampError, match="does not belong") as caught:
        enrolment.remove("n2")
    assert "n1" in caught.value.hint


def test_removing_writes_the_revocation_and_takes_the_credential_away(
    enrolment: Enrolment,
) -> None:
    key = enrolment.members().members["n1"].key
    (path,) = enrolment.remove("n1")
    found = re.findall(r"A[A-Z2-7]{55}: \"([^\"]+)\"", path.read_text())
    accounts = [claims(f"\n{token}") for token in found]
    assert [list(each["nats"].get("revocations", {})) for each in accounts] == [[key], []]
    assert not list((enrolment.directory / "credentials").glob("n1.*"))
    assert enrolment.members().members == {}
    enrolment.add("n1", (), None)


def test_a_directory_without_a_site_says_how_to_make_one(tmp_path: Path) -> None:
    for attempt in (Enrolment(tmp_path).members, lambda: Enrolment(tmp_path).remove("x")):
        with pytest.raises(EncampError) as caught:
            attempt()
        assert "encamp site init" in caught.value.hint


def test_joining_twice_is_refused(enrolment: Enrolment, tmp_path: Path) -> None:
    first = secret.unpack(enrolment.add("n2", (), None))
    join(tmp_path / "n2", first)
    other = secret.unpack(enrolment.add("n3", (), None))
    with pytest.raises(EncampError, match="part of a site"):
        join(tmp_path / "n2", other)


def test_a_host_that_was_removed_joins_again_and_keeps_what_its_file_says(
    enrolment: Enrolment, tmp_path: Path
) -> None:
    join(tmp_path / "n2", secret.unpack(enrolment.add("n2", ("blue",), None)))
    path = tmp_path / "n2" / "site.yaml"
    with path.open("a") as file:
        file.write("# Ours.\nkeep_events: 3d\n")
    before = path.read_bytes()
    enrolment.remove("n2")
    again = secret.unpack(enrolment.add("n2", ("blue",), None))
    credential = tmp_path / "n2" / "credentials" / "n2.creds"
    assert credential.read_text() != again.credential
    assert join(tmp_path / "n2", again) == [credential]
    assert credential.read_text() == again.credential
    assert path.read_bytes() == before
    enrolment.remove("n2")
    other_groups = secret.unpack(enrolment.add("n2", ("red",), None))
    with pytest.raises(EncampError, match="cannot be made to say") as caught:
        join(tmp_path / "n2", other_groups)
    assert 'groups: ["red"]' in caught.value.hint
    assert credential.read_text() == again.credential
    moved = msgspec.structs.replace(again, bus=("nats://elsewhere:4222",))
    with pytest.raises(EncampError, match="names other servers"):
        join(tmp_path / "n2", moved)


def test_the_managers_own_host_joins_by_its_name_and_groups_in_the_file_they_share(
    enrolment: Enrolment,
) -> None:
    path = enrolment.directory / "site.yaml"
    with path.open("a") as file:
        file.write("# Ours.\nkeep_events: 3d")
    before = path.read_text()
    invitation = secret.unpack(enrolment.add("n2", ("blue", "red"), None))
    assert join(enrolment.directory, invitation) == [
        enrolment.directory / "credentials" / "n2.creds",
        path,
    ]
    assert path.read_text().startswith(before), "what was there is kept as it was"
    site = site_of(path)
    assert (site.host, site.groups, site.keep_events) == ("n2", ("blue", "red"), 3 * 86400)
    with pytest.raises(EncampError, match="part of a site"):
        join(enrolment.directory, invitation)


def test_the_managers_own_host_can_be_named_from_the_start(enrolment: Enrolment) -> None:
    text = (enrolment.directory / "credentials" / "n1.secret").read_text()
    path = enrolment.directory / "site.yaml"
    assert join(enrolment.directory, secret.unpack(text)) == [path]
    assert site_of(path).host == "n1"


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ("host: other\n", "says that this host is 'other'"),
        ("groups: [green]\n", "cannot be made to say"),
        ("...\n", "cannot be made to say"),
    ],
)
def test_a_managers_file_that_says_otherwise_is_left_alone(
    enrolment: Enrolment, said: str, complaint: str
) -> None:
    path = enrolment.directory / "site.yaml"
    with path.open("a") as file:
        file.write(said)
    before = path.read_bytes()
    invitation = secret.unpack(enrolment.add("n2", ("blue",), None))
    with pytest.raises(EncampError, match=complaint) as caught:
        join(enrolment.directory, invitation)
    assert caught.value.code is Code.WRONG_STATE
    assert path.read_bytes() == before
    assert not (enrolment.directory / "credentials" / "n2.creds").exists()


def test_several_are_added_at_once_or_none_of_them(enrolment: Enrolment) -> None:
    for wrong in ("n1", "a b", "manager"):
        with pytest.raises(EncampError):
            enrolment.add_all(["n2", wrong], (), None)
    assert list(enrolment.members().members) == ["n1"]
    added = enrolment.add_all(["n2", "n3", "n2"], ("blue",), None)
    assert [secret.unpack(text).name for text in added.values()] == ["n2", "n3"]
    assert list(enrolment.members().members) == ["n1", "n2", "n3"]


def test_all_files_that_are_written_are_told_and_each_setting_is_written_once(
    tmp_path: Path,
) -> None:
    written = Enrolment(tmp_path / "site").init("perugia", [HERE], ["n1"])
    files = {path for path in (tmp_path / "site").rglob("*") if path.is_file()}
    assert set(written) == files
    lines = (tmp_path / "site" / "nats-server.conf").read_text().splitlines()
    keys = [line.split(":")[0] for line in lines if re.match(r"\w+:", line)]
    assert len(keys) == len(set(keys))


def site_of(path: Path) -> Site:
    source = Source(str(path), Level.SITE, 0, str(path.parent), str(path))
    return read_site(source, path.read_bytes())


def test_a_cluster_has_a_file_for_each_server_that_only_the_owner_reads(tmp_path: Path) -> None:
    servers = [Address(f"bus{number}", 4222) for number in (1, 2, 3)]
    written = Enrolment(tmp_path / "site").init("perugia", servers, [])
    files = [path for path in written if path.name.startswith("nats-server-")]
    assert [path.name for path in files] == [f"nats-server-{number}.conf" for number in (1, 2, 3)]
    assert all(path.stat().st_mode & 0o077 == 0 for path in files)
    assert 'listen: "bus1:4222"' in files[0].read_text()
    assert '"nats-route://servers:' in files[0].read_text()


def test_keys_are_those_of_the_kind_asked_for() -> None:
    kinds = {Key.operator().public[0], Key.account().public[0], Key.user().public[0]}
    assert kinds == {"O", "A", "U"}
    with pytest.raises(EncampError):
        Key.from_seed("SUNOSEED")


def test_what_was_changed_elsewhere_counts_where_a_manager_knows_of_it(tmp_path: Path) -> None:
    """Two hosts with the keys: what one revokes, the other does not make good again."""
    shared: list[bytes] = []

    def share(changed: Members | None) -> Members | None:
        if changed is not None:
            shared.append(msgspec.json.encode(changed))
        return decoded(shared[-1]) if shared else None

    first = Enrolment(tmp_path / "first", share)
    first.init("perugia", [HERE], ["n1"])
    shutil.copytree(first.directory, tmp_path / "second")
    second = Enrolment(tmp_path / "second", share)
    key = first.members().members["n1"].key
    first.remove("n1")
    second.add("n2", (), None)
    assert key in second.members().revoked
    assert set(first.members().members) == {"n2"}
    # Of another site, nothing is taken.
    other = Enrolment(tmp_path / "other", share)
    other.init("perugia", [HERE], ["n3"])
    assert set(other.members().members) == {"n3"}


async def test_of_two_who_change_who_belongs_to_a_site_at_once_one_is_refused(
    tmp_path: Path,
) -> None:
    enrolment = Enrolment(tmp_path / "site")
    enrolment.init("perugia", [HERE], ["n1"])
    async with await Store.open("sqlite", Home(tmp_path / "home").prepare()) as store:
        known = Membership(tmp_path / "elsewhere")
        await known.load(store)
        assert known.groups_of("n1") is None
        found = enrolment.members()
        found.changed += 1
        await known.change(msgspec.json.encode(found), "perugia")
        assert known.groups_of("n1") == frozenset()
        with pytest.raises(EncampError, match="at the same time"):
            await known.change(msgspec.json.encode(found), "perugia")
        # The next manager finds it in the store.
        successor = Membership(tmp_path / "nowhere")
        await successor.load(store)
        assert successor.told() == known.told() != b""
