"""Environments that fail on this host, and jobs that nothing can be made for: how long they are
left alone, and what becomes of a job whose machine did not come up.

An environment that has failed several times in a row is paused: for the owner for whom it failed,
or for everybody. Afterwards one more failure is enough for the next pause: only a machine that
comes up ends the row. What is counted is written down, so that a restart of the agent is no way
around it.
"""

from __future__ import annotations

import enum
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import msgspec

from encamp.agent.bait import rows
from encamp.agent.bait.errand import Fault
from encamp.agent.bait.rows import Row
from encamp.home import Home
from encamp.local_time import local_zone
from encamp.model.batch import BatchJob, BatchSettings

FIRST_DELAY = 0.5
LONGEST_DELAY = 10.0
"""Seconds from one try on the spot to the next; they double from one to the other."""

MOST_ENVIRONMENTS = 1000
"""That are remembered; those that failed longest ago are forgotten first."""

LOG = logging.getLogger(__name__)


# ── deciding ─────────────────────────────────────────────────────────────────────────────────────


class Action(enum.Enum):
    """What becomes of a job that could not be run, or was lost."""

    AGAIN = "again"
    """It is tried once more, here."""
    BACK = "back"
    """It goes back into its batch system's queue,"""
    HOLD = "hold"
    """and stays there until somebody releases it."""
    FAIL = "fail"
    """It ends with an error: it may have done something, and must not be begun twice."""


class Verdict(msgspec.Struct, frozen=True):
    action: Action
    delay: float = 0.0
    """Seconds before it is tried again."""


def after_failure(
    job: BatchJob, settings: BatchSettings, *, begun: bool, tries: int, paused: bool = False
) -> Verdict:
    """`begun`: its program ran. `tries`: how often it was tried here, the last time included.
    `paused`: its environment is left alone here."""
    if not begun and not paused and tries < settings.tries:
        return Verdict(Action.AGAIN, min(LONGEST_DELAY, FIRST_DELAY * 2 ** (max(tries, 1) - 1)))
    if begun and not job.requeue:
        return Verdict(Action.FAIL)
    return Verdict(Action.HOLD if job.has_come_back(settings.restarts) else Action.BACK)


# ── keeping ──────────────────────────────────────────────────────────────────────────────────────


