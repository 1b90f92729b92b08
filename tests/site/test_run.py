"""`encamp run` as a user types it, in real machines."""

from __future__ import annotations

import http.server
import json
import re
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Encamp

pytestmark = pytest.mark.site

PHASES = ["check", "start", "activation", "input", "command", "output", "end"]


def test_output_and_exit_code_are_the_commands_own(encamp: Encamp) -> None:
    done = encamp("run", "--", "sh", "-c", "echo out; echo err >&2; exit 7", check=False)
    assert (done.stdout, done.stderr, done.returncode) == (b"out\n", b"err\n", 7)


def test_arguments_arrive_as_they_are(encamp: Encamp) -> None:
    words = ["", " ", "a b", "-x", "--", "'\"$HOME`id`\\", "a\nb", "ü☃", "*", "x" * 100_000]
    done = encamp("run", "--", "printf", "%s\\0", *words)
    assert done.stdout.decode().split("\0")[:-1] == words


def test_every_phase_is_timed(encamp: Encamp) -> None:
    done = encamp("run", "--json", "--", "false", check=False)
    outcome = json.loads(done.stderr.splitlines()[-1])
    assert [phase["phase"] for phase in outcome["phases"]] == PHASES
    hows = {phase["phase"]: phase["how"] for phase in outcome["phases"]}
    assert hows["start"] in ("cloned, KVM", "cloned, emulated")
    assert hows["command"] == "exit code 1"
    assert hows["end"] == "destroyed"
    assert (outcome["exit_code"], outcome["started"], done.returncode) == (1, True, 1)
    starts = [phase["started"] for phase in outcome["phases"]]
    assert starts == sorted(starts)
    assert all(phase["seconds"] >= 0 for phase in outcome["phases"])


def test_timings_are_a_table_apart_from_the_output(encamp: Encamp) -> None:
    done = encamp("run", "--timings", "--", "echo", "out")
    assert done.stdout == b"out\n"
    table = done.stderr.decode()
    for word in ("image checked", "machine made", "cloned", "command run", "in all", "█"):
        assert word in table


def test_machine_can_be_booted_instead_of_cloned(encamp: Encamp) -> None:
    done = encamp("run", "--boot", "--json", "--", "echo", "up")
    assert done.stdout == b"up\n"
    outcome = json.loads(done.stderr.splitlines()[-1])
    assert outcome["phases"][1]["how"].startswith("booted, ")


def test_size_asked_for_is_the_size_inside(encamp: Encamp) -> None:
    script = "nproc; grep MemTotal /proc/meminfo; df -k / | tail -1; dmesg | grep Memory:"
    done = encamp(
        *("run", "--cpus", "2", "--memory", "96M", "--disk", "64M"), *("--", "sh", "-c", script)
    )
    cpus, total, disk, memory = done.stdout.decode().splitlines()
    assert cpus == "2"
    assert 32 * 1024 < int(total.split()[1]) <= 96 * 1024
    assert 48 * 1024 < int(disk.split()[1]) <= 64 * 1024
    # What the kernel found before it took its own share, less the BIOS's holes.
    match = re.search(r"/(\d+)K available", memory)
    assert match is not None
    assert 95 * 1024 < int(match[1]) <= 96 * 1024


def test_disk_is_the_machines_own_and_empty_each_time(encamp: Encamp) -> None:
    size = ("--cpus", "2", "--memory", "96M", "--disk", "64M")
    script = "ls /var/tmp; head -c 50000000 /dev/zero > /var/tmp/filling && stat -c %s /var/tmp/*"
    for _ in range(2):
        assert encamp("run", *size, "--", "sh", "-c", script).stdout == b"50000000\n"


def test_variables_are_set_or_passed_on(encamp: Encamp) -> None:
    words = ("--env-var", "GIVEN=a b=ü\n", "--env-var", "EMPTY=", "--env-var", "OWN")
    script = 'printf "%s|" "$GIVEN" "${EMPTY-unset}" "$OWN" "${OTHER-unset}" "$ENCAMP_ENVIRONMENT"'
    variables = {"OWN": "my own", "OTHER": "not passed on"}
    done = encamp("run", *words, "--", "sh", "-c", script, variables=variables)
    assert done.stdout.decode() == "a b=ü\n||my own|unset|mini|"


def test_command_starts_in_the_working_directory_or_at_home(encamp: Encamp, tmp_path: Path) -> None:
    assert encamp("run", "-w", "/tmp", "--", "pwd").stdout == b"/tmp\n"
    at_home = encamp("run", "--", "sh", "-c", 'test "$PWD" = "$HOME" && cd && pwd')
    assert at_home.stdout.decode().strip() == str(Path.home())
    shared = encamp("run", "--share", tmp_path, "-w", tmp_path, "--", "pwd")
    assert shared.stdout.decode().strip() == str(tmp_path)
    missing = encamp("run", "-w", "/not/there", "--", "true", check=False)
    assert missing.returncode == 127
    assert b"the working directory could not be entered" in missing.stderr


