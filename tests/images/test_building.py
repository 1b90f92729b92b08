"""Building `mini` for real: once, reproducibly, and leaving nothing behind."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from encamp import programs
from encamp.describe.shipped import DEBIAN12, MINI
from encamp.home import Home
from encamp.images import failures
from encamp.images.kernel import cached
from encamp.images.store import ImageStore
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.model.recipe import EPOCH, Kind
from encamp.model.size import MIB
from encamp.progress import Silent
from encamp.workplace import clear_cache, lock_of, workplace
from tests.builds import Told, stock
from tests.images.conftest import left_over

pytestmark = pytest.mark.site
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def build(home: Home, progress: Told | None = None) -> Image:
    return ImageStore(home, shared=None).ensure(MINI, progress)


def listing(image: Image, *paths: str) -> list[str]:
    said = programs.run(["unsquashfs", "-lln", image.root, *paths], purpose="listing an image")
    return said.splitlines()


def test_mini_is_busybox_and_little_else(built: Home) -> None:
    image = build(built)
    lines = listing(image)
    assert lines[0].startswith("drwxr-xr-x 0/0")
    assert all(" 0/0 " in line for line in lines)
    names = {line.split(" squashfs-root", 1)[1].partition(" -> ")[0] for line in lines}
    assert {"/bin/sh", "/bin/busybox", "/usr/bin/env", "/sbin/ip", "/proc", "/tmp"} <= names
    assert "/linuxrc" not in names
    assert image.root.stat().st_size < 1_500_000
    release = programs.run(
        ["unsquashfs", "-cat", image.root, "etc/os-release", "etc/passwd"], purpose="reading"
    )
    assert "Encamp mini" in release
    assert "nobody:x:65534" in release


def test_nothing_is_left_beside_the_image_and_what_was_fetched(built: Home) -> None:
    assert left_over(built) == []
    assert {path.name for path in build(built).directory.iterdir()} == {
        *("root.squashfs", "vmlinuz", "modules.cpio", "image.json")
    }


def test_progress_goes_from_nothing_to_all_without_going_back(
    built: Home, first_build: Told
) -> None:
    build(built)
    assert first_build.fractions[0] < 0.05
    assert first_build.fractions[-1] == 1.0
    assert first_build.fractions == sorted(first_build.fractions)
    assert len(set(first_build.fractions)) > 20
    assert any("unpacking the kernel" in what for what in first_build.what)


def test_two_builds_give_the_same_image(stocked: Home, built: Home, told: Told) -> None:
    os.umask(before := os.umask(0o077))
    os.umask(0o077)
    try:
        image = build(stocked, told)
    finally:
        os.umask(before)
    assert image.digest == build(built).digest
    assert not any("linux-image" in what for what in told.what)  # the kernel was kept
    assert image.created > EPOCH


def test_a_home_may_have_any_name(tmp_path: Path, built: Home) -> None:
    home = Home(tmp_path / "a home, with spaces").prepare()
    stock(home, built)
    assert build(home).digest == build(built).digest


def in_other_process(home: Home, results: multiprocessing.queues.Queue[tuple[str, bool]]) -> None:
    told = Told()
    image = build(home, told)
    results.put((image.digest, told.fractions[-1:] == [1.0]))


def test_ten_processes_build_it_once(stocked: Home) -> None:
    context = multiprocessing.get_context("fork")
    results: multiprocessing.queues.Queue[tuple[str, bool]] = context.Queue()
    processes = [
        context.Process(target=in_other_process, args=(stocked, results)) for _ in range(10)
    ]
    for process in processes:
        process.start()
    answers = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    assert len({digest for digest, _ in answers}) == 1
    assert [built for _, built in answers].count(True) == 1
    assert left_over(stocked) == []


def test_whoever_waits_is_told_for_what(stocked: Home, told: Told) -> None:
    waiter = threading.Thread(target=build, args=(stocked, told))
    with stocked.lock("image-mini"):
        waiter.start()
        until = time.monotonic() + 60
        while not told.what and time.monotonic() < until:
            time.sleep(0.02)
    waiter.join()
    assert told.what[0] == "waiting: another encamp is building 'mini'"
    assert told.fractions[-1] == 1.0


def test_a_damaged_image_is_replaced_when_it_is_built_again(stocked: Home, built: Home) -> None:
    shutil.copytree(built.images, stocked.images, dirs_exist_ok=True)
    image = build(stocked)
    image.root.unlink()
    (stocked.images / "names" / "mini.json").unlink()
    again = build(stocked)
    assert again.digest == image.digest
    ImageStore(stocked, shared=None).check(again)


def test_a_damaged_kernel_in_the_cache_is_not_used(stocked: Home) -> None:
    (vmlinuz,) = stocked.cache.glob("kernels/*/vmlinuz")
    assert cached(vmlinuz.parent) is not None
    vmlinuz.write_bytes(b"damaged")
    assert cached(vmlinuz.parent) is None


# ── interrupted ──────────────────────────────────────────────────────────────────────────────────

SCRIPT = """
import signal, sys
from pathlib import Path
from encamp.home import Home
from encamp.describe.shipped import SHIPPED
from encamp.images.store import ImageStore

