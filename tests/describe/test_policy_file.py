"""How a site is shared: what can be written, and what is told about mistakes in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from encamp.describe.policy_file import LIMIT, PLACEMENT, load_policy
from encamp.model.errors import Code, EncampError
from encamp.model.policy import Limit, Per, Policy
from encamp.model.size import MIB


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    return str(path)


def test_everything_can_be_set(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
rank: [spread, "host.memory_free - 10 * host.load1"]
overcommit: 1.5
memory_reserve: 1G
disk_reserve: 0
shares: { alice: 2, "@staff": 0.5 }
half_life: 2d
aging: 2h
limits:
  - name: students
    owners: ["@students", "guest*"]
    environments: debian*
    classes: [large]
    per: all
    machines: 4
    cpus: 8
    memory: 16G
pause: 1m
longest_pause: 10m
claim: 10s
patience: 1h
reservation: 1m
queued: 10
""",
    )
    assert load_policy(path) == Policy(
        rank=("spread", "host.memory_free - 10 * host.load1"),
        overcommit=1.5,
        memory_reserve=1024 * MIB,
        disk_reserve=0,
        shares={"alice": 2.0, "@staff": 0.5},
        half_life=172_800.0,
        aging=7200.0,
        limits=(
            Limit(
                name="students",
                owners=("@students", "guest*"),
                environments=("debian*",),
                classes=("large",),
                per=Per.ALL,
                machines=4,
                cpus=8,
                memory=16384 * MIB,
            ),
        ),
        pause=60.0,
        longest_pause=600.0,
        claim=10.0,
        patience=3600.0,
        reservation=60.0,
        queued=10,
    )
    assert set(PLACEMENT.attributes) == set(Policy.__struct_fields__)
    assert set(LIMIT.attributes) == set(Limit.__struct_fields__)


def test_the_defaults_in_the_manual_are_those_in_effect(tmp_path: Path) -> None:
    lines = [
        f"{name}: {attribute.default}"
        for name, attribute in PLACEMENT.attributes.items()
        if attribute.default is not None
    ]
    assert load_policy(written(tmp_path, "\n".join(lines))) == Policy()
    assert load_policy(written(tmp_path, "")) == Policy()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("limits: [{name: x}]", ":1:1: limit 'x' bounds nothing"),
        ("limits: [{name: x, cpus: 1}, {name: x, cpus: 2}]", "more than one limit 'x'"),
        ("limits: [{cpus: 1}]", "'name' is missing"),
        ("pause: 2h", "must not be shorter than 'pause'"),
        ("overcommit: 0", "from 0.01 to 100"),
        ("overcommit: lots", "a number such as 1.5 is expected"),
        ("shares: {'a b': 1}", "'a b' is no name for an owner"),
        ("agign: 1h", "did you mean 'aging'?"),
    ],
)
def test_mistakes_are_told_with_their_places(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(EncampError) as caught:
        load_policy(written(tmp_path, text))
    assert caught.value.code is Code.CONFIGURATION
    assert said in caught.value.detail


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EncampError, match="There is no file"):
        load_policy(str(tmp_path / "nothing"))
