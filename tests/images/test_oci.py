"""Containers' images: made by umoci and skopeo, from disk and from a registry, and by hand."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import json
import socket
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from encamp import programs
from encamp.home import Home
from encamp.images import build_oci, oci, oci_layout, tree
from encamp.images.building import inputs_of
from encamp.images.portion import Portion
from encamp.images.store import ImageStore
from encamp.images.tree import Entries
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.model.recipe import Kind, Recipe
from encamp.progress import Silent
from tests.conftest import Encamp
from tests.images.conftest import left_over

BUSYBOX = "bin/busybox"


def run(*words: str | Path) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=60)


def read(source: Path, place: Path) -> Entries:
    with oci_layout.opened(source, place) as layout:
        container = oci.container(layout)
        return build_oci.read_container(layout, container, str(source), place, Portion(Silent()))


@pytest.fixture(scope="module")
def layout(built: Home, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layout of two layers, made by umoci: BusyBox, and what was changed over it."""
    place = tmp_path_factory.mktemp("oci")
    image = ImageStore(built, shared=None).resolve("mini")
    assert image is not None
    root = place / "root"
    run("unsquashfs", "-d", root, image.root)
    (root / "etc" / "gone").write_text("")
    (root / "opt" / "old").mkdir()
    (root / "opt" / "old" / "file").write_text("")
    (root / "srv").mkdir()
    (root / "srv" / "old").write_text("")
    upper = place / "upper"
    upper.mkdir()
    (upper / "greeting").write_text("hello from a container\n")
    name = f"{place / 'layout'}:test"
    run("umoci", "init", "--layout", place / "layout")
    run("umoci", "new", "--image", name)
    run("umoci", "insert", "--image", name, root, "/")
    run("umoci", "insert", "--image", name, upper / "greeting", "/etc/greeting")
    run("umoci", "insert", "--image", name, "--whiteout", "/etc/gone")
    run("umoci", "insert", "--image", name, "--whiteout", "/opt/old")
    run("umoci", "insert", "--image", name, "--opaque", upper, "/srv")
    run(
        *("umoci", "config", "--image", name, "--architecture", "amd64", "--os", "linux"),
        *("--config.env", "GREETING=hello=world", "--config.workingdir", "/srv"),
        *("--config.cmd", "cat", "--config.user", "nobody"),
    )
    return place / "layout"


def test_layers_are_put_over_one_another(layout: Path, tmp_path: Path) -> None:
    entries = read(layout, tmp_path)
    assert BUSYBOX in entries
    assert entries["etc/greeting"].size == 23
    assert "etc/gone" not in entries
    assert not any(path.startswith("opt/old") for path in entries)
    assert {path for path in entries if path.startswith("srv")} == {"srv", "srv/greeting"}
    assert not any(".wh." in path for path in entries)


def test_all_forms_on_disk_give_the_same_tree(layout: Path, tmp_path: Path) -> None:
    wanted = tree.tree_digest(read(layout, tmp_path))
    saved, archive = tmp_path / "saved.tar", tmp_path / "oci.tar"
    run("skopeo", "copy", f"oci:{layout}:test", f"docker-archive:{saved}:some/name:tag")
    run("skopeo", "copy", f"oci:{layout}:test", f"oci-archive:{archive}:test")
    run("skopeo", "copy", "--dest-compress-format", "zstd", f"oci:{layout}:test",
        f"oci:{tmp_path / 'zstd'}:test")  # fmt: skip
    packed = tmp_path / "saved.tar.gz"
    packed.write_bytes(gzip.compress(saved.read_bytes(), 1))
    for source in (saved, archive, packed, tmp_path / "zstd"):
        place = tmp_path / f"place-{source.name}"
        place.mkdir()
        assert tree.tree_digest(read(source, place)) == wanted, source