def test_machine_has_no_network_unless_it_is_asked_for(encamp: Encamp) -> None:
    script = "ls /sys/class/net; ip -4 -o addr show scope global; ip route"
    assert encamp("run", "--", "sh", "-c", script).stdout == b"lo\n"
    done = encamp("run", "--network", "user", "--", "sh", "-c", script)
    lines = done.stdout.decode().splitlines()
    assert lines[:2] == ["eth0", "lo"]
    assert "inet 10.0.2.15/24" in lines[2]
    assert lines[3].startswith("default via 10.0.2.2 dev eth0")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A server whose certificate vouches for itself, and nobody else does: certificate and port."""
    words = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    about = ["-subj", "/CN=server", "-addext", "subjectAltName=IP:10.0.2.2", "-days", "2"]
    files: list[str | Path] = ["-keyout", key, "-out", certificate]
    subprocess.run(["openssl", "req", *words, *files, *about], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *words: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as listening:
        listening.socket = context.wrap_socket(listening.socket, server_side=True)
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield certificate, listening.server_port
        listening.shutdown()
        thread.join()


CONNECT = """
/host/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 --library-path /host/lib/x86_64-linux-gnu \
    /host/bin/openssl s_client -connect 10.0.2.2:$1 -verify_ip 10.0.2.2 -verify_return_error \
    -brief $2 </dev/null >/dev/null 2>/tmp/said && echo trusted || echo $?
"""
"""The host's own client, which `mini` does not have."""


def test_machine_with_a_network_trusts_the_authorities_that_the_host_trusts(
    encamp: Encamp, server: tuple[Path, int]
) -> None:
    certificate, port = server
    bundle = "/etc/ssl/certs/ca-certificates.crt"
    connect = f"connect() {{ {CONNECT} }}; connect {port}; "
    script = f"{connect} SSL_CERT_FILE=/x connect {port} '-CAfile {bundle}'"
    words = ("--share", "/usr:/host:ro", "--network", "user", "--", "sh", "-c", script)
    said = encamp("run", *words, variables={"SSL_CERT_FILE": str(certificate)}).stdout
    assert said == b"trusted\ntrusted\n"
    assert b"trusted" not in encamp("run", *words).stdout
    alone = encamp(
        *("run", "--", "sh", "-c", f"echo $SSL_CERT_FILE; ls {bundle}"),
        variables={"SSL_CERT_FILE": str(certificate)},
        check=False,
    )
    assert alone.stdout == b"\n"


def test_machine_bears_the_name_it_was_given(encamp: Encamp) -> None:
    assert encamp("run", "--name", "Work-1", "--", "hostname").stdout == b"Work-1\n"
    for name in ("", "1st", "a_b", "a.b", "-a", "a" * 64, "ü"):
        done = encamp("run", "--name", name, "--", "true", check=False)
        assert done.returncode == 64, name
        assert b"cannot be a machine's name" in done.stderr


@pytest.mark.parametrize(
    ("after", "state", "how"),
    [
        ("shutdown", "stopped", "shut down"),
        ("pause", "paused", "paused"),
        ("suspend", "suspended", "suspended"),
        ("keep", "running", "kept"),
    ],
)
def test_machine_ends_as_asked(encamp: Encamp, after: str, state: str, how: str) -> None:
    script = "echo kept > /tmp/file; exit 3"
    words = ("--after", after, "--name", "left", "--json")
    done = encamp("run", *words, "--", "sh", "-c", script, check=False)
    assert done.returncode == 3, done.stderr
    outcome = json.loads(done.stderr.splitlines()[-1])
    record = json.loads(encamp("show", "--json", "left").stdout)
    assert (record["state"], record["tied"]) == (state, False)
    assert record["id"] == outcome["machine"]
    assert record["command"] == ["sh", "-c", script]
    assert [phase["phase"] for phase in record["phases"]] == PHASES
    assert record["phases"][-1]["how"] == how
    if after == "pause":
        encamp("resume", "left")
    if after == "suspend":
        encamp("restore", "left")
    if after != "shutdown":
        assert encamp("exec", "left", "--", "cat", "/tmp/file").stdout == b"kept\n"
    encamp("rm", "--force", "left")


def test_machine_that_dies_under_its_command_is_told_apart(encamp: Encamp) -> None:
    done = encamp("run", "--", "sh", "-c", "echo b > /proc/sysrq-trigger; sleep 100", check=False)
    assert done.returncode == 72
    assert b"died while the job was in it" in done.stderr
