"""What all daemons have in common."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import resource
from encamp.cli.daemons import run_daemon
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, min(hard, 2000)))
async def daemon():
    print(*resource.getrlimit(resource.RLIMIT_NOFILE))
run_daemon(daemon, verbose=False)
"""


def test_a_daemon_may_open_as_many_files_as_the_system_lets_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    soft, hard = done.stdout.split()
    assert soft == hard
    assert int(soft) > 256
