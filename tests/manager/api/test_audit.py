"""Who changed what, through which door: written down before it is done."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from encamp.door.questions import (
    AskAudit,
    AskHosts,
    IssueCommand,
    Question,
    ReloadTriggers,
    RevokeToken,
)
from encamp.manager.auditing import CHANGES
from encamp.manager.scopes import NEEDED
from encamp.model.audit import AuditEntry, AuditOutcome
from encamp.model.errors import Code, EncampError
from encamp.model.token import Scope
from tests.manager.api.calling import BODIES, Calling
from tests.manager.playing import ALICE, ROOT


def written(path: Path) -> list[AuditEntry]:
    """What is on the disk at this moment."""
    with sqlite3.connect(path / "home" / "manager.sqlite") as store:
        rows = store.execute("SELECT document FROM audit ORDER BY number").fetchall()
    return [msgspec.json.decode(document, type=AuditEntry) for (document,) in rows]


def test_whatever_needs_more_than_reading_is_written_down() -> None:
    changing = {kind for kind, scope in NEEDED.items() if scope is not Scope.READ}
    looking = {"AskProperties", "AskTokens", "AskAudit", "AskMembers"}
    assert {kind.__name__ for kind in changing} - looking == {kind.__name__ for kind in CHANGES}
    assert set(CHANGES) < set(get_args(Question))


async def test_entry_is_there_before_the_thing_is_done(
    calls: Calling, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[AuditEntry] = []

    def look() -> None:
        seen.extend(written(tmp_path))

    monkeypatch.setattr(calls.manager, "load_triggers", look)
    await calls.bench.answers(ReloadTriggers(), ROOT)
    (entry,) = seen
    assert (entry.who, entry.through, entry.action) == ("root", "door", "triggers.load")
    assert entry.outcome is AuditOutcome.BEGUN
    (told,) = await calls.bench.answers(AskAudit(), ROOT)
    assert told.outcome is AuditOutcome.DONE
    assert told.number == entry.number


async def test_what_cannot_be_written_down_is_not_done(
    calls: Calling, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(work: object) -> None:
        raise EncampError(Code.DISK_FULL, "The disk is full.")

    done: list[None] = []
    caller = await calls.caller("root", Scope.ADMINISTER)
    monkeypatch.setattr(calls.manager, "load_triggers", lambda: done.append(None))
    monkeypatch.setattr(calls.manager.store, "write", full)
    with pytest.raises(EncampError, match="disk is full"):
        await calls.bench.answers(ReloadTriggers(), ROOT)
    assert (await caller.post("/v1/triggers/reload")).status_code == 507
    assert done == []


async def test_both_doors_and_all_outcomes_are_told(calls: Calling) -> None:
    async with calls.bench.agent().joined():
        record = await calls.issued("alice")
        reading = await calls.caller("carol", Scope.READ)
        await reading.post("/v1/commands", json=BODIES["issue_command"])
        with pytest.raises(EncampError):
            await calls.bench.answers(IssueCommand(hosts=("none",), name="test.do"), ALICE)
        with pytest.raises(EncampError):
            await calls.bench.answers(RevokeToken(id="none"), ALICE)
        await calls.bench.answers(AskHosts(), ALICE)
    found: list[Any] = await calls.bench.answers(AskAudit(), ROOT)
    told = [(entry.who, entry.through, entry.action, entry.outcome.value) for entry in found]
    assert told == [
        ("alice", "http", "command.issue", "done"),
        ("carol", "http", "command.issue", "refused"),
        ("alice", "door", "command.issue", "failed"),
        ("alice", "door", "token.revoke", "failed"),
    ]
    first = found[0]
    assert first.made == (record.id,)
    assert first.about == "test.do on node1"
    assert first.address == "127.0.0.1"
    assert len(first.token) == 12
    assert "for 'read'" in found[1].sentence
    assert [entry.number for entry in found] == [1, 2, 3, 4]


async def test_arguments_which_may_be_secrets_are_not_written_down(
    calls: Calling, tmp_path: Path
) -> None:
    async with calls.bench.agent().joined():
        caller = await calls.caller()
        body = {**BODIES["issue_command"], "arguments": {"password": "swordfish"}}
        await caller.post("/v1/commands", json=body)
    await calls.bench.answers(AskAudit(), ROOT)
    assert "swordfish" not in str(written(tmp_path))


async def test_log_is_for_administrators_and_goes_on_after_a_restart(calls: Calling) -> None:
    with pytest.raises(EncampError) as refused:
        await calls.bench.answers(AskAudit(), ALICE)
    assert refused.value.code is Code.NOT_PERMITTED
    for _ in range(3):
        await calls.bench.answers(ReloadTriggers(), ROOT)
    await calls.bench.stop()
    await calls.bench.start()
    await calls.bench.answers(ReloadTriggers(), ROOT)
    caller = await calls.caller("root", Scope.ADMINISTER)
    items = (await caller.get("/v1/audit?since=1&last=2&who=root")).json()["items"]
    assert [entry["number"] for entry in items] == [3, 4]
    assert (await caller.get("/v1/audit?who=bob")).json()["items"] == []
