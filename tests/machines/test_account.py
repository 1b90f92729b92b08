"""The account that root's machines run as is one, however many need it first."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.site.siting import root_only

pytestmark = root_only

AT_ONCE = """
mount --bind "$1" /etc
userdel encamp 2>/dev/null
for _ in 1 2 3 4 5 6 7 8; do
    "$2" -c "$3" &
done
wait
getent passwd encamp | cut -d: -f3,4
ls /run/encamp-account.lock
"""
TELL = """
import os
from encamp.machines.account import process_user
os.write(1, f"{process_user(0)}\\n".encode())
"""


def test_account_has_the_same_numbers_for_all_who_make_it_at_the_same_time(tmp_path: Path) -> None:
    """On a copy of what this host knows of accounts."""
    shutil.copytree("/etc", tmp_path / "etc", symlinks=True)
    given = [str(tmp_path / "etc"), sys.executable, TELL]
    words = ["unshare", "--mount", "sh", "-c", AT_ONCE, "sh", *given]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    *told, made = done.stdout.split("\n")[:-1]
    assert len(told) == 8, done.stderr
    assert set(told) == {f"({made.replace(':', ', ')})"}
    assert "No such file" in done.stderr
