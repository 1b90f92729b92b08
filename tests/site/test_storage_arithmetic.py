"""Machines of one environment share one copy of it: on the disk, on its way, and in memory."""

from __future__ import annotations

import pytest

from bench.storage import promises_not_counted, read_by_all
from encamp.agent.keeper import Keeper
from encamp.cli.options import caller
from encamp.home import Home
from encamp.model.job import MachineRequest

pytestmark = pytest.mark.site


async def test_image_is_read_from_disk_once_however_many_machines_read_it(
    site_home: Home, nothing_left: None
) -> None:
    request = MachineRequest(environment="mini", owner=caller())
    with promises_not_counted():
        reading = await read_by_all(Keeper.open(site_home), request, 4)
        # A host that is short of memory forgets, and reads again, what is not of the image, too.
        if reading.fetched > 1.1 * reading.image:
            reading = await read_by_all(Keeper.open(site_home), request, 4)
    assert reading.forgotten == 0, "the host was to read the image anew"
    assert reading.cached == reading.image, "all of it was read, and is there once"
    assert reading.fetched <= 1.1 * reading.image
