"""`encamp env`, as a person uses it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from encamp.describe.environments import UnreadError
from encamp.home import Home
from encamp.model.errors import Code, EncampError
from tests.cli.sample_manager import Answering, answered
from tests.cli.sample_site import Site
from tests.conftest import ENCAMP


class Desk:
    """A directory to work in, with `encamp` in a home of its own."""

    def __init__(self, directory: Path) -> None:
        self.here = directory / "here"
        self.here.mkdir()
        self.file = self.here / "environments.yaml"
        self.variables = {
            "ENCAMP_HOME": str(Home(directory / "home").prepare().root),
            "ENCAMP_USER_CONFIG": str(directory / "user"),
            "ENCAMP_SITE_CONFIG": str(directory / "site"),
            "ENCAMP_DEBUG": "1",
        }

    def write(self, text: str, name: str = "environments.yaml") -> None:
        path = self.here / name
        path.write_text(text)
        path.chmod(0o644)

    def env(self, *words: str, code: int = 0) -> tuple[str, str]:
        """What `encamp env` prints, and what it says on standard error."""
        done = subprocess.run(
            [ENCAMP, "env", *words],
            capture_output=True,
            text=True,
            cwd=self.here,
            env={**os.environ, **self.variables},
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stdout, done.stderr


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_environments_are_listed_with_their_files(desk: Desk) -> None:
    desk.write("mine: {extends: mini, cpus: 3, summary: My own}")
    printed, said = desk.env("ls")
    rows = {line.split()[0]: line for line in printed.splitlines()[2:]}
    shipped = ["mini", "debian12", "debian11", "debian13", "scientific"]
    assert list(rows) == [*shipped, "slurm-node", "gridengine-node", "mine"]
    assert "(shipped)" in rows["mini"]
    assert "./environments.yaml" in rows["mine"]
    assert "3 cpu, 128 MiB" in rows["mine"]
    assert "My own" in rows["mine"]
    assert said == ""
    found = json.loads(desk.env("ls", "--json")[0])
    assert found[-1]["name"] == "mine"


def test_listing_shows_what_can_be_used_and_then_what_is_wrong(desk: Desk) -> None:
    desk.write("mine: {extends: mini}\nbad: {extends: mini, cpus: none}")
    printed, said = desk.env("ls", code=78)
    assert "mine" in printed
    assert "\nbad " not in printed
    assert f"  | {desk.file}:2:28: a number from 1 is expected here, not 'none'" in said
    desk.file.chmod(0o666)
    assert "not read" in desk.env("ls")[1]


def test_what_of_ones_own_is_not_listed_beside_the_sites_is_said(desk: Desk) -> None:
    door = desk.here / "manager.sock"
    desk.variables["ENCAMP_DOOR"] = str(door)
    with answered(door, Answering(Site(time.time()))):
        desk.write("tools: {extends: mini}\nmine: {extends: mini}")
        printed, said = desk.env("ls")
        assert [line.split()[0] for line in printed.splitlines()[2:]] == ["tools", "mine"]
        assert said == (
            f"encamp: not listed: {desk.file} describes 'tools', and so does the site.\n"
        )
        desk.write("x: [")
        said = desk.env("ls")[1]
        assert said.startswith(f"encamp: not listed: {desk.file}:2:1: ")
        assert said.count("\n") == 1
        desk.write("mine: {extends: mini, cpus: no}\nnothing: {cpus: none}")
        printed, said = desk.env("ls")
        assert "mine" not in printed
        assert f"{desk.file}:1:29: " in said
        assert "more mistakes" in said


def test_what_is_wrong_with_the_sites_files_is_said_below_what_is_known(desk: Desk) -> None:
    door = desk.here / "manager.sock"
    desk.variables["ENCAMP_DOOR"] = str(door)
    manager = Answering(Site(time.time()))
    with answered(door, manager):
        manager.wrong = UnreadError(["/etc/environments.yaml:2:1: this is not YAML."])
        printed, said = desk.env("ls")
        assert [line.split()[0] for line in printed.splitlines()[2:]] == ["tools"]
        assert said == f"encamp: {manager.wrong.sentence}\n"
        sentence, place = "There is a mistake in /etc/environments.yaml.", "environments.yaml:1:1:"
        manager.wrong = EncampError(Code.CONFIGURATION, sentence, detail=place)
        assert desk.env("ls")[1] == f"encamp: {sentence} {place}\n"
        assert json.loads(desk.env("ls", "--json")[0])[0]["name"] == "tools"
        manager.wrong = EncampError(Code.NOT_PERMITTED, "You may not.")
        desk.env("ls", code=77)


def test_mistake_in_ones_own_file_is_told_and_not_that_it_should_be_written(desk: Desk) -> None:
    desk.write("a: [")
    said = desk.env("show", "a", code=78)[1]
    assert f"There is a mistake in {desk.file}." in said
    assert f"{desk.file}:2:1: this is not YAML" in said


def test_own_environment_that_extends_the_sites_is_listed_without_complaint(desk: Desk) -> None:
    door = desk.here / "manager.sock"
    desk.variables["ENCAMP_DOOR"] = str(door)
    desk.write("tools2: {extends: tools}")
    with answered(door, Answering(Site(time.time()))):
        printed, said = desk.env("ls")
    assert "extends what the site describes: tools" in printed
    assert said == ""


def test_environment_is_shown_as_it_was_written(desk: Desk) -> None:
    desk.write("a: {extends: mini}\n\n# b\nb:\n  extends: a  # so\n  cpus: 2\n\n# end\n")
    assert desk.env("show", "b")[0] == f"# {desk.file}:4:1\nb:\n  extends: a  # so\n  cpus: 2\n"


def test_resolved_environment_tells_where_every_value_is_from(desk: Desk) -> None:
    desk.write("part:\n  abstract: true\n  memory: 1G\nmine:\n  extends: [mini, part]\n  cpus: 2\n")
    shown = {
        line.split("#")[0].strip(): line.partition("# ")[2]
        for line in desk.env("show", "mine", "--resolved")[0].splitlines()
    }
    assert shown["cpus: 2"] == f"{desk.file}:6:9"
    assert shown["memory: 1G"] == f"{desk.file}:3:11"
    assert shown["network: none"] == "default"
    assert shown["name: mini"] == "default"
    assert shown["packages: [busybox-static]"].endswith("describe/environments.yaml:7:15")
    told = json.loads(desk.env("show", "mine", "--resolved", "--json")[0])
    assert told["cpus"] == {"value": "2", "from": f"{desk.file}:6:9"}
    assert told["ready.timeout"] == {"value": "2m", "from": "default"}
    assert json.loads(desk.env("show", "mine", "--json")[0])["size"]["cpus"] == 2


def test_list_that_was_added_to_tells_all_it_is_from(desk: Desk) -> None:
    desk.write(
        "a: {extends: mini, classes: [x]}\nb: {extends: a, classes+: y}\n"
        "c: {extends: b, classes+: '${a.classes}'}\n"
    )
    told = json.loads(desk.env("show", "c", "--resolved", "--json")[0])["classes"]
    places = ("1:29", "2:27", "3:27")
    assert told["value"] == ["x", "y", "x"]
    assert told["from"] == ", ".join(f"{desk.file}:{place}" for place in places)


def test_abstract_environment_can_be_looked_at(desk: Desk) -> None:
    desk.write("part: {abstract: true, memory: 1G}\n")
    assert "abstract: true" in desk.env("show", "part")[0]
    assert "memory: 1G" in desk.env("show", "part", "--resolved")[0]
    desk.env("show", "part", "--json", code=64)


def test_unknown_environment_is_told_with_the_nearest(desk: Desk) -> None:
    assert "Did you mean 'scientific'" in desk.env("show", "sientific", code=67)[1]


def test_files_in_order_are_counted(desk: Desk) -> None:
    desk.write("mine: {extends: mini}\n")
    assert f"{desk.file}: 1 environment in order" in desk.env("check")[0].splitlines()
    assert desk.env("check", "environments.yaml")[0] == (
        "environments.yaml: 1 environment in order\n"
    )


def test_all_mistakes_of_all_files_are_told(desk: Desk) -> None:
    desk.write("a: {extends: mini, cpsu: 2}\n", "one.yaml")
    desk.write("a: {extends: mini}\n", "two.yaml")
    desk.write("mini: {image: x}\n", "three.yaml")
    printed, said = desk.env("check", "one.yaml", "two.yaml", "three.yaml", code=78)
    assert printed == "two.yaml: 1 environment in order\n"
    assert "one.yaml:1:20: there is no attribute 'cpsu' in an environment; did you mean" in said
    assert "three.yaml:1:1: 'mini' is described already" in said
    assert "encamp: There are mistakes in 2 files." in said
    assert "There is no file four.yaml" in desk.env("check", "four.yaml", code=66)[1]


def test_settings_are_checked_too(desk: Desk) -> None:
    settings = Path(desk.variables["ENCAMP_USER_CONFIG"]) / "settings.yaml"
    settings.parent.mkdir()
    settings.write_text("image_limit: 1X\n")
    settings.chmod(0o600)
    assert f"{settings}:1:14: a size" in desk.env("check", code=78)[1]


def test_draft_of_the_sites_file_is_judged_as_such(desk: Desk) -> None:
    desk.write("gpu: {extends: mini, qemu: [-s]}\n", "draft.yaml")
    desk.env("check", "draft.yaml", code=78)
    desk.env("check", "--site", "draft.yaml")


def test_schema_is_printed(desk: Desk) -> None:
    assert "environments.yaml" in json.loads(desk.env("schema")[0])["title"]
    assert "settings.yaml" in json.loads(desk.env("schema", "--settings")[0])["title"]


def test_abstract_environment_without_an_image_to_start_from_is_shown(desk: Desk) -> None:
    desk.write("numpy: {abstract: true, image: {packages: [python3-numpy]}}")
    printed, _ = desk.env("show", "numpy", "--resolved")
    assert "python3-numpy" in printed
    assert "name" not in printed


def test_directory_cannot_be_checked(desk: Desk) -> None:
    _, said = desk.env("check", str(desk.here), code=66)
    assert "is not a file" in said
