"""Every shipped property reads what another program, or the C library, says of this host too."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from encamp.agent.journal import Journal
from encamp.agent.properties.accelerators import devices
from encamp.agent.properties.finding import Plugins
from encamp.agent.properties.reader import Reader
from encamp.describe.property_files import read_properties, shipped_properties
from encamp.describe.sources import Level, Source
from encamp.home import Home
from encamp.images.records import RECORD, Link, Record, link_path
from encamp.machines import accelerator
from encamp.machines.account import process_user
from encamp.machines.process import confinement
from encamp.model.machine import Machine, State
from encamp.model.property import Reading, Value, ValueKind, fits
from encamp.model.size import MIB, Size
from tests.agent.properties.reading import defined, error_of, running, until, value_of

PERUGIA = """\
[ram_free]
command = ram
parameters = MemFree
return_type = int
ticks = 60
"""
"""The example of the system that this one follows, as it was printed."""


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


async def shipped(home: Home, name: str) -> Value:
    definition = next(found for found in shipped_properties() if found.name == name)
    reader = Reader([definition], Plugins(), changed=lambda _: None, home=home)
    reading = (await reader.read())[name]
    assert reading.error == ""
    assert fits(reading.value, definition.return_type)
    return reading.value


def near(one: Value, other: float, distance: float) -> bool:
    assert isinstance(one, (int, float))
    return abs(one - other) <= distance


async def test_every_shipped_property_has_a_value_of_its_type_here(home: Home) -> None:
    reader = Reader(shipped_properties(), Plugins(), changed=lambda _: None, home=home)
    readings = await reader.read()
    assert {name: reading.error for name, reading in readings.items() if reading.error} == {}
    for definition in shipped_properties():
        assert fits(readings[definition.name].value, definition.return_type), definition.name


async def test_perugias_example_gives_the_free_memory(home: Home) -> None:
    source = Source("properties.ini", Level.SITE, 0, "/")
    definitions = read_properties([(source, PERUGIA.encode())], Plugins().names)
    (definition,) = (found for found in definitions if found.name == "ram_free")
    assert (definition.ticks, definition.return_type) == (60.0, ValueKind.INT)
    reader = Reader([definition], Plugins(), changed=lambda _: None, home=home)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert near((await reader.read())["ram_free"].value, free, total / 10)


async def test_memory_is_what_free_says(home: Home) -> None:
    rows = said("free", "-b").splitlines()
    total, *_, available = (int(field) for field in rows[1].split()[1:])
    assert await shipped(home, "memory_total") == total
    assert total == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert near(await shipped(home, "memory_free"), available, total / 10)
    assert near(await shipped(home, "memory_used"), total - available, total / 10)


async def test_memory_line_that_is_not_there_is_named_with_the_nearest(home: Home) -> None:
    assert "Did you mean 'MemFree'?" in await error_of(home, defined("ram", "MemFre"))
    assert "takes one of total, free, used" in await error_of(home, defined("memory", "all"))


async def test_processors_are_those_that_nproc_counts(home: Home) -> None:
    assert await shipped(home, "cpus") == int(said("nproc"))


async def test_the_speed_of_processors_is_their_fastest(home: Home) -> None:
    others = psutil.cpu_freq()
    assert near(await shipped(home, "cpu_speed"), others.max or others.current, 500)


@pytest.fixture
def busy_processor() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        yield
        process.kill()


async def test_a_busy_processor_is_seen(home: Home, busy_processor: None) -> None:
    used = await shipped(home, "cpu_used")
    assert isinstance(used, float)
    assert 0.2 / (psutil.cpu_count() or 1) < used <= 1.0


async def test_processors_use_is_counted_from_one_reading_to_the_next(home: Home) -> None:
    told: list[Reading] = []
    definition = defined("cpu", "used", kind=ValueKind.FLOAT, ticks=0.6, tolerance=-1.0)
    reader = Reader(
        [definition], Plugins(), changed=lambda new: told.extend(new.values()), home=home
    )
    async with running(reader):
        await until(lambda: len(told) >= 2)
    assert all(isinstance(one.value, float) and 0.0 <= one.value <= 1.0 for one in told)


@pytest.mark.parametrize(("name", "place"), [("load1", 0), ("load5", 1), ("load15", 2)])
async def test_load_is_what_the_kernel_says(home: Home, name: str, place: int) -> None:
    # The kernel changes it every five seconds: what counts is a reading between two equal looks.
    looks: list[float] = []
    for _ in range(20):
        before = float(Path("/proc/loadavg").read_text().split()[place])
        value = await shipped(home, name)
        assert isinstance(value, float)
        looks = [before, value, float(Path("/proc/loadavg").read_text().split()[place])]
        if len(set(looks)) == 1:
            return
    raise AssertionError(f"{name}: {looks}")


async def test_disk_is_what_df_says_of_the_agents_home(home: Home) -> None:
    row = said("df", "-B1", "--output=size,avail", str(home.root)).splitlines()[1]
    size, available = (int(field) for field in row.split())
    assert await shipped(home, "disk_total") == size
    assert near(await shipped(home, "disk_free"), available, size / 10)


async def test_disk_of_another_path_can_be_read(home: Home) -> None:
    used = shutil.disk_usage("/dev/shm")
    assert await value_of(home, "disk", "total", "/dev/shm") == used.total
    error = await error_of(home, defined("disk", "total", "/nowhere"))
    assert error == "/nowhere: No such file or directory"


async def test_disk_of_a_home_that_is_not_made_yet_is_its_parents(tmp_path: Path) -> None:
    assert await value_of(Home(tmp_path / "a/b"), "disk", "total") == shutil.disk_usage("/").total


async def test_network_counters_are_the_kernels(home: Home) -> None:
    name = next(iter(psutil.net_io_counters(pernic=True)))
    before = psutil.net_io_counters(pernic=True)[name].bytes_recv
    value = await value_of(home, "network", "received_total", name)
    after = psutil.net_io_counters(pernic=True)[name].bytes_recv
    assert isinstance(value, int)
    assert before <= value <= after
    interfaces = await value_of(home, "network", "interfaces", kind=ValueKind.LIST)
    assert interfaces == sorted(psutil.net_io_counters(pernic=True))


async def test_network_traffic_is_seen(home: Home) -> None:
    done = threading.Event()

    def send() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            while not done.wait(0.005):
                one.sendto(bytes(1000), ("127.0.0.1", 9))

    sender = threading.Thread(target=send)
    sender.start()
    try:
        value = await value_of(home, "network", "received", "lo", kind=ValueKind.FLOAT)
        assert isinstance(value, float)
        assert value > 1000
    finally:
        done.set()
        sender.join()


async def test_interface_that_is_not_there_is_refused_with_those_that_are(home: Home) -> None:
    error = await error_of(home, defined("network", "received", "eth77", kind=ValueKind.FLOAT))
    assert "no interface 'eth77'" in error
    assert "lo" in error


async def test_kernel_is_what_uname_says(home: Home) -> None:
    assert await shipped(home, "kernel") == said("uname", "-r")
    assert await value_of(home, "kernel", "hostname", kind=ValueKind.STR) == said("uname", "-n")
    assert await value_of(home, "kernel", "version", kind=ValueKind.STR) == said("uname", "-v")
    assert await shipped(home, "confinement") == confinement()


async def test_boot_time_and_uptime_are_the_kernels(home: Home) -> None:
    booted = await value_of(home, "kernel", "boot_time", kind=ValueKind.FLOAT)
    assert near(booted, psutil.boot_time(), 5)
    before = float(Path("/proc/uptime").read_text().split()[0])
    assert near(await shipped(home, "uptime"), before, 60)


def machine(number: int, state: State) -> Machine:
    return Machine(
        id=f"m{number}",
        name=f"machine{number}",
        owner=0,
        host="here",
        environment="mini",
        image="0" * 64,
        size=Size(1, 64 * MIB),
        state=state,
        reason="a test",
        created=float(number),
        changed=0.0,
    )


async def test_machines_of_the_journal_are_counted_by_state(home: Home) -> None:
    journal = Journal(home)
    assert await shipped(home, "machines") == 0
    for number, state in enumerate((State.RUNNING, State.RUNNING, State.STOPPED)):
        journal.add(machine(number, state), named=False).release()
    (home.machines / ".removed").mkdir()
    (home.machines / "being-made").mkdir()
    assert await shipped(home, "machines") == 3
    assert await shipped(home, "machines_running") == 2
    counted = await value_of(home, "machines", kind=ValueKind.DICT)
    assert counted == {**dict.fromkeys((state.value for state in State), 0), "running": 2} | {
        "stopped": 1
    }
    assert "none is 'sleeping'" in await error_of(home, defined("machines", "sleeping"))


async def test_images_of_the_home_are_named(home: Home) -> None:
    for digit, names in (("a", ("debian12", "debian12:1")), ("b", ("mini",)), ("c", ())):
        digest = digit * 64
        (home.images / digest).mkdir()
        record = Record(digest, "any", "6.1", 0.0, "", ())
        (home.images / digest / RECORD).write_bytes(msgspec.json.encode(record))
        for name in names:
            link_path(home, name).parent.mkdir(exist_ok=True)
            link_path(home, name).write_bytes(msgspec.json.encode(Link(digest, "")))
    names_of_all = await shipped(home, "images")
    assert isinstance(names_of_all, list)
    assert {"debian12", "debian12:1", "mini"} <= set(map(str, names_of_all))
    digests = await value_of(home, "images", "digests", kind=ValueKind.LIST)
    assert isinstance(digests, list)
    assert {digit * 64 for digit in "abc"} <= set(map(str, digests))


def pci_device(root: Path, address: str, kind: str, vendor: str, device: str, driver: str) -> Path:
    """A device as the kernel shows it."""
    path = root / address
    path.mkdir(parents=True)
    for name, text in (("class", kind), ("vendor", vendor), ("device", device)):
        (path / name).write_text(f"{text}\n")
    if driver:
        (path / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
    return path


def test_accelerators_are_told_from_other_devices(tmp_path: Path) -> None:
    pci_device(tmp_path, "0000:00:01.0", "0x020000", "0x8086", "0x100e", "e1000")
    pci_device(tmp_path, "0000:00:02.0", "0x030000", "0x1a03", "0x2000", "ast")
    pci_device(tmp_path, "0000:01:00.0", "0x030200", "0x10de", "0x20b0", "")
    pci_device(tmp_path, "0000:02:00.0", "0x120000", "0x1da3", "0x1020", "habanalabs")
    first, second = devices(tmp_path)
    assert (first["kind"], first["vendor"], first["id"]) == ("gpu", "NVIDIA", "10de:20b0")
    assert (first["driver"], first["usable"]) == ("", False)
    assert (second["kind"], second["address"]) == ("accelerator", "0000:02:00.0")


async def test_host_without_accelerators_says_so(home: Home) -> None:
    found = await shipped(home, "accelerators")
    assert isinstance(found, list)
    usable = [entry for entry in found if isinstance(entry, dict) and entry["usable"]]
    assert await shipped(home, "gpus") == len([e for e in usable if e["kind"] == "gpu"])
    if not Path("/sys/bus/pci/devices").exists():
        assert found == []


async def test_kvm_is_untried_until_a_guest_has_shown_it(home: Home) -> None:
    if not Path("/dev/kvm").exists():
        expected = "absent"
    elif accelerator.denied(process_user(os.geteuid())):
        expected = "fails"
    else:
        expected = "untried"
    assert await shipped(home, "kvm") == expected
    accelerator.distrust(home, "no guest answers under KVM")
    assert await shipped(home, "kvm") == ("absent" if expected == "absent" else "fails")