class Failing:
    """What has failed on this host, as it is written down. `paused` is called when something is
    left alone from now on, from whichever thread found that out."""

    def __init__(
        self, home: Home, settings: BatchSettings, paused: Callable[[], None] = lambda: None
    ) -> None:
        self._path = home.root / "batch" / "failing.json"
        self.settings = settings
        self._has_paused = paused
        self._rows: dict[str, Row] = {}
        self._up: dict[str, float] = {}
        """When a machine of each environment has last come up."""

    def change(self, settings: BatchSettings) -> None:
        self.settings = settings

    def load(self) -> None:
        try:
            self._rows = msgspec.json.decode(self._path.read_bytes(), type=dict[str, Row])
        except FileNotFoundError:
            self._rows = {}
        except (OSError, msgspec.MsgspecError) as error:
            LOG.warning("What has failed here before cannot be read: %s.", error)
            self._rows = {}

    def may_try(self, environment: str, owner: int, now: float) -> str:
        """Why this owner may not; empty: it may be tried."""
        row = self._rows.get(environment)
        if row is None or not rows.is_left_alone(row, owner, self.settings, now):
            return ""
        if owner in row.alone:
            return (
                f"your machines of environment '{environment}' do not come up on this host, where"
                f" others do, and are left alone until {_clock(row.alone[owner])}: {row.reason}"
            )
        return (
            f"environment '{environment}' has failed {_times(row.failures)} on this host"
            f" and is left alone until {_clock(row.until)}: {row.reason}"
        )

    def paused(self, now: float) -> dict[str, Row]:
        """Environments that are left alone, by everybody or those for whom they failed."""
        return self._those(rows.is_paused, now)

    def closing(self, now: float) -> dict[str, Row]:
        """Those of them for which no more jobs are to come here."""
        return self._those(rows.closes_bait, now)

    def to_try(self, now: float) -> list[str]:
        """Environments of which the agent has to make a machine itself, to find out whose affair
        their failures are."""
        return list(self._those(rows.is_to_be_tried, now))

    def _those(
        self, are: Callable[[Row, BatchSettings, float], bool], now: float
    ) -> dict[str, Row]:
        # Others may be told of something new meanwhile, in another thread.
        known = list(self._rows.items())
        return {name: row for name, row in known if are(row, self.settings, now)}

    def failed(
        self,
        environment: str,
        reason: str,
        owner: int,
        now: float,
        fault: Fault = Fault.UNCLEAR,
    ) -> None:
        """A machine did not come up, and it was not for want of room."""
        row = self._rows.get(environment, Row())
        row = rows.failed(row, reason, owner, self.settings, now, fault)
        if any(
            name != environment and now - self.settings.pause < up <= now
            for name, up in self._up.items()
        ):
            row = msgspec.structs.replace(row, others=True)
        self._rows[environment] = row
        if len(self._rows) > MOST_ENVIRONMENTS:
            del self._rows[min(self._rows, key=lambda name: self._rows[name].last)]
        if why := self.may_try(environment, owner, now):
            LOG.warning("For user %d: %s", owner, why)
            self._has_paused()
        self._write()

    def came_up(self, environment: str, owner: int, now: float) -> None:
        """A machine answered."""
        before = dict(self._rows)
        self._others_came_up(environment, now)
        if environment in self._rows:
            row = rows.came_up(self._rows.pop(environment), owner, self.settings, now)
            if row is not None:
                self._rows[environment] = row
        if self._rows != before:
            self._write()

    def forget(self) -> None:
        """Everything may be tried again."""
        if self._rows:
            LOG.info("What has failed here is forgotten: %s.", ", ".join(sorted(self._rows)))
        self._rows = {}
        self._write()
        self._has_paused()

    def trying(self, environment: str, now: float) -> None:
        """The agent makes a machine of it."""
        row = self._rows.get(environment, Row(last=now))
        self._rows[environment] = msgspec.structs.replace(row, tried=now)
        self._write()

    def tried(self, environment: str, failure: str, now: float) -> None:
        """The agent's own machine came up, unless there is a failure."""
        row = self._rows.get(environment)
        if row is None:
            return  # Forgotten since: it is tried with what is there now.
        if failure:
            self._rows[environment] = rows.confirmed(row, failure, self.settings, now)
            LOG.warning("Nor does the agent's own machine come up: %s", failure)
        else:
            self._others_came_up(environment, now)
            self._rows[environment] = rows.cleared(row, self.settings, now)
            LOG.warning("A machine of the agent's own comes up: '%s' is all right.", environment)
        self._has_paused()
        self._write()

    def _others_came_up(self, environment: str, now: float) -> None:
        self._up[environment] = now
        if len(self._up) > MOST_ENVIRONMENTS:
            del self._up[min(self._up, key=lambda name: self._up[name])]
        for name, row in self._rows.items():
            if name != environment and not row.others:
                self._rows[name] = msgspec.structs.replace(row, others=True)

    def _write(self) -> None:
        """Written whole or not at all. A disk that is full does not keep jobs from running."""
        unfinished = self._path.with_name(f".{self._path.name}")
        try:
            make_directory(self._path.parent)
            unfinished.write_bytes(msgspec.json.encode(self._rows))
            unfinished.rename(self._path)
        except OSError as error:
            LOG.warning("What has failed here cannot be written down: %s.", error.strerror)
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times in a row"


def _clock(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, local_zone()):%H:%M:%S}"


def make_directory(path: Path) -> None:
    """For the agent alone."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_mode & 0o077:
        os.chmod(path, 0o700)  # noqa: PTH101
