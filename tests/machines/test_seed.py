"""The volume that tells a disk who it is: read by others' programs as it was meant."""

from __future__ import annotations

import email
import email.policy
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from encamp.machines.iso9660 import SECTOR, volume
from encamp.machines.seed import START_GUEST, meta_data, network_config, seed, user_data
from encamp.model.environment import Context
from encamp.model.errors import Code, EncampError
from encamp.model.machine import Machine, State
from encamp.model.size import MIB, Size

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKVaPPeiuaxQv1LV4ILCZ6IjHZb2hEQntGjSt5njbpXy me"

MACHINE = Machine(
    id="0123456789abcdef0123456789abcdef",
    name="cloud-012345",
    owner=1000,
    host="here",
    environment="cloud",
    image="",
    size=Size(1, 512 * MIB),
    state=State.STARTING,
    reason="",
    created=0.0,
    changed=0.0,
)


def parts(context: Context) -> dict[str, str]:
    """What cloud-init finds in the user data: its parts, by their names."""
    message = email.message_from_bytes(user_data(context), policy=email.policy.default)
    assert message.get_content_type() == "multipart/mixed"
    return {part.get_filename() or "": part.get_content() for part in message.iter_parts()}


def probe(path: Path) -> dict[str, str]:
    program = ["/usr/sbin/blkid", "-p", "-o", "export", str(path)]
    said = subprocess.run(program, check=True, capture_output=True, text=True).stdout
    return dict(line.split("=", 1) for line in said.splitlines())


def test_volume_is_found_by_its_label(tmp_path: Path) -> None:
    path = tmp_path / "volume"
    path.write_bytes(volume("CIDATA", {"meta-data": b"{}", "user-data": b""}))
    found = probe(path)
    assert (found["LABEL"], found["TYPE"]) == ("CIDATA", "iso9660")
    assert path.stat().st_size % SECTOR == 0


def test_same_files_make_the_same_volume() -> None:
    files = {"one": os.urandom(5000), "two": b""}
    assert volume("CIDATA", files) == volume("CIDATA", dict(reversed(files.items())))


def test_files_of_a_volume_are_where_its_directory_says() -> None:
    files = {"meta-data": b"x" * SECTOR, "user-data": b"y" * 3000, "encamp-guest": b"z"}
    data = volume("CIDATA", files)
    root = int.from_bytes(data[16 * SECTOR + 158 : 16 * SECTOR + 162], "little") * SECTOR
    found = {}
    at = root
    while length := data[at]:
        sector = int.from_bytes(data[at + 2 : at + 6], "little")
        assert sector == int.from_bytes(data[at + 6 : at + 10], "big")
        size = int.from_bytes(data[at + 10 : at + 14], "little")
        name = data[at + 33 : at + 33 + data[at + 32]]
        if not data[at + 25] & 2:
            found[name] = data[sector * SECTOR : sector * SECTOR + size]
        at += length
    assert found == {f"{name.upper()}.;1".encode(): body for name, body in files.items()}


def test_seed_tells_the_machine_its_id_and_name() -> None:
    told = yaml.safe_load(meta_data(MACHINE))
    assert told == {"instance-id": MACHINE.id, "local-hostname": MACHINE.name}


def test_guest_program_is_started_after_all_else() -> None:
    given = parts(Context(user_data="#!/bin/sh\nexit 3\n"))
    assert list(given)[-1] == max(given) == "zz-encamp-guest"
    assert max(given) > "runcmd", "which cloud-init makes itself"
    assert given["zz-encamp-guest"] == START_GUEST


def test_start_script_is_a_shell_script() -> None:
    subprocess.run(["sh", "-n"], input=START_GUEST.encode(), check=True)


def test_keys_open_root_and_the_disks_own_user() -> None:
    config = yaml.safe_load(parts(Context(ssh_keys=(KEY,)))["encamp.cfg"])
    assert config == {"disable_root": False, "ssh_authorized_keys": [KEY]}
    assert "encamp.cfg" not in parts(Context())


@pytest.mark.parametrize(
    "given",
    [
        "#cloud-config\npackages: [curl]\n",
        "#!/bin/sh\necho '--===============' ; echo \"$1\"\n",
        "#cloud-config\nruncmd: ['echo größe']\n",
    ],
)
def test_user_data_arrives_as_it_is(given: str) -> None:
    assert parts(Context(user_data=given))["user-data"] == given


def test_user_data_of_several_parts_takes_its_place_among_ours() -> None:
    given = (
        'Content-Type: multipart/mixed; boundary="b"\nMIME-Version: 1.0\n\n'
        "--b\nContent-Type: text/cloud-config\n"
        'Content-Disposition: attachment; filename="one"\n\n#cloud-config\n{}\n'
        "--b\nContent-Type: text/x-shellscript\n"
        'Content-Disposition: attachment; filename="two"\n\n#!/bin/sh\n--b--\n'
    )
    assert list(parts(Context(user_data=given))) == ["one", "two", "zz-encamp-guest"]


def test_parts_of_user_data_may_be_in_any_language() -> None:
    given = (
        'Content-Type: multipart/mixed; boundary="b"\nMIME-Version: 1.0\n\n'
        '--b\nContent-Type: text/cloud-config; charset="utf-8"\n'
        'Content-Disposition: attachment; filename="one"\n\n#cloud-config\n# größe\n--b--\n'
    )
    assert parts(Context(user_data=given))["one"] == "#cloud-config\n# größe"


def test_room_for_user_data_is_counted_in_bytes() -> None:
    with pytest.raises(EncampError, match="user_data has 10 MiB"):
        user_data(Context(user_data="ß" * (5 * MIB)))


@pytest.mark.parametrize(
    "given",
    [
        'Content-Type: "' + "ssage/rfc822\0--b--utf-8;Content-Transfer-Encoding: >üSubject: (",
        "Content-Type: 2]multipart/mixedContent-Transfer-Encoding: >message/rfc822()    ",
    ],
)
def test_user_data_that_pythons_parser_stumbles_over_is_no_mistake_of_ours(given: str) -> None:
    code = None
    try:
        user_data(Context(user_data=given))
    except EncampError as error:
        code = error.code
    assert code in (None, Code.CONFIGURATION)


def test_user_data_that_is_too_long_is_refused() -> None:
    with pytest.raises(EncampError) as raised:
        user_data(Context(user_data="#!/bin/sh\n" + "#" * (9 * MIB)))
    assert raised.value.code is Code.CONFIGURATION


def test_network_is_set_up_only_where_there_is_one() -> None:
    assert network_config("none") == {"config": "disabled"}
    assert network_config("user")["version"] == 2


def test_seed_brings_the_guest_program(tmp_path: Path) -> None:
    program = tmp_path / "guest"
    program.write_bytes(os.urandom(100_000))
    assert program.read_bytes() in seed(MACHINE, Context(), "user", program)
