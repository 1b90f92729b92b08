"""Which batch systems are known, and that other packages can add theirs."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from importlib.metadata import EntryPoint

import pytest

from encamp.batch import adapters
from encamp.batch.pbs.adapter import Pbs
from encamp.batch.slurm.adapter import Slurm
from encamp.batch.system import BatchSystem
from encamp.model.batch import BatchSettings
from encamp.model.errors import Code, EncampError


class Other(Slurm):
    name = "other"


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    """What is known is found out once in a process."""
    adapters.known.cache_clear()
    yield
    adapters.known.cache_clear()


@pytest.mark.parametrize("system", list(adapters.OURS))
def test_each_of_ours_opens_by_its_name(system: str) -> None:
    assert adapters.open_batch_system(BatchSettings(system=system)).name == system


@pytest.mark.parametrize("system", list(adapters.OURS))
def test_each_of_ours_ends_what_it_begins_to_bring_back(system: str) -> None:
    kind = type(adapters.open_batch_system(BatchSettings(system=system)))
    assert kind.bring_back is not BatchSystem.bring_back
    assert kind.finish is not BatchSystem.finish


def test_an_unknown_one_is_told_with_the_nearest() -> None:
    with pytest.raises(EncampError) as caught:
        adapters.open_batch_system(BatchSettings(system="gridengin"))
    assert caught.value.code is Code.CONFIGURATION
    assert "Did you mean 'gridengine'?" in caught.value.sentence


def test_another_package_adds_one_but_replaces_none(monkeypatch: pytest.MonkeyPatch) -> None:
    here = f"{__name__}:Other"
    found = [EntryPoint("other", here, adapters.GROUP), EntryPoint("pbs", here, adapters.GROUP)]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found)
    assert adapters.open_batch_system(BatchSettings(system="other")).name == "other"
    assert isinstance(adapters.open_batch_system(BatchSettings(system="pbs")), Pbs)
