"""What came to this host from its batch system, one record for each run of a job: whose it is, in
which environment and machine, since when, and how it went.

    under-way/KEY   a job that is here, written before anything is done for it
    over/NUMBER     those that are over, a line each, in files of a thousand

A record that is over is added to a file before it is taken from the others, and what was cut short
is no record. So after any crash each is there once.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from encamp.agent.bait.failing import make_directory
from encamp.home import Home
from encamp.model.batch import SCRIPTS, BatchJob
from encamp.model.batch_record import UNDER_WAY, BatchRecord, Outcome

KEPT = 7 * 86400.0
"""Seconds for which records are kept,"""
MOST = 10_000
"""and how many of them at least, if there are so many: one file more is there at times."""
IN_ONE_FILE = 1000
LONGEST_REASON = 2000
KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

LOG = logging.getLogger(__name__)
RECORDS = msgspec.json.Decoder(BatchRecord)


class Records:
    """Writes them. For one agent at a time; its threads may share it."""

    def __init__(self, home: Home, host: str, now: Callable[[], float] = time.time) -> None:
        self._home = home
        self._under_way = under_way_of(home)
        self._over = over_of(home)
        self._host = host
        self._now = now
        self._here: dict[str, BatchRecord] = {}
        self._lines = 0
        """In the last file."""
        self._lock = threading.RLock()

    def load(self) -> None:
        """What former agents have written down."""
        with self._lock:
            for directory in (*reversed(self._over.parents[:2]), self._under_way, self._over):
                make_directory(directory)
            files = _files(self._over)
            last = files[-1].read_bytes().splitlines() if files else []
            self._lines = len(last)
            over = {record.key for record in _decoded(last)}
            self._here = {}
            for path in self._under_way.iterdir():
                record = _read(path)
                if record is None or record.key != path.name or record.key in over:
                    with suppress(OSError):
                        path.unlink()
                else:
                    self._here[record.key] = record
            self._forget()

    # ── what happens ─────────────────────────────────────────────────────────────────────────────

    def came(
        self, key: str, job: BatchJob, *, environment: str, user: str, step: str = ""
    ) -> BatchRecord:
        """A job is here, and is about to be run. Asked for again, it is the same one."""
        if KEY.fullmatch(key) is None:
            raise ValueError(f"{key!r:.200} cannot be a record's key")
        with self._lock:
            if key in self._here:
                return self._here[key]
            record = BatchRecord(
                key=key,
                system=job.system,
                id=job.id,
                uid=job.uid,
                user=user,
                environment=environment,
                host=self._host,
                name=job.name[:200],
                queue=job.queue[:200],
                account=job.account[:200],
                restarts=job.restarts,
                returns=job.returns,
                step=step,
                came=self._now(),
            )
            self._write(record)
            return record

    def change(self, key: str, **fields: Any) -> BatchRecord | None:
        """There is more to say of it: `machine`, `tries`, `begun`, `reason` ... None: it is not
        here, or no more."""
        with self._lock:
            record = self._here.get(key)
            if record is None:
                return None
            if fields.get("begun") and "outcome" not in fields:
                fields["outcome"] = Outcome.RUNNING
            changed = _changed(record, fields)
            if changed != record:
                self._write(changed)
            return changed

    def over(self, key: str, outcome: Outcome, **fields: Any) -> BatchRecord | None:
        """It is over here: `exit_code`, `signal`, `reason`, `cpu_seconds`, `peak_memory`."""
        with self._lock:
            record = self._here.get(key)
            if record is None:
                return None
            fields = {"ended": self._now(), "reason": "", **fields, "outcome": outcome}
            record = _changed(record, fields)
            try:
                self._add(record)
            except OSError as error:
                # It stays where it is, as it ended: it is told, and found again.
                LOG.warning("Record %s cannot be written: %s.", key, error.strerror)
                self._write(record)
                return record
            del self._here[key]
            with suppress(OSError):
                (self._under_way / key).unlink(missing_ok=True)
            return record

    def run_of(self, job: BatchJob, since: float) -> BatchRecord | None:
        """The run of the job that began then, if it is over here. Not every batch system tells how
        often it was begun before."""
        for record in found(self._home, id=f"{job.system}:{job.id}", last=10, steps=False):
            same = record.id == job.id and record.restarts == job.restarts
            if same and record.outcome not in UNDER_WAY and record.came >= since:
                return record
        return None

    def running(self) -> list[BatchRecord]:
        """Those that are here, the first first."""
        with self._lock:
            here = [record for record in self._here.values() if record.outcome in UNDER_WAY]
        return sorted(here, key=lambda record: (record.came, record.key))

    # ── files ────────────────────────────────────────────────────────────────────────────────────

    def _write(self, record: BatchRecord) -> None:
        """A disk that is full does not keep jobs from running: they are remembered all the same."""
        self._here[record.key] = record
        unfinished = self._under_way / f".{record.key}"
        try:
            unfinished.write_bytes(msgspec.json.encode(record))
            unfinished.rename(self._under_way / record.key)
        except OSError as error:
            LOG.warning("Record %s cannot be written: %s.", record.key, error.strerror)
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)

    def _add(self, record: BatchRecord) -> None:
        files = _files(self._over)
        if not files or self._lines >= IN_ONE_FILE:
            number = int(files[-1].name) + 1 if files else 1
            path = self._over / f"{number:08}"
            self._lines = 0
        else:
            path = files[-1]
        # Begun anew in any case: the line before may have been cut short.
        line = b"\n" + msgspec.json.encode(record)
        with path.open("ab") as file:
            file.write(line)
        self._lines += 1
        if self._lines == 1:
            self._forget()

    def _forget(self) -> None:
        """Files that are too old, or too many."""
        files = _files(self._over)
        oldest = self._now() - KEPT
        for place, path in enumerate(files):
            too_many = len(files) - place > MOST // IN_ONE_FILE + 1
            with suppress(OSError):
                if too_many or path.stat().st_mtime < oldest:
                    path.unlink()


def _changed(record: BatchRecord, fields: dict[str, Any]) -> BatchRecord:
    if isinstance(fields.get("reason"), str):
        fields["reason"] = fields["reason"][:LONGEST_REASON]
    return msgspec.structs.replace(record, **fields)


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


def under_way_of(home: Home) -> Path:
    return home.root / "batch" / "jobs" / "under-way"


def over_of(home: Home) -> Path:
    return home.root / "batch" / "jobs" / "over"


def count_running(home: Home) -> int:
    """How many jobs are here."""
    try:
        return sum(not name.startswith(".") for name in os.listdir(under_way_of(home)))
    except FileNotFoundError:
        return 0


def found(
    home: Home,
    *,
    uid: int | None = None,
    user: str = "",
    id: str = "",
    last: int = 100,
    under_way: bool = False,
    steps: bool = True,
) -> list[BatchRecord]:
    """Records, the latest first. Only of one owner, by number or name; only of one job, which is
    called `17` or `slurm:17`, with or without its tasks; with what its steps did, or without."""
    oldest = time.time() - KEPT

    def fits(record: BatchRecord) -> bool:
        return (
            uid in (None, record.uid)
            and user in ("", record.user)
            and (not id or is_called(record, id))
            and (steps or record.step in SCRIPTS)
        )

    here: dict[str, BatchRecord] = {}
    with suppress(FileNotFoundError):
        for name in os.listdir(under_way_of(home)):
            record = None if name.startswith(".") else _read(under_way_of(home) / name)
            if record is not None and fits(record):
                here[record.key] = record
    if under_way:
        chosen = [record for record in here.values() if record.outcome in UNDER_WAY]
    else:
        chosen = []
        for record in _over_latest_first(home):
            if len(chosen) >= last:
                break
            if fits(record) and record.ended >= oldest:
                here.pop(record.key, None)
                chosen.append(record)
        chosen += here.values()
    return sorted(chosen, key=lambda record: (-record.came, record.key))[:last]


def is_called(record: BatchRecord, name: str) -> bool:
    """Is this the job, or a task of the array, that somebody calls so?"""
    system, _, id = name.rpartition(":")
    if system and system != record.system:
        return False
    return record.id == id or re.split(r"[._]", record.id)[0] == id


def _over_latest_first(home: Home) -> Iterator[BatchRecord]:
    for path in reversed(_files(over_of(home))):
        try:
            lines = path.read_bytes().splitlines()
        except OSError:
            continue  # It was too old.
        yield from _decoded(reversed(lines))


def _decoded(lines: Any) -> Iterator[BatchRecord]:
    for line in lines:
        with suppress(msgspec.MsgspecError):
            yield RECORDS.decode(line)


def _files(directory: Path) -> list[Path]:
    try:
        return sorted(directory / name for name in os.listdir(directory) if name.isdecimal())
    except FileNotFoundError:
        return []


def _read(path: Path) -> BatchRecord | None:
    with suppress(OSError, msgspec.MsgspecError):
        return RECORDS.decode(path.read_bytes())
    return None
