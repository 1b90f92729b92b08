"""`encamp batch check`, and what is said on a host that has no batch system."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ENCAMP

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root chooses the site's files")


def encamp(site: Path, *words: str, user: str = "root") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ENCAMP, "batch", *words],
        env={**os.environ, "ENCAMP_SITE_CONFIG": str(site)},
        user=user,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def write(site: Path, text: str) -> Path:
    path = site / "batch.yaml"
    path.write_text(text)
    path.chmod(0o644)
    return path


def test_what_is_in_effect_is_shown(tmp_path: Path) -> None:
    write(tmp_path, "system: slurm\nrules: [{queue: long, user: alice, environment: mini}]\n")
    done = encamp(tmp_path, "check")
    assert done.returncode == 0, done.stderr
    assert "queue long and user alice: mini" in done.stdout
    assert "512 MiB of memory or 1 GiB of disk" in done.stdout
    shown = json.loads(encamp(tmp_path, "check", "--json").stdout)
    assert (shown["shares"], shown["tries"]) == (["/home"], 3)


def test_mistakes_are_told_with_their_places(tmp_path: Path) -> None:
    path = write(tmp_path, "system: slurm\ntires: 3\n")
    done = encamp(tmp_path, "check")
    assert done.returncode == 78
    assert f"{path}:2:1: there is no attribute 'tires'" in done.stderr
    assert "did you mean 'tries'?" in done.stderr


def test_a_draft_is_checked_wherever_it_is(tmp_path: Path) -> None:
    draft = tmp_path / "draft.yaml"
    draft.write_text("system: slurm\nrules: [{environment: nosuch}]\n")
    done = encamp(tmp_path, "check", str(draft))
    assert done.returncode == 0
    assert "No environment 'nosuch' is described on this host" in done.stderr
    assert encamp(tmp_path, "check", str(tmp_path / "none.yaml")).returncode == 66


def test_what_may_not_be_meant_so_is_remarked(tmp_path: Path) -> None:
    rule = (
        "rules: [{user: nosuch-user, group: nosuch-group, environment: mini}]\nshares: [/nowhere]"
    )
    programs = "programs: {conf: /nowhere/slurm.conf}\nbait_feature: slurm-node"
    write(tmp_path, f"system: slurm\n{rule}\n{programs}\nenvironments: [mini, sl7]\n")
    done = encamp(tmp_path, "check")
    assert done.returncode == 0
    assert "No environment 'sl7' is described on this host, but 'environments'" in done.stderr
    assert "conf is /nowhere/slurm.conf, and there is no such thing" in done.stderr
    assert "'shares' names /nowhere, and there is no such directory" in done.stderr
    assert "A rule is for user 'nosuch-user', which this host does not know." in done.stderr
    assert "A rule is for group 'nosuch-group', which this host does not know." in done.stderr
    assert "'bait_feature' is slurm-node, which is also an environment." in done.stderr
    assert "mini, sl7" in done.stdout


def test_mistake_in_what_describes_environments_is_told_too(tmp_path: Path) -> None:
    path = write(tmp_path, "system: slurm\n").with_name("environments.yaml")
    path.write_text("extra: {extends: mini, descripton: new}\n")
    path.chmod(0o644)
    done = encamp(tmp_path, "check")
    assert done.returncode == 78
    assert f"{path}:1:" in done.stderr


def test_an_unknown_batch_system_is_told_with_those_that_are_known(tmp_path: Path) -> None:
    write(tmp_path, "system: slrum\n")
    done = encamp(tmp_path, "check")
    assert done.returncode == 78
    assert "Did you mean 'slurm'?" in done.stderr
    assert encamp(tmp_path, "install", "lsf").returncode == 78


@pytest.mark.parametrize("words", ["check", "status", "open", "close"])
def test_without_a_batch_system_it_says_how_to_get_one(tmp_path: Path, words: str) -> None:
    done = encamp(tmp_path, words)
    assert done.returncode == 78
    assert "encamp batch install" in done.stderr


@pytest.mark.parametrize(
    "words", [["nodes"], ["leave", "n1"], ["offer", "slurm-node"], ["suspend", "n1"]]
)
def test_worker_nodes_are_not_everybodys(tmp_path: Path, words: list[str]) -> None:
    done = encamp(tmp_path, *words, user="nobody")
    assert (done.returncode, done.stdout) == (77, "")
    assert "Worker nodes are root's." in done.stderr


def test_node_that_is_not_there_is_said_to_be_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENCAMP_HOME", str(tmp_path / "home"))
    done = encamp(tmp_path, "leave", "n1")
    assert "There is no worker node 'n1' on this host." in done.stderr
    assert "encamp batch nodes" in done.stderr


def test_nothing_can_be_undone_where_nothing_was_done(tmp_path: Path) -> None:
    done = encamp(tmp_path, "uninstall", "--yes")
    assert done.returncode == 79
    assert str(tmp_path / "batch-installed") in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_where_the_starter_was_put_can_be_named_and_must_be_right_then(tmp_path: Path) -> None:
    site, prefix = tmp_path / "etc", tmp_path / "lib"
    site.mkdir()
    words = ("install", "slurm", "--node", f"--prefix={prefix}", "--yes")
    assert encamp(site, *words).returncode == 0
    assert (prefix / "encamp-starter").exists()
    done = encamp(site, "uninstall", f"--prefix={tmp_path}", "--yes")
    assert (done.returncode, (prefix / "encamp-starter").exists()) == (64, True)
    assert f"The starter is in {prefix}." in done.stderr
    assert encamp(site, "uninstall", f"--prefix={prefix}", "--yes").returncode == 0
    assert not prefix.exists()
