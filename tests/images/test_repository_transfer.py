"""What can happen on the way: networks that break, servers that misbehave, disks that fill up."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from encamp import programs
from encamp.images import repository_http, transfer
from encamp.images.pulling import pull
from encamp.images.pushing import push
from encamp.images.repository import Repository
from encamp.images.store import ImageStore
from encamp.images.transfer_meter import Meter
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image, ImageFile
from encamp.progress import Silent
from encamp.workplace import clear_cache
from tests.builds import Told
from tests.conftest import ROOT
from tests.images.conftest import left_over
from tests.images.servers import Handler, Odd, free_port, nginx, odd_server
from tests.images.stock import KIB, make_image, store_in

pytestmark = pytest.mark.site
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
SIZE = 600 * KIB


@pytest.fixture
def here(tmp_path: Path) -> ImageStore:
    return store_in(tmp_path / "here")


@pytest.fixture
def image(here: ImageStore, tmp_path: Path) -> Image:
    """Pushed to a directory that servers then serve."""
    (tmp_path / "www").mkdir()
    image = make_image(here, "analysis", size=SIZE)
    push(here, Repository.open(str(tmp_path / "www")), "analysis", Silent())
    return image


@pytest.fixture
def server(image: Image, tmp_path: Path) -> Iterator[Odd]:
    with odd_server(tmp_path / "www") as site:
        yield site


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageStore:
    monkeypatch.setattr(transfer, "BACKOFF", (0.01, 0.01, 0.01))
    return store_in(tmp_path / "there")


def is_root(handler: Handler) -> bool:
    return handler.path.endswith(Image.ROOT)


def send(handler: Handler, data: bytes, length: int | None, **headers: str) -> None:
    handler.send_response(200)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    if length is not None:
        handler.send_header("Content-Length", str(length))
    handler.end_headers()
    handler.wfile.write(data)
    handler.close_connection = True


def part_of(there: ImageStore, image: Image) -> int:
    """How much of the image's root has been kept."""
    root = next(file for file in image.files if file.name == Image.ROOT)
    return transfer.size(transfer.partial(there.home, image.digest, root))


def fetch(there: ImageStore, server: Odd, told: Told | None = None) -> Image:
    return pull(there, Repository.open(server.url), "analysis", told or Silent())


def test_a_server_without_ranges_starts_over(there: ImageStore, server: Odd, image: Image) -> None:
    root = next(file for file in image.files if file.name == Image.ROOT)
    transfer.partial(there.home, image.digest, root).write_bytes(image.root.read_bytes()[:1000])
    there.check(fetch(there, server))
    assert (f"/images/{image.digest}/{Image.ROOT}", "bytes=1000-") in server.asked


def test_a_connection_that_breaks_is_taken_up_again(
    there: ImageStore, server: Odd, image: Image, told: Told
) -> None:
    content, answers = image.root.read_bytes(), []

    def break_off(handler: Handler) -> bool:
        """Sends 200 KiB at a time, from where it was asked to."""
        if not is_root(handler):
            return False
        start = int(handler.headers.get("Range", "bytes=0-")[6:-1])
        answers.append(start)
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(SIZE - start))
        handler.send_header("Content-Range", f"bytes {start}-{SIZE - 1}/{SIZE}")
        handler.end_headers()
        handler.wfile.write(content[start : start + 200 * KIB])
        return True

    server.misbehave = break_off
    there.check(fetch(there, server, told))
    assert answers == [0, 200 * KIB, 400 * KIB]
    assert any("trying again" in what and "broke off" in what for what in told.what)
    assert max(told.fractions) <= 1.0


def test_a_network_that_stays_away_is_an_error_that_may_pass(
    there: ImageStore, server: Odd, image: Image
) -> None:
    def hang_up(handler: Handler) -> bool:
        if not is_root(handler):
            return False
        if part_of(there, image):
            handler.connection.shutdown(socket.SHUT_RDWR)
        else:
            send(handler, image.root.read_bytes()[: 100 * KIB], SIZE)
        return True

    server.misbehave = hang_up
    with pytest.raises(EncampError) as raised:
        fetch(there, server)
    assert (raised.value.code, raised.value.transient) == (Code.UNREACHABLE, True)
    assert "goes on from there" in raised.value.hint
    assert part_of(there, image) == 100 * KIB
    assert there.ls() == []
    server.misbehave = lambda _: False
    there.check(fetch(there, server))