class Lines:
    def update(self, what, fraction=None):
        print(what, flush=True)

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
signal.signal(signal.SIGINT, signal.default_int_handler)  # even if whoever runs us ignores it
ImageStore(Home(Path(sys.argv[1])), shared=None).ensure(SHIPPED[sys.argv[2]], Lines())
"""


def children_of(home: Home) -> list[int]:
    """Processes at work somewhere in a home."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            at = (process / "cwd").readlink()
            words = (process / "cmdline").read_text(errors="replace")
        except OSError:
            continue
        if str(home.root) in words or at.is_relative_to(home.root):
            found.append(int(process.name))
    return found


def nobody_is_left_in(home: Home) -> bool:
    """What was killed may take a moment to be gone."""
    until = time.monotonic() + 60
    while children_of(home) and time.monotonic() < until:
        time.sleep(0.02)
    return children_of(home) == []


def interrupted(home: Home, recipe: str, when: str, number: signal.Signals) -> int:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, home.root, recipe],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if when in line:
                process.send_signal(number)
                break
        return process.wait(timeout=60)


@pytest.mark.parametrize(
    ("when", "number"),
    [
        ("fetching the list", signal.SIGTERM),
        ("package 'linux-image", signal.SIGINT),
        ("unpacking the kernel", signal.SIGTERM),
    ],
)
def test_an_interrupted_build_leaves_nothing(home: Home, when: str, number: signal.Signals) -> None:
    assert interrupted(home, "mini", when, number) != 0
    assert left_over(home) == []
    assert nobody_is_left_in(home)
    assert list(home.images.iterdir()) == []


def test_a_killed_build_is_cleaned_up_by_the_next_command(stocked: Home) -> None:
    shutil.rmtree(stocked.cache / "kernels")
    assert interrupted(stocked, "mini", "package 'linux", signal.SIGKILL) == -signal.SIGKILL
    assert left_over(stocked) != []
    ended = time.monotonic() + 60
    while left_over(stocked) and time.monotonic() < ended:
        clear_cache(stocked)
        time.sleep(0.1)
    assert left_over(stocked) == []
    assert nobody_is_left_in(stocked)


def test_work_in_progress_is_not_taken_for_left_over(home: Home) -> None:
    with workplace(home, "build-mini") as work:
        assert clear_cache(home) == 0
        assert work.directory.is_dir()
    assert left_over(home) == []


def test_work_lasts_as_long_as_a_program_it_started(home: Home) -> None:
    with workplace(home, "build-mini") as work:
        program = subprocess.Popen(["sleep", "60"], pass_fds=(work.lock,))
        directory = work.directory
        # What a killed process leaves: the directory, and the lock in the hands of its child.
        other = home.cache / "copy"
        shutil.copytree(directory, other)
        os.link(lock_of(directory), lock_of(other))
    assert clear_cache(home) == 0
    program.kill()
    program.wait()
    assert clear_cache(home) == 1
    assert left_over(home) == []


