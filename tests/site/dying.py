"""`encamp`, struck dead at a chosen point: python -m tests.site.dying POINT VICTIM WORD...

POINT is MODULE:FUNCTION+before or +after. When that function is called (has returned), the VICTIM
is killed as by kill -9: `encamp` itself, the `machine`, or `both`; or Ctrl-C is pressed twice
(`interrupted`); or something fails that nobody thought of (`mistaken`). Nothing of the product
knows.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def kill_machines() -> None:
    home = Path(os.environ["ENCAMP_HOME"])
    for entry in Path("/proc").iterdir():
        try:
            if works_in(entry, home):
                os.kill(int(entry.name), signal.SIGKILL)
        except (OSError, ValueError):
            continue


def works_in(process: Path, home: Path) -> bool:
    """Whether a process is at work below the home, or is only just being sent there."""
    where = (process / "cwd").readlink()
    if where.is_relative_to(home) and where != home:
        return True
    starting = (process / "comm").read_text() == "encamp-launch\n"
    return starting and str(home).encode() in (process / "cmdline").read_bytes()


def strike(victim: str) -> None:
    if victim in ("machine", "both"):
        kill_machines()
    if victim in ("encamp", "both"):
        os.kill(os.getpid(), signal.SIGKILL)
    if victim == "mistaken":
        raise ZeroDivisionError("nobody thought of this")
    if victim == "interrupted":
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)


def deadly(function: Callable[..., Any], when: str, victim: str) -> Callable[..., Any]:
    due = [when]

    def reached(moment: str) -> None:
        """Only the first time: a machine that is made again is to live."""
        if moment in due:
            due.clear()
            strike(victim)

    @functools.wraps(function)
    async def later(*args: Any, **options: Any) -> Any:
        reached("before")
        result = await function(*args, **options)
        reached("after")
        return result

    @functools.wraps(function)
    def now(*args: Any, **options: Any) -> Any:
        reached("before")
        result = function(*args, **options)
        reached("after")
        return result

    return later if inspect.iscoroutinefunction(function) else now


def arm(point: str, victim: str) -> None:
    place, when = point.split("+")
    module, path = place.split(":")
    owner: Any = importlib.import_module(module)
    *owners, name = path.split(".")
    for part in owners:
        owner = getattr(owner, part)
    setattr(owner, name, deadly(getattr(owner, name), when, victim))


def main() -> None:
    arm(sys.argv[1], sys.argv[2])
    from encamp.cli.main import run_command
    from encamp.images import store

    # The suite has images of its own; those of this host's system home are not its business.
    store.trusted = lambda shared: False

    # Even if whoever runs the tests ignores it, as a shell does for what it runs in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(run_command(sys.argv[3:]))


if __name__ == "__main__":
    main()