def test_a_server_that_falls_silent_is_given_up(
    there: ImageStore, server: Odd, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository_http, "TIMEOUT", 0.3)
    given_up = threading.Event()

    def stall(handler: Handler) -> bool:
        if is_root(handler):
            send(handler, b"x", SIZE)
            given_up.wait(60)
        return is_root(handler)

    server.misbehave = stall
    with pytest.raises(EncampError) as raised:
        fetch(there, server)
    given_up.set()
    assert "timed out" in raised.value.sentence
    assert raised.value.transient


def test_a_server_that_only_trickles_is_given_up(
    there: ImageStore, server: Odd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository_http, "SLOW_FOR", 0.2)

    def trickle(handler: Handler) -> bool:
        if is_root(handler):
            handler.send_response(200)
            handler.send_header("Content-Length", str(SIZE))
            handler.end_headers()
            with contextlib.suppress(OSError):
                # Seen to hang up on, long before it is through.
                for _ in range(1000):
                    handler.wfile.write(b"x")
                    time.sleep(0.02)
        return is_root(handler)

    server.misbehave = trickle
    with pytest.raises(EncampError) as raised:
        fetch(there, server)
    assert "bytes in" in raised.value.sentence
    assert raised.value.transient


def test_a_file_that_changes_on_the_server_is_started_over(
    tmp_path: Path, here: ImageStore, image: Image, there: ImageStore
) -> None:
    """nginx says so: what it has is no longer what the first part came from."""
    with nginx(tmp_path) as server:
        root = next(file for file in image.files if file.name == Image.ROOT)
        partial = transfer.partial(there.home, image.digest, root)
        partial.write_bytes(bytes(1000))
        url = f"{server.url}/images/{image.digest}/{Image.ROOT}"
        transfer.note(partial).write_text(f'{url}\n"another-etag"')
        there.check(pull(there, Repository.open(server.url), "analysis", Silent()))
        assert f"GET /images/{image.digest}/{Image.ROOT} 200 bytes=1000-" in server.requests()


def garbage(handler: Handler) -> bool:
    if is_root(handler):
        send(handler, bytes(SIZE), SIZE)
    return is_root(handler)


def endless(handler: Handler) -> bool:
    if is_root(handler):
        with contextlib.suppress(OSError):
            send(handler, bytes(2 * SIZE), None)
    return is_root(handler)


def other_length(handler: Handler) -> bool:
    if is_root(handler):
        send(handler, bytes(100), 100)
    return is_root(handler)


def compressed(handler: Handler) -> bool:
    if is_root(handler):
        send(handler, bytes(100), SIZE, Content_Encoding="gzip")
    return is_root(handler)


def wrong_range(handler: Handler) -> bool:
    if is_root(handler):
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes 7-{SIZE - 1}/{SIZE}")
        handler.send_header("Content-Length", str(SIZE - 7))
        handler.end_headers()
        handler.wfile.write(bytes(SIZE - 7))
    return is_root(handler)


def missing(handler: Handler) -> bool:
    if is_root(handler):
        handler.send_error(404)
    return is_root(handler)


def refused(handler: Handler) -> bool:
    if is_root(handler):
        handler.send_error(403)
    return is_root(handler)


def overloaded(handler: Handler) -> bool:
    handler.send_error(503)
    return True


@pytest.mark.parametrize(
    ("misbehave", "code", "says"),
    [
        (garbage, Code.CORRUPT, "SHA-256"),
        (endless, Code.CORRUPT, "longer than"),
        (other_length, Code.CORRUPT, "100 bytes where"),
        (compressed, Code.UNREACHABLE, "compressed"),
        (wrong_range, Code.UNREACHABLE, "not what we asked"),
        (missing, Code.CORRUPT, "has no"),
        (refused, Code.NOT_PERMITTED, "does not permit"),
        (overloaded, Code.UNREACHABLE, "503"),
    ],
)
def test_a_server_that_misbehaves_is_called_by_what_it_does(
    there: ImageStore, server: Odd, misbehave: object, code: Code, says: str
) -> None:
    server.misbehave = misbehave  # type: ignore[assignment]
    with pytest.raises(EncampError) as raised:
        fetch(there, server)
    assert raised.value.code is code, raised.value
    assert says in str(raised.value)
    assert there.ls() == []
    server.misbehave = lambda _: False
    there.check(fetch(there, server))
    assert left_over(there.home) == []


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:,x"])
def test_redirects_lead_to_web_servers_only(there: ImageStore, server: Odd, target: str) -> None:
    def redirect(handler: Handler) -> bool:
        handler.send_response(302)
        handler.send_header("Location", target)
        handler.end_headers()
        return True

    server.misbehave = redirect
    with pytest.raises(EncampError) as raised:
        fetch(there, server)
    assert raised.value.code is Code.UNREACHABLE


