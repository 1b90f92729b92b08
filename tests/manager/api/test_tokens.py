"""Who is let in over HTTP, how far, and for how long."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from encamp.door.questions import AskTokens, CreateToken, Question, RevokeToken
from encamp.manager.scopes import NEEDED as NEEDED_BY_QUESTIONS
from encamp.manager.tokens import Tokens
from encamp.model.errors import Code, EncampError
from encamp.model.token import NewToken, Scope, Token
from tests.manager.api.calling import ASKING, BODIES, NEEDED, OPEN, Calling, operations
from tests.manager.playing import ALICE, ROOT


def test_every_question_says_how_far_a_token_must_go() -> None:
    assert set(NEEDED_BY_QUESTIONS) == set(get_args(Question))


def test_every_operation_is_known_here() -> None:
    assert set(operations()) == {*NEEDED, *ASKING, *OPEN}


async def test_each_operation_takes_tokens_that_go_far_enough_and_no_others(
    calls: Calling,
) -> None:
    async with calls.bench.agent().joined():
        for scope in (Scope.READ, Scope.USE):
            caller = await calls.caller("alice", scope)
            for name, needed in NEEDED.items():
                method, path = operations()[name]
                async with caller.stream(
                    method, path.replace("{name}", "none"), json=BODIES.get(name)
                ) as answer:
                    refused = answer.status_code == 403
                    assert refused is not scope.includes(needed), (name, scope, answer.status_code)
                    assert answer.status_code < 500, name


async def test_without_a_valid_token_nothing_is_told_but_health(calls: Calling) -> None:
    valid = await calls.secret()
    name = valid.split("_")[1]
    wrong = [
        None,
        "Bearer",
        f"Basic {valid}",
        f"Bearer {valid[:-1]}",
        f"Bearer {valid}x",
        f"Bearer encamp_{name}_{'A' * 43}",
        f"Bearer encamp_{'0' * 12}_{'A' * 43}",
    ]
    for header in wrong:
        caller = await calls.with_header(header)
        # One wrong one is enough for all, and all wrong ones for one.
        named = list(operations().items())
        for operation, (method, path) in named if header is None else named[:1]:
            answer = await caller.request(method, path.replace("{name}", "none"))
            if operation in OPEN:
                assert answer.status_code == 200
            else:
                assert answer.status_code == 401, (header, operation)
                assert answer.headers["www-authenticate"].startswith("Bearer")
                assert answer.json()["code"] == "not_permitted"


async def test_revoked_token_opens_nothing_at_once(calls: Calling) -> None:
    caller = await calls.caller("bob", Scope.READ)
    assert (await caller.get("/v1/status")).status_code == 200
    (token,) = await calls.bench.answers(AskTokens(), ROOT)
    root = await calls.caller("root", Scope.ADMINISTER)
    assert (await root.delete(f"/v1/tokens/{token.id}")).json()["owner"] == "bob"
    assert (await caller.get("/v1/status")).status_code == 401
    assert (await root.delete(f"/v1/tokens/{token.id}")).status_code == 404


async def test_token_that_has_expired_opens_nothing(
    calls: Calling, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = await calls.caller()
    assert (await caller.get("/v1/status")).status_code == 200
    later = time.time() + 3601
    monkeypatch.setattr("encamp.manager.tokens.time.time", lambda: later)
    assert (await caller.get("/v1/status")).status_code == 401
    assert await calls.bench.answers(AskTokens(), ROOT) == []


async def test_tokens_outlive_the_manager_and_their_secrets_are_nowhere(
    calls: Calling, tmp_path: Path
) -> None:
    secret = await calls.secret("alice", Scope.READ)
    revoked = await calls.secret("alice", Scope.READ)
    await calls.bench.answers(RevokeToken(id=revoked.split("_")[1]), ALICE)
    await calls.bench.stop()
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert secret.split("_")[1].encode() in kept
    assert secret.split("_", 2)[2].encode() not in kept
    await calls.bench.start()
    assert (await (await calls.with_header(f"Bearer {secret}")).get("/v1/hosts")).is_success
    again = await (await calls.with_header(f"Bearer {revoked}")).get("/v1/hosts")
    assert again.status_code == 401


async def test_users_make_tokens_for_themselves_that_go_as_far_as_they_do(calls: Calling) -> None:
    (made,) = await calls.bench.answers(CreateToken(scope=Scope.USE, lifetime=60), ALICE)
    assert isinstance(made, NewToken)
    assert (made.token.owner, made.token.creator) == ("alice", "alice")
    for wanted in (
        CreateToken(scope=Scope.ADMINISTER, lifetime=60),
        CreateToken(owner="bob", lifetime=60),
    ):
        with pytest.raises(EncampError) as refused:
            await calls.bench.answers(wanted, ALICE)
        assert refused.value.code is Code.NOT_PERMITTED
    wanted = CreateToken(owner="bob", scope=Scope.ADMINISTER, lifetime=60)
    (others,) = await calls.bench.answers(wanted, ROOT)
    assert [token.id for token in await calls.bench.answers(AskTokens(), ALICE)] == [made.token.id]
    with pytest.raises(EncampError, match="no token"):
        await calls.bench.answers(RevokeToken(id=others.token.id), ALICE)
    assert len(await calls.bench.answers(AskTokens(), ROOT)) == 2


async def test_account_of_roots_machines_gets_no_token_and_submits_nothing(calls: Calling) -> None:
    with pytest.raises(EncampError, match="root's machines") as refused:
        await calls.bench.answers(CreateToken(owner="encamp", lifetime=60), ROOT)
    assert refused.value.code is Code.NOT_PERMITTED
    # One that was made when there was no such rule.
    made = await calls.manager.tokens.create("encamp", Scope.USE, "", 60, "root")
    caller = await calls.with_header(f"Bearer {made.secret}")
    answer = await caller.post("/v1/requests", json=BODIES["submit"])
    assert answer.status_code == 403
    assert "root's machines" in answer.text


async def test_nonsense_is_no_token(calls: Calling) -> None:
    nonsense: list[dict[str, Any]] = [
        {"owner": "a b"},
        {"owner": "x" * 100},
        {"lifetime": 0.5},
        {"lifetime": 1e12},
        {"lifetime": float("nan")},
        {"label": "two\nlines"},
        {"label": "x" * 1000},
    ]
    for wrong in nonsense:
        given: dict[str, Any] = {"owner": "bob", "lifetime": 60.0, **wrong}
        with pytest.raises(EncampError) as refused:
            await calls.bench.answers(CreateToken(**given), ROOT)
        assert refused.value.code is Code.USAGE, wrong


async def test_nobody_has_tokens_without_end(calls: Calling) -> None:
    tokens: Tokens = calls.manager.tokens
    for _ in range(100):
        await tokens.create("alice", Scope.READ, "", 60, "alice")
    with pytest.raises(EncampError, match="100 tokens already"):
        await tokens.create("alice", Scope.READ, "", 60, "alice")
    await tokens.create("bob", Scope.READ, "", 60, "alice")


async def test_administrators_use_over_http_is_what_the_scope_says(calls: Calling) -> None:
    """A token of root's that is for use makes nobody an administrator."""
    async with calls.bench.agent().joined():
        record = await calls.issued("alice")
        plain = await calls.caller("root", Scope.USE)
        assert (await plain.get(f"/v1/commands/{record.id}")).status_code == 404
        refused = await plain.post("/v1/commands", json=BODIES["issue_command"])
        assert refused.status_code == 403
        whole = await calls.caller("root", Scope.ADMINISTER)
        found = (await whole.get(f"/v1/commands/{record.id}")).json()
        assert found["issuer"] == "alice"


def test_token_is_told_without_its_secret() -> None:
    assert "secret" not in msgspec.json.schema(Token)["$defs"]["Token"]["properties"]
