"""`encamp image`: every command, as people type it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main

from encamp import programs
from encamp.cli.main import application
from encamp.home import SYSTEM_HOME
from encamp.images.store import ImageStore
from encamp.model.errors import Code
from tests.conftest import ENCAMP
from tests.images.stock import make_image, store_in

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def listed(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """What `ls --json` printed, without the images that root has built for everybody here."""
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return [one for one in found if not (SYSTEM_HOME / "images" / one["digest"]).is_dir()]


@pytest.fixture
def here(tmp_path: Path) -> ImageStore:
    return store_in(tmp_path / "here")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "repository").mkdir()
    return tmp_path / "repository"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs `encamp image` in a home of this test, by that home's name."""

    def run(
        *words: str | Path, home: str = "here", settings: str = "", code: int = 0, input: str = ""
    ) -> subprocess.CompletedProcess[str]:
        configuration = tmp_path / f"configuration-{home}"
        configuration.mkdir(exist_ok=True)
        (configuration / "settings.yaml").write_text(settings or "{}")
        done = subprocess.run(
            [ENCAMP, "image", *words],
            env={
                **os.environ,
                "ENCAMP_HOME": str(tmp_path / home),
                "ENCAMP_USER_CONFIG": str(configuration),
                "ENCAMP_DEBUG": "1",
            },
            input=input,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done

    return run


def test_an_image_travels_from_one_host_to_another(
    run: Run, here: ImageStore, repository: Path
) -> None:
    base = make_image(here, "base")
    image = make_image(here, "analysis", over=base)
    assert run("push", "analysis", repository, "--as", "analysis:1").stdout.split() == [
        *("analysis", "analysis:1", image.digest)
    ]
    offered = json.loads(run("ls", "--from", repository, "--json").stdout)
    assert {(one["name"], one["version"], one["digest"]) for one in offered} == {
        ("analysis", None, image.digest),
        ("analysis", "1", image.digest),
        ("", None, base.digest),
    }
    configured = f"repositories: [{repository}]"
    pulled = run("pull", "analysis", home="there", settings=configured).stdout
    assert pulled.split() == ["analysis", image.digest]
    there = listed(run("ls", "--json", home="there"))
    (below, top, version) = sorted(there, key=lambda one: (one["name"], one["version"] or ""))
    assert (top["name"], top["parent"], top["form"]) == ("analysis", base.digest, "layer")
    assert (version["version"], below["form"]) == ("1", "root")
    assert top["origin"] == str(repository)
    shown = run("show", "analysis:1", home="there").stdout
    for expected in (image.digest, base.digest, str(repository), "root.squashfs", "no machine"):
        assert expected in shown
    verified = run("verify", "--all", home="there").stdout.splitlines()
    assert {f"{one.digest} good" for one in (base, image)} <= set(verified)
    assert run("verify", "analysis", "--from", repository).stdout.count("good") == 1


def test_the_table_fits_a_reader(run: Run, here: ImageStore) -> None:
    make_image(here, "analysis", version="1.0")
    lines = run("ls").stdout.splitlines()
    assert lines[0].split() == [
        *("name", "version", "digest", "parent", "kind", "kernel", "size", "used", "by")
    ]
    assert ["analysis", "1.0"] in [line.split()[:2] for line in lines[3:]]
    assert max(map(len, lines)) < 120


def test_damage_is_found_by_verify(run: Run, here: ImageStore, repository: Path) -> None:
    good, bad = make_image(here, "good"), make_image(here, "bad")
    run("push", "bad", repository)
    bad.root.chmod(0o644)
    bad.root.write_bytes(bytes(bad.root.stat().st_size))
    done = run("verify", "good", "bad", code=Code.CORRUPT.value)
    assert done.stdout.split() == ["good", good.digest, "good"]
    assert "Image 'bad' is damaged" in done.stderr
    assert json.loads(run("verify", "--all", "--json", code=65).stdout)[good.digest] == "good"
    run("push", "bad", repository, code=Code.CORRUPT.value)
    run("pull", "bad", "--from", repository)
    run("verify", "--all")


def test_names_are_given_and_taken(run: Run, here: ImageStore) -> None:
    image = make_image(here, "analysis")
    assert run("tag", image.digest[:8], "other:2").stdout.split() == ["other:2", image.digest]
    names = {one["name"] for one in listed(run("ls", "--json"))}
    assert names == {"analysis", "other"}
    run("untag", "analysis")
    run("untag", "analysis", code=Code.INPUT_MISSING.value)
    run("tag", "other", "../evil", code=Code.USAGE.value)
    removed = json.loads(run("rm", "other", "--json").stdout)
    assert removed == {"names": ["other", "other:2"], "digest": image.digest}
    assert listed(run("ls", "--json")) == []


def test_clearing_tells_what_it_frees(run: Run, here: ImageStore) -> None:
    image = make_image(here, "analysis")
    run("untag", "analysis")
    assert run("gc").stdout == "0 B freed.\n"
    dry = run("gc", "--keep-days", "0", "--dry-run").stdout
    assert f"image {image.digest[:12]}" in dry
    assert dry.endswith("could be freed.\n")
    assert run("gc", "--keep-days", "0").stdout.replace("freed", "could be freed") == dry
    assert here.ls() == []


def test_signed_images_are_the_only_ones_where_that_is_required(
    run: Run, here: ImageStore, repository: Path, tmp_path: Path
) -> None:
    key, public = tmp_path / "site.key", tmp_path / "site.pub"
    programs.run(["minisign", "-G", "-W", "-p", public, "-s", key], purpose="making a key")
    image = make_image(here, "analysis")
    run("push", "analysis", repository)
    strict = f"repositories: [{repository}]\nsignatures: {{required: true, keys: [{public}]}}"
    refused = run("pull", "analysis", home="there", settings=strict, code=Code.UNTRUSTED.value)
    assert "not signed" in refused.stderr
    assert run("sign", "analysis", "--key", key).stdout.split() == ["analysis", image.digest]
    run("push", "analysis", repository, "--key", key)
    run("pull", "analysis", home="there", settings=strict)
    assert "signed" in run("show", "analysis", home="there").stdout


def test_a_limit_that_nothing_fits_into_is_told_with_figures(
    run: Run, here: ImageStore, repository: Path
) -> None:
    make_image(here, "analysis", size=2 << 20)
    run("push", "analysis", repository)
    settings = f"repositories: [{repository}]\nimage_limit: 1M"
    done = run("pull", "analysis", home="there", settings=settings, code=Code.NO_ROOM.value)
    assert "2.0 MiB are needed" in done.stderr
    assert "1 MiB" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["pull", "analysis"], "no repository is configured"),
        (["pull", "../x", "--from", "/tmp"], "does not name an image"),
        (["show", "nothing"], "no image 'nothing'"),
        (["verify"], "Which image?"),
        (["push", "nothing", "/nowhere"], "no image 'nothing'"),
        (["pull", "x", "--from", "/nowhere"], "not there"),
        (["ls", "--from", "ftp://x"], "cannot be a repository"),
        (["sign", "x", "--key", "/nowhere"], "Cannot read /nowhere"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    run: Run, here: ImageStore, words: list[str], says: str, tmp_path: Path
) -> None:
    environment = {**os.environ, "ENCAMP_HOME": str(tmp_path / "here")}
    environment["ENCAMP_USER_CONFIG"] = str(tmp_path)
    done = subprocess.run(
        [ENCAMP, "image", *words], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode in {code.value for code in Code}
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_every_command_explains_itself() -> None:
    commands = typer.main.get_command(application()).commands["image"].commands  # type: ignore[attr-defined]
    assert len(commands) == 11
    for name, command in commands.items():
        assert len(command.help.split()) > 7, name
        assert "--json" in {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize("days", ["nan", "inf", "-1"])
def test_days_are_a_number(run: Run, here: ImageStore, days: str) -> None:
    run("gc", "--keep-days", days, code=64)


def test_a_version_is_replaced_only_if_that_is_meant(
    run: Run, here: ImageStore, repository: Path, tmp_path: Path
) -> None:
    own = make_image(store_in(tmp_path / "there"), "analysis", version="1", seed=1)
    image = make_image(here, "analysis", version="1", seed=2)
    run("push", "analysis:1", repository)
    code = Code.WRONG_STATE.value
    said = run("pull", "analysis:1", "--from", repository, home="there", code=code).stderr
    assert own.digest[:12] in said
    run("pull", "analysis:1", "--from", repository, "--force", home="there")
    assert image.digest in run("tag", image.digest[:12], "other:1", home="there").stdout


def test_signing_with_the_public_key_is_explained(
    run: Run, here: ImageStore, tmp_path: Path
) -> None:
    make_image(here, "analysis")
    public, secret = tmp_path / "site.pub", tmp_path / "site.key"
    programs.run(["minisign", "-G", "-W", "-p", public, "-s", secret], purpose="making a key")
    said = run("sign", "analysis", "--key", public, code=Code.INPUT_MISSING.value).stderr
    assert "public key" in said