@pytest.fixture
def inner(tmp_path: Path) -> Iterator[Odd]:
    """A server that only this host reaches, with the same files."""
    with odd_server(tmp_path / "www") as site:
        yield site


@pytest.fixture
def allow_redirects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Writes settings that name a server."""
    for name in ("ENCAMP_HOME", "ENCAMP_USER_CONFIG", "ENCAMP_SITE_CONFIG"):
        monkeypatch.setenv(name, str(tmp_path / name))

    def write(server: str) -> None:
        (tmp_path / "ENCAMP_USER_CONFIG").mkdir()
        text = f"redirects: ['{server}']\n"
        (tmp_path / "ENCAMP_USER_CONFIG" / "settings.yaml").write_text(text)

    return write


def test_redirects_lead_to_no_other_server_unless_the_settings_name_it(
    there: ImageStore,
    server: Odd,
    inner: Odd,
    image: Image,
    allow_redirects: Callable[[str], None],
) -> None:
    def redirect(handler: Handler) -> bool:
        handler.send_response(302)
        handler.send_header("Location", f"{inner.url}{handler.path}")
        handler.end_headers()
        return True

    server.misbehave = redirect
    with pytest.raises(EncampError) as raised:
        fetch(there, server)
    assert raised.value.code is Code.UNREACHABLE
    assert inner.url.removeprefix("http://") in raised.value.sentence
    assert inner.asked == []
    allow_redirects(inner.url.removeprefix("http://"))
    there.check(fetch(there, server))
    assert inner.asked


def test_redirects_on_the_same_server_are_followed(
    there: ImageStore, server: Odd, image: Image
) -> None:
    def redirect(handler: Handler) -> bool:
        if handler.path.startswith("/moved"):
            handler.path = handler.path.removeprefix("/moved")
            return False
        handler.send_response(302)
        handler.send_header("Location", f"{server.url}/moved{handler.path}")
        handler.end_headers()
        return True

    server.misbehave = redirect
    there.check(fetch(there, server))


def test_redirects_in_a_circle_end(there: ImageStore, server: Odd) -> None:
    def redirect(handler: Handler) -> bool:
        handler.send_response(302)
        handler.send_header("Location", handler.path)
        handler.end_headers()
        return True

    server.misbehave = redirect
    with pytest.raises(EncampError) as raised:
        fetch(there, server)
    assert raised.value.code is Code.UNREACHABLE
    assert len(server.asked) < 20


def test_credentials_go_to_their_own_server_only(
    there: ImageStore,
    server: Odd,
    image: Image,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    allow_redirects: Callable[[str], None],
) -> None:
    allow_redirects(f"localhost:{server.url.rpartition(':')[2]}")
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login bearer password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    seen: list[tuple[str, str | None]] = []

    def redirect(handler: Handler) -> bool:
        seen.append((handler.headers["Host"], handler.headers.get("Authorization")))
        if is_root(handler) and handler.headers["Host"].startswith("127."):
            port = handler.headers["Host"].partition(":")[2]
            handler.send_response(302)
            handler.send_header("Location", f"http://localhost:{port}{handler.path}")
            handler.end_headers()
            return True
        return False

    server.misbehave = redirect
    there.check(fetch(there, server))
    assert all(given == "Bearer secret" for host, given in seen if host.startswith("127."))
    elsewhere = [given for host, given in seen if host.startswith("localhost")]
    assert elsewhere == [None]


def test_a_server_that_wants_a_password_gets_it_from_netrc(
    tmp_path: Path, here: ImageStore, there: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users").write_text("anna:{PLAIN}geheim\n")
    netrc = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(netrc))
    make_image(here, "analysis")
    with nginx(tmp_path, f'auth_basic "images"; auth_basic_user_file {tmp_path}/users;') as server:
        repository = Repository.open(server.url)
        with pytest.raises(EncampError) as raised:
            push(here, repository, "analysis", Silent())
        assert raised.value.code is Code.NOT_PERMITTED
        assert "~/.netrc" in str(raised.value)
        netrc.write_text("machine 127.0.0.1 login anna password geheim\n")
        netrc.chmod(0o600)
        push(here, repository, "analysis", Silent())
        there.check(pull(there, repository, "analysis", Silent()))


def test_a_proxy_is_taken_from_the_usual_variable(
    there: ImageStore, server: Odd, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.setenv("no_proxy", "")
    hosts = set()

    def forward(handler: Handler) -> bool:
        hosts.add(urllib.parse.urlsplit(handler.path).hostname)
        handler.path = urllib.parse.urlsplit(handler.path).path
        return False

    server.misbehave = forward
    repository = Repository.open("http://images.invalid")
    there.check(pull(there, repository, "analysis", Silent()))
    assert hosts == {"images.invalid"}


def test_certificates_are_checked(
    tmp_path: Path, image: Image, there: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ("-subj", "/CN=images", "-addext", "subjectAltName=IP:127.0.0.1")
    programs.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-keyout", key, "-out", certificate, *subject),
        ],
        purpose="making a certificate",
    )
    port = free_port()
    safe = f"listen 127.0.0.1:{port} ssl; ssl_certificate {certificate};"
    with nginx(tmp_path, f"{safe} ssl_certificate_key {key};"):
        url = f"https://127.0.0.1:{port}"
        with pytest.raises(EncampError) as raised:
            pull(there, Repository.open(url), "analysis", Silent())
        assert raised.value.code is Code.UNREACHABLE
        assert not raised.value.transient
        assert "SSL_CERT_FILE" in raised.value.hint
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        there.check(pull(there, Repository.open(url), "analysis", Silent()))


def test_a_password_in_an_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EncampError) as raised:
        Repository.open("https://anna:geheim@images.example.org/")
    assert "geheim" not in str(raised.value)
    assert "netrc" in raised.value.hint


@pytest.mark.parametrize("where", ["ftp://host/images", "file:///images", "https://", "http:///x"])
def test_other_addresses_are_no_repositories(where: str) -> None:
    with pytest.raises(EncampError) as raised:
        Repository.open(where)
    assert raised.value.code is Code.USAGE


def test_a_server_that_takes_no_put_says_so(here: ImageStore, server: Odd) -> None:
    make_image(here, "other")
    with pytest.raises(EncampError) as raised:
        push(here, Repository.open(server.url), "other", Silent())
    assert raised.value.code is Code.UNREACHABLE
    assert "PUT" in raised.value.sentence


def test_nobody_there(there: ImageStore) -> None:
    with pytest.raises(EncampError) as raised:
        pull(there, Repository.open("http://127.0.0.1:9"), "analysis", Silent())
    assert (raised.value.code, raised.value.transient) == (Code.UNREACHABLE, True)
    assert "refused" in raised.value.sentence


# ── killed ───────────────────────────────────────────────────────────────────────────────────────

SCRIPT = """
import sys
from pathlib import Path
from encamp.images.pulling import pull
from encamp.images.repository import Repository
from encamp.progress import Silent
from tests.images.stock import store_in
pull(store_in(Path(sys.argv[1])), Repository.open(sys.argv[2]), "analysis", Silent())
"""


def test_a_killed_pull_goes_on_where_it_was(
    tmp_path: Path, here: ImageStore, image: Image, there: ImageStore
) -> None:
    with nginx(tmp_path, "limit_rate 300k;") as slow:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(SCRIPT), there.home.root, slow.url]
        )
        deadline = time.monotonic() + 30
        while part_of(there, image) < 64 * KIB and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
    kept = part_of(there, image)
    assert 64 * KIB <= kept < SIZE
    assert there.ls() == []
    clear_cache(there.home)
    assert part_of(there, image) == kept
    with nginx(tmp_path / "fast") as fast:
        (tmp_path / "fast" / "www").rmdir()
        (tmp_path / "fast" / "www").symlink_to(tmp_path / "www")
        there.check(pull(there, Repository.open(fast.url), "analysis", Silent()))
        wanted = f"GET /images/{image.digest}/{Image.ROOT} 206 bytes={kept}-"
        assert wanted in fast.requests()
    assert left_over(there.home) == []


STEPS = [
    "encamp.images.transfer.receive",
    "encamp.images.pulling.put_in_place",
    "encamp.images.placing.settle",
    "encamp.images.placing.eviction.make_room",
    "encamp.images.store.ImageStore.stamp",
    "encamp.images.pulling.name_image",
    "encamp.images.placing.write_file",
    "encamp.workplace.remove_work",
]
DYING = """
import os, pkgutil, signal, sys
path, when = sys.argv[3:5]
owner, _, name = path.rpartition(".")
owner = pkgutil.resolve_name(owner)
real = getattr(owner, name)
def die(*arguments, **options):
    if when == "after":
        real(*arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)
