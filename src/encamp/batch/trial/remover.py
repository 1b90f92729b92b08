"""Removes the directory of a private site: python -I -S remover.py DIRECTORY

Waits until whoever opened the site has closed it, or is gone, however that came about: that is when
its input ends. Uses nothing but Python's own library, so that it is there at once.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

PATIENCE = 60.0
"""Seconds in which daemons and machines that write there are ended by who keeps their hosts."""


def main() -> None:
    directory = Path(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    while os.read(0, 4096):
        pass
    end = time.monotonic() + PATIENCE
    while directory.exists() and time.monotonic() < end:
        shutil.rmtree(directory, ignore_errors=True)
        if directory.exists():
            time.sleep(0.1)


if __name__ == "__main__":
    main()