def test_a_changed_layer_is_noticed(layout: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    run("cp", "-r", layout, copy)
    largest = max((copy / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    with pytest.raises(EncampError) as raised:
        read(copy, tmp_path)
    assert raised.value.code is Code.CORRUPT
    assert largest.name in raised.value.sentence


def test_a_changed_manifest_is_noticed(layout: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    run("cp", "-r", layout, copy)
    named = json.loads((copy / "index.json").read_text())["manifests"][0]["digest"]
    path = copy / "blobs" / "sha256" / named.partition(":")[2]
    path.write_text(path.read_text() + " ")
    with pytest.raises(EncampError) as raised:
        read(copy, tmp_path)
    assert raised.value.code is Code.CORRUPT


def test_a_link_in_a_layout_does_not_lead_to_the_hosts_files(layout: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    run("cp", "-r", layout, copy)
    (copy / "index.json").unlink()
    (copy / "index.json").symlink_to("/etc/passwd")
    with pytest.raises(EncampError, match="neither an OCI layout"):
        read(copy, tmp_path)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "a/../../secret", "link/secret"])
def test_names_in_a_layout_do_not_lead_to_the_hosts_files(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text("{}")
    layout = tmp_path / "layout"
    layout.mkdir()
    (layout / "link").symlink_to(tmp_path)
    (layout / "manifest.json").write_text(json.dumps([{"Config": name, "Layers": []}]))
    with pytest.raises(EncampError) as raised:
        read(layout, tmp_path)
    assert name in raised.value.sentence


# ── made by hand ─────────────────────────────────────────────────────────────────────────────────


class Made:
    """A layout put together by hand."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "blobs" / "sha256").mkdir(parents=True)
        (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')

    def blob(self, data: bytes) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (self.directory / "blobs" / "sha256" / digest).write_bytes(data)
        return {"digest": f"sha256:{digest}", "size": len(data)}

    def image(self, *layers: bytes, architecture: str = "amd64") -> dict[str, object]:
        ids = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
        configuration = {
            "os": "linux",
            "architecture": architecture,
            "rootfs": {"type": "layers", "diff_ids": ids},
        }
        manifest = {
            "config": self.blob(json.dumps(configuration).encode()),
            "layers": [self.blob(gzip.compress(layer)) for layer in layers],
        }
        return self.blob(json.dumps(manifest).encode())

    def index(self, *manifests: dict[str, object]) -> Path:
        (self.directory / "index.json").write_text(json.dumps({"manifests": manifests}))
        return self.directory


def layer(*members: tuple[str, bytes, str]) -> bytes:
    """An archive of (name, type, link or content)."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as out:
        for name, kind, what in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            if kind == tarfile.REGTYPE:
                member.size = len(what)
                out.addfile(member, io.BytesIO(what.encode()))
            else:
                member.linkname = what
                out.addfile(member)
    return file.getvalue()


SHELL = layer(("bin/sh", tarfile.REGTYPE, "#!"))


def test_the_image_for_our_machines_is_chosen_out_of_several(tmp_path: Path) -> None:
    made = Made(tmp_path / "made")
    ours = {**made.image(SHELL), "platform": {"os": "linux", "architecture": "amd64"}}
    others = made.image(layer(("bin/other", tarfile.REGTYPE, "")), architecture="arm64")
    theirs = {**others, "platform": {"os": "linux", "architecture": "arm64"}}
    nested = made.blob(json.dumps({"manifests": [theirs, ours]}).encode())
    assert set(read(made.index(nested), tmp_path)) == {"", "bin", "bin/sh"}
    with pytest.raises(EncampError, match="no image for linux/amd64"):
        read(made.index(theirs), tmp_path)
    with pytest.raises(EncampError, match="it is for linux/arm64"):
        read(made.index(others), tmp_path)


def test_several_images_of_which_any_would_do_are_named(tmp_path: Path) -> None:
    made = Made(tmp_path / "made")
    key = "org.opencontainers.image.ref.name"
    one = {**made.image(SHELL), "annotations": {key: "one"}}
    two = {**made.image(SHELL, SHELL), "annotations": {key: "two"}}
    with pytest.raises(EncampError, match="several images in it: one, two"):
        read(made.index(one, two), tmp_path)


def test_a_link_may_lead_to_a_file_of_a_layer_below(tmp_path: Path) -> None:
    made = Made(tmp_path / "made")
    upper = layer(("bin/ash", tarfile.LNKTYPE, "bin/sh"))
    entries = read(made.index(made.image(SHELL, upper)), tmp_path)
    assert entries["bin/ash"] == entries["bin/sh"]


def test_a_layer_cannot_write_through_a_link_of_another(tmp_path: Path) -> None:
    made = Made(tmp_path / "made")
    lower = layer(("bin/sh", tarfile.REGTYPE, "#!"), ("out", tarfile.SYMTYPE, "/etc"))
    upper = layer(("out/shadow", tarfile.REGTYPE, "root::"))
    with pytest.raises(EncampError, match="'out/shadow' lies below 'out'"):
        read(made.index(made.image(lower, upper)), tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("{", "'index.json' makes no sense"),
        ('{"manifests": []}', "no image for linux/amd64"),
        ('{"manifests": [{"digest": "sha256:../../etc/passwd"}]}', "no SHA-256 digest"),
        ('{"manifests": [{"digest": "md5:abc"}]}', "no SHA-256 digest"),
        (f'{{"manifests": [{{"digest": "sha256:{"0" * 64}"}}]}}', "is missing"),
    ],
)
def test_an_index_that_makes_no_sense_is_refused(tmp_path: Path, change: str, says: str) -> None:
    made = Made(tmp_path / "made")
    (made.directory / "index.json").write_text(change)
    with pytest.raises(EncampError, match=says):
        read(made.directory, tmp_path)


def test_an_index_that_leads_in_circles_ends(tmp_path: Path) -> None:
    made = Made(tmp_path / "made")
    descriptor = made.image(SHELL)
    for _ in range(6):
        descriptor = made.blob(json.dumps({"manifests": [descriptor]}).encode())
    with pytest.raises(EncampError, match="leads to no image"):
        read(made.index(descriptor), tmp_path)


# ── as images ────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def registry(place: Path) -> Iterator[str]:
    """A registry on this host; where it listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{probe.getsockname()[1]}"
    configuration = place / "registry.yml"
    configuration.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {place}/registry}}}}\n"
        f"http: {{addr: '{where}'}}\n"
    )
    command = [str(programs.find("docker-registry")), "serve", str(configuration)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as server:
        try:
            host, port = where.split(":")
            until = time.monotonic() + 30
            while True:
                try:
                    socket.create_connection((host, int(port)), 1).close()
                    break
                except OSError:
                    assert time.monotonic() < until
                    time.sleep(0.05)
            yield where
        finally:
            server.terminate()


def image_of(home: Home, source: str, name: str = "container") -> Image:
    recipe = Recipe(name=name, kind=Kind.OCI, source=source)
    return ImageStore(home, shared=None).ensure(recipe)


@pytest.mark.site
def test_an_image_from_a_registry_is_the_one_on_disk(
    stocked: Home, layout: Path, tmp_path: Path
) -> None:
    with registry(tmp_path) as where:
        reference = f"docker://{where}/some/name:tag"
        run("skopeo", "copy", "--dest-tls-verify=false", f"oci:{layout}:test", reference)
        fetched = image_of(stocked, reference)
        with pytest.raises(EncampError) as raised:
            image_of(stocked, f"docker://{where}/some/name:other")
        assert "does not have it" in raised.value.sentence
        assert raised.value.detail == ""
    assert left_over(stocked) == []
    assert fetched.defaults.variables["GREETING"] == "hello=world"
    assert fetched.defaults.workdir == "/srv"
    assert fetched.defaults.command == ("cat",)
    assert fetched.defaults.user == "nobody"
    assert image_of(stocked, str(layout), "other").digest == fetched.digest


@pytest.mark.site
def test_a_registry_that_is_not_there_is_an_error_with_its_name(stocked: Home) -> None:
    with pytest.raises(EncampError) as raised:
        image_of(stocked, "docker://127.0.0.1:9/some/name:tag")
    assert raised.value.code is Code.BUILD_FAILED
    assert "The registry 127.0.0.1:9 cannot be reached" in raised.value.sentence
    assert left_over(stocked) == []


def test_a_reference_without_its_scheme_is_told_how_it_is_written(tmp_path: Path) -> None:
    """It is read as a path."""
    source = str(tmp_path / "docker.io/library/alpine:3")
    with pytest.raises(EncampError) as raised:
        inputs_of(Recipe(name="container", kind=Kind.OCI, source=source), None)
    assert raised.value.code is Code.INPUT_MISSING
    assert f"'{source}' cannot be read" in raised.value.sentence
    assert "docker://docker.io/library/alpine:3" in raised.value.hint


@pytest.mark.site
def test_a_registry_that_wants_a_password_is_told_how_to_get_it(stocked: Home) -> None:
    class Refusing(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="images"')
            self.end_headers()

        def log_message(self, *words: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            where = f"127.0.0.1:{server.server_port}"
            with pytest.raises(EncampError) as raised:
                image_of(stocked, f"docker://{where}/some/name:tag")
        finally:
            server.shutdown()
            thread.join()
    assert "does not give it to us" in raised.value.sentence
    assert f"skopeo login {where}" in raised.value.hint
    assert raised.value.detail == ""


def test_only_registries_on_this_host_do_without_encryption() -> None:
    assert build_oci.on_this_host("127.0.0.1:5000")
    assert build_oci.on_this_host("localhost")
    assert build_oci.on_this_host("[::1]:5000")
    assert not build_oci.on_this_host("registry.example.org:5000")
    assert not build_oci.on_this_host("localhost.example.org")
    assert not build_oci.on_this_host("192.0.2.1")


@pytest.mark.site
def test_a_container_runs_as_a_machine(site_home: Home, encamp: Encamp, layout: Path) -> None:
    image_of(site_home, str(layout), "contained")
    try:
        done = encamp("run", "--image", "contained", "--", "cat", "/etc/greeting")
        assert done.stdout == b"hello from a container\n"
        # Its own command is `cat`.
        own = encamp("run", "--image", "contained", input=b"what it was given\n")
        assert own.stdout == b"what it was given\n"
    finally:
        ImageStore(site_home, shared=None).rm("contained")