import encamp.images.pulling
setattr(owner, name, die)
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_pull_killed_at_any_step_is_done_again(
    tmp_path: Path, image: Image, there: ImageStore, step: str, when: str
) -> None:
    where = str(tmp_path / "www")
    script = textwrap.dedent(DYING) + textwrap.dedent(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-c", script, there.home.root, where, step, when], check=False
    )
    assert done.returncode == -signal.SIGKILL
    for found in there.ls():
        there.check(found)  # whole, or not there
    clear_cache(there.home)
    there.check(pull(there, Repository.open(where), "analysis", Silent()))
    assert left_over(there.home) == []
    assert [found.name for found in there.ls()] == ["analysis"]


def test_the_lock_of_a_pusher_that_was_killed_is_broken(
    tmp_path: Path, here: ImageStore, image: Image, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    monkeypatch.setattr(repository_http, "BREAK_LOCK_AFTER", 0.5)
    with nginx(tmp_path) as server:
        (server.root / "changing").mkdir()
        push(here, Repository.open(server.url), "analysis", told)
        assert not (server.root / "changing").exists()
    assert any("somebody else is pushing" in what for what in told.what)


# ── full disks ───────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def small_disk(directory: Path, size: int) -> Iterator[Path]:
    directory.mkdir()
    options = f"size={size},mode=755"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", directory], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", directory], check=True)


