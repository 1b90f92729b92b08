"""Clones of one template are different machines."""

from __future__ import annotations

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import Encamp

pytestmark = pytest.mark.site

CLONES = 4

SCRIPT = """
head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \\n'; echo
cat /proc/sys/kernel/random/uuid /etc/machine-id
hostname
cat /etc/hostname
date +%s
echo $ENCAMP_MACHINE
"""


def test_clones_made_at_the_same_moment_share_nothing_but_the_time(encamp: Encamp) -> None:
    before = int(time.time())

    def look(_: int) -> list[str]:
        return encamp("run", "--", "sh", "-c", SCRIPT).stdout.decode().splitlines()

    with ThreadPoolExecutor(CLONES) as pool:
        found = list(pool.map(look, range(CLONES)))
    after = int(time.time())
    random, uuid, machine_id, host, host_file, clock, own_id = zip(*found, strict=True)
    for different in (random, uuid, machine_id, host, own_id):
        assert len(set(different)) == CLONES, different
    assert machine_id == own_id
    assert host == host_file
    # The guest's clock counts from the host's whole seconds at the earliest.
    assert all(before - 1 <= int(moment) <= after + 1 for moment in clock)


def test_what_one_machine_writes_no_other_sees(encamp: Encamp) -> None:
    script = "ls /root /tmp /var/tmp; echo mine | tee /root/x /tmp/x /var/tmp/x > /etc/passwd"
    seen = {encamp("run", "--", "sh", "-c", script).stdout for _ in range(2)}
    assert len(seen) == 1
    assert b"x" not in seen.pop().split()


def test_commands_in_one_machine_get_different_random_numbers(encamp: Encamp) -> None:
    encamp("start", "--name", "dice")
    words = ("exec", "dice", "--", "cat", "/proc/sys/kernel/random/uuid")
    drawn: list[subprocess.CompletedProcess[bytes]] = [encamp(*words) for _ in range(2)]
    encamp("suspend", "dice")
    encamp("restore", "dice")
    drawn.append(encamp(*words))
    encamp("rm", "--force", "dice")
    assert len({done.stdout for done in drawn}) == 3
