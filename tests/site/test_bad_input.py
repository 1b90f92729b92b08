"""What goes wrong is said in a sentence with a hint, has its exit code, and leaves nothing."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from encamp.agent.keeper import Keeper
from encamp.cli.options import caller
from encamp.home import Home
from encamp.model.errors import Code, EncampError
from encamp.model.job import MachineRequest
from encamp.progress import Silent
from tests.builds import give_verdict
from tests.conftest import Encamp, left_behind

pytestmark = pytest.mark.site


def check_refused(
    encamp: Encamp, words: tuple[str, ...], code: Code, sentence: str, hint: str = ""
) -> None:
    """The refusal ends in one sentence and perhaps one hint; the command printed nothing."""
    done = encamp(*words, check=False)
    said = done.stderr.decode()
    assert done.returncode == code.value, (words, said)
    assert done.stdout == b""
    *_, last = said.split("encamp: ")
    assert sentence in last.splitlines()[0], said
    assert len(last.splitlines()) <= 2, said
    assert hint in "".join(last.splitlines()[1:]), said


@pytest.mark.parametrize(
    ("words", "code", "sentence", "hint"),
    [
        (("-e", "mimi"), Code.UNKNOWN_ENVIRONMENT, "no environment 'mimi'", "Did you mean 'mini'"),
        (
            ("-e", "qqqq"),
            Code.UNKNOWN_ENVIRONMENT,
            "no environment 'qqqq'",
            "gridengine-node, mini",
        ),
        (("-e", ""), Code.UNKNOWN_ENVIRONMENT, "environment's name is empty", "There are: "),
        (("--memory", "lots"), Code.USAGE, "--memory 'lots' is not a size", "512M"),
        (("--memory", "1M"), Code.USAGE, "needs at least", ""),
        (("--memory", "900T"), Code.USAGE, "more than is free", "--memory: this host has"),
        (("--cpus", "0"), Code.USAGE, "at least one processor", ""),
        (("--cpus", "two"), Code.USAGE, "'two' is not a whole number.", "encamp run --help"),
        (("--cpus", "100000"), Code.USAGE, "wants 100000 processors", "--cpus"),
        (("--disk", "1M"), Code.USAGE, "at least 16 MiB", ""),
        (("--disk", "900T"), Code.USAGE, "Not enough disk", "--disk"),
        (("--network", "carrier"), Code.USAGE, "no network 'carrier'", "none, user"),
        (("--timeout", "soon"), Code.USAGE, "'soon' is not a time limit", "10m"),
        (("--env-var", "NOT_HERE"), Code.USAGE, "no such variable", "NOT_HERE=..."),
        (("-w", "here"), Code.USAGE, "not an absolute path", "inside the machine"),
        (("--share", "missing"), Code.INPUT_MISSING, "does not exist", "--share"),
        (("--in", "missing"), Code.INPUT_MISSING, "does not exist", "--in"),
        (("--out", "x:/dev/null/x"), Code.COPY_FAILED, "not a directory", "--out"),
        (("--after", "party"), Code.USAGE, "'party' is not one of", "encamp run --help"),
        (("--nonsense",), Code.USAGE, "No such option", "encamp run --help"),
    ],
)
def test_request_that_cannot_be_met_is_refused_before_anything_is_made(
    encamp: Encamp, words: tuple[str, ...], code: Code, sentence: str, hint: str
) -> None:
    check_refused(encamp, ("run", *words, "--", "echo", "ran"), code, sentence, hint)


def test_missing_command_is_refused(encamp: Encamp) -> None:
    check_refused(encamp, ("run", "--"), Code.USAGE, "no command to run", "encamp run --help")
    check_refused(encamp, ("frobnicate",), Code.USAGE, "No such command", "encamp --help")


def test_command_that_is_not_there_or_not_to_be_run_has_the_shells_exit_codes(
    encamp: Encamp,
) -> None:
    expected = {
        "nonesuch": (127, "No such file or directory"),
        "/no/such/file": (127, "No such file or directory"),
        "/etc/passwd": (126, "Permission denied"),
        "/etc": (126, "Is a directory"),
    }
    for command, (code, reason) in expected.items():
        done = encamp("run", "--", command, check=False)
        assert done.returncode == code
        assert f"The command was not run in the machine: '{command}'" in done.stderr.decode()
        assert reason in done.stderr.decode()


def test_missing_qemu_is_reported_with_the_package_to_install(
    encamp: Encamp, tmp_path: Path
) -> None:
    done = encamp("run", "--", "true", check=False, variables={"PATH": str(tmp_path)})
    assert done.returncode == Code.PROGRAM_MISSING.value
    assert b"'qemu-system-x86_64' is not installed" in done.stderr
    assert b"apt-get install qemu-system-x86" in done.stderr


def test_image_corrupted_on_disk_is_noticed(
    encamp: Encamp, site_home: Home, tmp_path: Path
) -> None:
    home = Home(tmp_path / "home").prepare()
    shutil.copytree(site_home.images, home.images, dirs_exist_ok=True)
    give_verdict(home, site_home)
    for root in home.images.glob("*/root.squashfs"):
        root.chmod(0o644)
        with root.open("r+b") as file:
            file.seek(root.stat().st_size // 2)
            file.write(b"not what was there")
    done = encamp("run", "--", "true", check=False, variables={"ENCAMP_HOME": str(home.root)})
    assert done.returncode == Code.CORRUPT.value
    assert b"encamp: " in done.stderr
    assert b"root.squashfs" in done.stderr
    assert left_behind(home) == []
    assert list(home.templates.iterdir()) == []


def test_input_that_cannot_be_copied_ends_the_run_before_the_command(
    encamp: Encamp, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        check_refused(
            encamp, ("run", "--in", "socket", "--", "echo", "ran"), Code.COPY_FAILED, "socket"
        )
    (tmp_path / "file").write_text("")
    words = ("run", "--in", "file:/proc/here/below", "--", "echo", "ran")
    check_refused(encamp, words, Code.COPY_FAILED, "/proc/here/below")


@pytest.mark.parametrize(
    ("arguments", "patience", "code", "words"),
    [
        ((), 60.0, Code.MACHINE_LOST, "Kernel panic"),
        (("panic=0", "ignore_loglevel"), 12.0, Code.NO_ANSWER, "] "),
    ],
    ids=["that panics and reboots", "that stands still"],
)
async def test_guest_that_never_answers_is_reported_with_its_consoles_last_lines(
    site_home: Home,
    nothing_left: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
    patience: float,
    code: Code,
    words: str,
) -> None:
    words_for_kernel = ", ".join(("rdinit=/none", "encamp.root=none", *arguments))
    (tmp_path / "environments.yaml").write_text(
        "broken:\n"
        "  extends: mini\n"
        f"  kernel_arguments: [{words_for_kernel}]\n"
        f"  ready: {{timeout: {patience}}}\n"
    )
    monkeypatch.setenv("ENCAMP_USER_CONFIG", str(tmp_path))
    keeper = Keeper.open(site_home)
    request = MachineRequest(environment="broken", owner=caller())
    with pytest.raises(EncampError) as failed:
        await keeper.start(request, Silent())
    assert failed.value.code is code
    assert words in failed.value.detail
    assert failed.value.hint == "Its last words are above."
    assert left_behind(site_home) == []