@root_only
def test_a_pull_that_does_not_fit_is_refused_before_it_begins(
    tmp_path: Path, server: Odd, image: Image
) -> None:
    with small_disk(tmp_path / "small", 400 * KIB) as disk:
        there = store_in(disk / "home")
        with pytest.raises(EncampError) as raised:
            fetch(there, server)
        assert raised.value.code is Code.NO_ROOM
        assert "needed" in raised.value.sentence
        assert not any(path.endswith(Image.ROOT) for path, _ in server.asked)
        assert left_over(there.home) == []


@root_only
def test_a_disk_that_fills_up_during_a_pull_keeps_what_has_arrived(
    tmp_path: Path, server: Odd, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("encamp.images.eviction.free", lambda home: 1 << 40)
    with small_disk(tmp_path / "small", 400 * KIB) as disk:
        there = store_in(disk / "home")
        with pytest.raises(EncampError) as raised:
            fetch(there, server)
        assert raised.value.code is Code.DISK_FULL
        assert "filled up" in raised.value.sentence
        assert there.ls() == []
        assert 0 < part_of(there, image) < SIZE


@root_only
@pytest.mark.parametrize("seen", [True, False], ids=["foreseen", "not foreseen"])
def test_a_push_to_a_full_disk_leaves_nothing(
    tmp_path: Path,
    here: ImageStore,
    image: Image,
    seen: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with small_disk(tmp_path / "small", 400 * KIB) as disk:
        repository = Repository.open(str(disk))
        if not seen:
            monkeypatch.setattr(repository.medium, "room", lambda: None)
        with pytest.raises(EncampError) as raised:
            push(here, repository, "analysis", Silent())
        assert raised.value.code is Code.DISK_FULL
        assert str(disk) in raised.value.sentence
        left = [path for path in disk.rglob("*") if path.is_file() and path.name != ".lock"]
        assert left == []
        assert repository.index().images == {}


# ── as documented ────────────────────────────────────────────────────────────────────────────────


def test_the_documented_server_lets_all_read_and_some_write(
    tmp_path: Path, here: ImageStore, there: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = (ROOT / "docs" / "repositories.md").read_text()
    block = document.partition("```nginx\n")[2].partition("```")[0]
    (tmp_path / "users").write_text("anna:{PLAIN}geheim\n")
    block = block.replace("/etc/nginx/images.users", str(tmp_path / "users"))
    block = block.replace("root /srv;", f"root {tmp_path}/srv;")
    (tmp_path / "srv").mkdir()
    make_image(here, "analysis")
    netrc = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(netrc))
    with nginx(tmp_path, block) as server:
        repository = Repository.open(f"{server.url}/images")
        with pytest.raises(EncampError) as raised:
            push(here, repository, "analysis", Silent())
        assert raised.value.code is Code.NOT_PERMITTED
        netrc.write_text("machine 127.0.0.1 login anna password geheim\n")
        netrc.chmod(0o600)
        push(here, repository, "analysis", Silent())
        netrc.unlink()
        there.check(pull(there, repository, "analysis", Silent()))


MEASURED = """
import resource
def used():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
import encamp.images.pulling, encamp.images.repository_http, tests.images.stock
before = used()
"""


def test_a_pull_takes_little_memory(tmp_path: Path, here: ImageStore, there: ImageStore) -> None:
    (tmp_path / "www").mkdir()
    make_image(here, "analysis", size=128 << 20)
    push(here, Repository.open(str(tmp_path / "www")), "analysis", Silent())
    script = MEASURED + textwrap.dedent(SCRIPT) + "print(used() - before)"
    with nginx(tmp_path) as server:
        done = subprocess.run(
            [sys.executable, "-c", script, there.home.root, server.url],
            check=True,
            capture_output=True,
        )
    assert int(done.stdout) < 40 * KIB  # KiB, so 40 MiB


class Beginner:
    """A server's file that is always wrong in its end, and has to be begun anew."""

    validator = '"same"'

    def __init__(self, size: int, start: int) -> None:
        self.size, self.start = size, start
        # What was there before is always good for one more try.
        self.left = size - 1 if start == 0 else size - start

    def read(self, most: int) -> bytes:
        count = min(most, self.left)
        self.left -= count
        return bytes(count)


def test_a_server_that_is_wrong_again_and_again_is_given_up(
    there: ImageStore, server: Odd, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try gets further by more than enough to count as a good one."""
    monkeypatch.setattr(transfer, "ADVANCE", 1)
    medium = Repository.open(server.url).medium
    asked: list[int] = []

    @contextlib.contextmanager
    def wrong(path: str, offset: int = 0, validator: str = "") -> Iterator[Beginner]:
        asked.append(offset)
        assert len(asked) < 20
        yield Beginner(4096, offset)

    monkeypatch.setattr(medium, "open", wrong)
    file = ImageFile("root.squashfs", 4096, "1" * 64)
    target = transfer.partial(there.home, image.digest, file)
    with pytest.raises(EncampError) as raised:
        transfer.receive(medium, "images/x", file, target, Meter(Silent(), "pulling", 4096))
    assert raised.value.code is Code.CORRUPT
    assert asked.count(0) == 2


def drip_head(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")


def drip_body(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")


@pytest.mark.parametrize("begin", [drip_head, drip_body])
def test_a_server_that_drips_is_not_waited_for(begin: Callable[[socket.socket], None]) -> None:
    """It sends a byte long before it would count as silent."""
    done = threading.Event()

    def serve(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(9999)
            begin(connection)
            while not done.wait(0.05):
                connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=serve, args=(listening,))
        serving.start()
        try:
            where = f"http://127.0.0.1:{listening.getsockname()[1]}"
            with pytest.raises(EncampError) as raised:
                Repository.open(where, 0.3).index()
            assert raised.value.code is Code.UNREACHABLE
            assert raised.value.transient
            assert "not there after" in raised.value.sentence
        finally:
            done.set()
            serving.join()


@pytest.mark.parametrize("target", ["http://[bad", "http://a..b/x"])
def test_an_address_that_cannot_be_one_is_called_that(
    there: ImageStore, server: Odd, target: str
) -> None:
    def elsewhere(handler: Handler) -> bool:
        handler.send_response(302)
        handler.send_header("Location", target)
        handler.end_headers()
        return True

    server.misbehave = elsewhere
    for ask in (
        lambda: fetch(there, server),
        lambda: Repository.open(target).index(),
    ):
        with pytest.raises(EncampError) as raised:
            ask()
        assert not raised.value.transient


def test_what_a_server_says_does_not_reach_the_terminal_raw(there: ImageStore, server: Odd) -> None:
    def colours(handler: Handler) -> bool:
        handler.wfile.write(b"HTTP/1.1 \x1b[31mEVIL\x1b[0m 200\r\n\r\n")
        handler.close_connection = True
        return True

    server.misbehave = colours
    with pytest.raises(EncampError) as raised:
        fetch(there, server)
    assert "EVIL" in raised.value.sentence
    assert raised.value.sentence.isprintable()
