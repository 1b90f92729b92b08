"""What time it is here: by this host's own zone."""

from __future__ import annotations

import os
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo


def local_zone() -> tzinfo:
    """This host's, with its summer time, as it will be in all the years to come."""
    chosen = os.environ.get("TZ", "").removeprefix(":")
    try:
        if chosen:
            return ZoneInfo(chosen)
        with open("/etc/localtime", "rb") as file:
            return ZoneInfo.from_file(file)
    except (OSError, ValueError, KeyError):
        # The difference to UTC that is in force now, and will be until the clocks change.
        return datetime.now().astimezone().tzinfo or UTC