def test_a_build_in_a_thread_can_be_stopped(stocked: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(stocked.cache / "kernels")
    monkeypatch.setattr(programs, "STOPPING", threading.Event())
    ended: list[BaseException] = []
    fetching = threading.Event()

    class Watch:
        def update(self, what: str, fraction: float | None = None) -> None:
            if "linux-image" in what:
                fetching.set()

    def work() -> None:
        try:
            ImageStore(stocked, shared=None).ensure(MINI, Watch())
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert fetching.wait(60)
    programs.stop_all()
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert [type(error) for error in ended] == [KeyboardInterrupt]
    assert left_over(stocked) == []


# ── what can go wrong ────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Home]:
    place = tmp_path / "small"
    place.mkdir()
    size = f"size={request.param}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "encamp", place], check=True)
    try:
        yield Home(place / "home").prepare()
    finally:
        subprocess.run(["umount", place], check=True)


def leave_free(home: Home, bytes: int) -> None:
    """On a disk of its own. How much is used depends on how the host keeps lists of packages."""
    place = home.root.parent
    size = shutil.disk_usage(place).used + bytes
    subprocess.run(["mount", "-o", f"remount,size={size}", place], check=True)


@root_only
@pytest.mark.parametrize(
    ("small_disk", "packages"), [("26m", False), ("500m", True)], indirect=["small_disk"]
)
def test_a_disk_that_fills_up_is_named_and_left_clean(
    small_disk: Home, packages: bool, built: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    if packages:
        stock(small_disk, built)
        leave_free(small_disk, 10 * MIB)
    monkeypatch.setitem(failures.NEEDED, Kind.MINI, 1)
    with pytest.raises(EncampError) as raised:
        build(small_disk)
    assert raised.value.code is Code.DISK_FULL
    assert str(small_disk.root) in raised.value.sentence
    assert "MiB are free" in raised.value.sentence
    assert left_over(small_disk) == []
    assert list(small_disk.images.iterdir()) == []


@root_only
@pytest.mark.parametrize("small_disk", ["100m"], indirect=True)
def test_a_disk_that_is_too_small_is_refused_before_anything_is_fetched(
    small_disk: Home, told: Told
) -> None:
    with pytest.raises(EncampError) as raised:
        build(small_disk, told)
    assert raised.value.code is Code.DISK_FULL
    assert told.what == []


@root_only
@pytest.mark.parametrize("small_disk", ["160m"], indirect=True)
def test_a_disk_that_fills_up_under_debian_is_left_clean(
    small_disk: Home, built: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock(small_disk, built)
    monkeypatch.setitem(failures.NEEDED, Kind.DEBIAN, 1)
    with pytest.raises(EncampError) as raised:
        ImageStore(small_disk, shared=None).ensure(DEBIAN12)
    assert raised.value.code is Code.DISK_FULL
    assert left_over(small_disk) == []
    assert list(small_disk.images.iterdir()) == []


def test_a_program_that_hangs_is_ended() -> None:
    start = time.monotonic()
    with pytest.raises(EncampError) as raised:
        programs.run(["sleep", "600"], purpose="waiting", silence=0.4)
    assert time.monotonic() - start < 300
    assert "nothing for" in raised.value.detail


def test_a_mirror_that_cannot_be_reached_is_an_error_with_a_hint(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configuration = tmp_path / "apt.conf"
    configuration.write_text(
        'Acquire::http::Proxy "http://127.0.0.1:9";\n'
        'Acquire::https::Proxy "http://127.0.0.1:9";\nAcquire::Retries "0";\n'
    )
    monkeypatch.setenv("APT_CONFIG", str(configuration))
    with pytest.raises(EncampError) as raised:
        build(home)
    assert raised.value.code is Code.BUILD_FAILED
    assert raised.value.transient
    assert "network" in raised.value.hint
    assert "127.0.0.1" in raised.value.detail
    assert left_over(home) == []


def test_a_program_that_is_missing_is_named_with_its_package(
    stocked: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bin_directory = tmp_path / "bin"
    bin_directory.mkdir()
    for name in ("apt-get", "apt-cache", "apt-config", "dpkg-deb", "dpkg", "tar", "setpriv"):
        (bin_directory / name).symlink_to(programs.find(name))
    monkeypatch.setenv("PATH", str(bin_directory))
    monkeypatch.setattr(programs, "ADMINISTRATOR_PATHS", ())
    with pytest.raises(EncampError) as raised:
        build(stocked)
    assert raised.value.code is Code.PROGRAM_MISSING
    assert "squashfs-tools" in raised.value.hint
    assert left_over(stocked) == []


# ── without root ─────────────────────────────────────────────────────────────────────────────────

NOBODY = 65534


@pytest.fixture
def others_home(built: Home) -> Iterator[Home]:
    """A home, with all packages, of a user who is not root."""
    # Not below pytest's own directory: that is closed to others.
    with tempfile.TemporaryDirectory() as directory:
        home = Home(Path(directory) / "home").prepare()
        stock(home, built)
        Path(directory).chmod(0o755)
        subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", home.root], check=True)
        yield home


def as_nobody(home: Home, recipe: str, results: multiprocessing.queues.Queue[str]) -> None:
    os.chdir("/")
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    os.environ["HOME"] = "/nonexistent"
    try:
        chosen = {"mini": MINI, "debian12": DEBIAN12}[recipe]
        results.put(ImageStore(home, shared=None).ensure(chosen, Silent()).digest)
    except EncampError as error:
        results.put(f"{error.code.name} {error}")


def answer_to_nobody(home: Home, recipe: str) -> str:
    context = multiprocessing.get_context("fork")
    results: multiprocessing.queues.Queue[str] = context.Queue()
    process = context.Process(target=as_nobody, args=(home, recipe, results))
    process.start()
    answer = results.get(timeout=120)
    process.join()
    return answer


@root_only
def test_an_ordinary_user_builds_the_same_mini(others_home: Home, built: Home) -> None:
    assert answer_to_nobody(others_home, "mini") == build(built).digest


@root_only
def test_a_user_without_subordinate_ids_is_told_what_is_missing(others_home: Home) -> None:
    answer = answer_to_nobody(others_home, "debian12")
    assert answer.startswith(("NOT_PERMITTED", "PROGRAM_MISSING"))
    assert "/etc/subuid" in answer or "uidmap" in answer
    assert left_over(others_home) == []
