"""What an installation changes is undone exactly: whenever it was cut short, and whatever others
have done in between."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from encamp.batch.install import applying, planning, recording, slurm
from encamp.batch.install.changes import Change, State
from encamp.model.errors import Code, EncampError
from tests.batch.install.conftest import Host, nothing_told

CONF = """\
ClusterName=x
JobSubmitPlugins=partition
# the end, without a new line"""
OWN_SCRIPT = "function slurm_job_submit() return slurm.SUCCESS end\nreturn slurm.SUCCESS\n"


@pytest.fixture
def prepared(host: Host) -> Host:
    host.write("slurm.conf", CONF, 0o640)
    os.chown(host.conf, 7, 8)
    host.write("job_submit.lua", OWN_SCRIPT, 0o600)
    return host


pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root sets a batch system up")


def test_all_is_as_before_after_it_was_undone(prepared: Host) -> None:
    before = prepared.snapshot()
    prepared.install()
    assert prepared.snapshot() != before
    assert prepared.uninstall() == []
    assert prepared.snapshot() == before


def test_a_second_installation_changes_nothing(prepared: Host) -> None:
    prepared.install()
    after = prepared.snapshot()
    assert prepared.plan().changes == ()
    prepared.install()
    assert {
        path: entry for path, entry in prepared.snapshot().items() if "installed" not in path
    } == {path: entry for path, entry in after.items() if "installed" not in path}


def test_installed_twice_with_other_rules_it_is_undone_to_the_first_state(prepared: Host) -> None:
    before = prepared.snapshot()
    prepared.install()
    settings = prepared.site / "batch.yaml"
    settings.write_text("system: slurm\nrules: [{queue: long, environment: mini}]\n")
    plan = prepared.install()
    assert [type(change).__name__ for change in plan.changes] == ["File"]
    assert prepared.uninstall() == []
    assert settings.exists(), "batch.yaml is the administrator's now"
    settings.unlink()
    assert prepared.snapshot() == before


def test_lines_that_others_have_added_since_stay(prepared: Host) -> None:
    prepared.install()
    prepared.conf.write_text(prepared.conf.read_text() + "\nNodeName=n9\n")
    assert prepared.uninstall() == []
    assert prepared.conf.read_text() == CONF + "\nNodeName=n9\n"


def test_a_line_that_others_have_changed_since_is_left_and_told(prepared: Host) -> None:
    prepared.install()
    text = prepared.conf.read_text().replace("partition,lua", "partition,lua,throttle")
    prepared.conf.write_text(text)
    kept = prepared.uninstall()
    assert [(each.change.key, each.reason) for each in kept] == [
        (
            f"line {prepared.conf} JobSubmitPlugins=partition,lua",
            "somebody else has changed it since",
        )
    ]
    assert prepared.conf.read_text() == text
    assert not prepared.prefix.exists(), "the rest is undone"
    assert (prepared.slurm / "job_submit.lua").read_text() == OWN_SCRIPT
    assert prepared.uninstall() == kept, "it is still known"
    prepared.uninstall(forget=True)
    assert recording.all_installed() == []


def test_a_line_of_ours_that_others_have_changed_since_is_left_and_told(prepared: Host) -> None:
    prepared.conf.write_text(prepared.conf.read_text().replace("JobSubmitPlugins=", "#"))
    prepared.install()
    text = prepared.conf.read_text().replace("JobSubmitPlugins=lua", "JobSubmitPlugins=lua,cray")
    prepared.conf.write_text(text)
    assert [each.change.key for each in prepared.uninstall()] == [
        f"line {prepared.conf} JobSubmitPlugins=lua"
    ]
    assert prepared.conf.read_text() == text
    prepared.conf.write_text(text.replace("JobSubmitPlugins=lua,cray", ""))
    assert prepared.uninstall() == []


def test_what_others_have_put_in_place_of_ours_is_not_overwritten(prepared: Host) -> None:
    prepared.install()
    script = prepared.slurm / "job_submit.lua"
    script.unlink()
    script.write_text("return slurm.SUCCESS -- from configuration management\n")
    with pytest.raises(EncampError) as refused:
        prepared.install()
    assert refused.value.code is Code.WRONG_STATE
    kept = prepared.uninstall()
    assert [each.change.key for each in kept] == [f"file {script}"]
    assert script.read_text().endswith("configuration management\n")
    assert (prepared.slurm / "job_submit_site.lua").read_text() == OWN_SCRIPT


def test_what_a_site_changes_in_its_own_script_survives(prepared: Host) -> None:
    prepared.install()
    (prepared.slurm / "job_submit_site.lua").write_text("-- newer\n")
    assert prepared.uninstall() == []
    assert (prepared.slurm / "job_submit.lua").read_text() == "-- newer\n"
    assert not (prepared.slurm / "job_submit_site.lua").exists()


def test_a_directory_that_others_use_stays(prepared: Host) -> None:
    prepared.install()
    (prepared.prefix / "theirs").touch()
    assert prepared.uninstall() == []
    assert [path.name for path in prepared.prefix.iterdir()] == ["theirs"]


def test_a_link_to_the_configuration_stays_one(prepared: Host) -> None:
    real = prepared.directory / "shared.conf"
    prepared.conf.rename(real)
    prepared.conf.symlink_to(real)
    before = prepared.snapshot()
    prepared.install()
    assert prepared.conf.is_symlink()
    assert "JobSubmitPlugins=partition,lua" in real.read_text()
    prepared.uninstall()
    assert prepared.snapshot() == before


def test_a_site_is_the_same_whatever_link_leads_to_its_directory(prepared: Host) -> None:
    before = prepared.snapshot()
    prepared.install()
    other = prepared.directory.parent / "by-another-name"
    other.symlink_to(prepared.conf.parent)
    try:
        assert planning.named(str(other / prepared.conf.name)) == str(prepared.conf.resolve())
    finally:
        other.unlink()
    prepared.uninstall()
    assert prepared.snapshot() == before


@pytest.fixture
def linked(prepared: Host) -> Host:
    """The site's own script is somewhere else."""
    (prepared.directory / "shared").mkdir()
    script = prepared.slurm / "job_submit.lua"
    script.rename(prepared.directory / "shared" / "submit.lua")
    script.symlink_to("../shared/submit.lua")
    return prepared


def test_a_script_that_is_a_link_stays_as_it_is_where_it_leads_to(linked: Host) -> None:
    before = linked.snapshot()
    linked.install()
    own, real = linked.slurm / "job_submit_site.lua", linked.directory / "shared" / "submit.lua"
    assert real.read_text() == OWN_SCRIPT
    assert own.samefile(real)
    assert slurm.MARK in (linked.slurm / "job_submit.lua").read_bytes()
    assert linked.plan().changes == ()
    assert linked.uninstall() == []
    assert linked.snapshot() == before


def test_a_script_that_is_a_link_comes_back_though_it_leads_nowhere_by_now(linked: Host) -> None:
    linked.install()
    (linked.directory / "shared" / "submit.lua").unlink()
    assert linked.uninstall() == []
    assert (linked.slurm / "job_submit.lua").readlink() == Path("../shared/submit.lua")


def test_a_script_that_is_a_link_to_nowhere_is_not_overwritten(linked: Host) -> None:
    (linked.directory / "shared" / "submit.lua").unlink()
    before = linked.snapshot()
    with pytest.raises(EncampError) as refused:
        linked.install()
    assert refused.value.code is Code.WRONG_STATE
    recording.directory().rmdir()
    assert linked.snapshot() == before


def test_files_are_put_beside_the_name_of_a_configuration_that_is_a_link(prepared: Host) -> None:
    """Slurm looks for them there, and not where the link leads to."""
    (prepared.directory / "shared").mkdir()
    real = prepared.directory / "shared" / "slurm.conf"
    prepared.conf.rename(real)
    prepared.conf.symlink_to(real)
    before = prepared.snapshot()
    prepared.install(spank=True)
    assert [path.name for path in real.parent.iterdir()] == ["slurm.conf"]
    there = {path.name for path in prepared.slurm.iterdir()}
    assert there >= {"job_submit.lua", "job_submit_site.lua", "encamp_rules.lua", "plugstack.conf"}
    assert f"conf: {prepared.conf}" in (prepared.site / "batch.yaml").read_text()
    assert prepared.uninstall() == []
    assert prepared.snapshot() == before


def test_a_directory_for_settings_that_was_not_there_goes_again(prepared: Host) -> None:
    prepared.site.rmdir()
    before = prepared.snapshot()
    prepared.install()
    assert (prepared.site / "batch.yaml").exists()
    assert prepared.uninstall() == []
    assert prepared.snapshot() == before


def test_a_place_that_cannot_be_written_is_told(prepared: Host) -> None:
    before = prepared.snapshot()
    prepared.prefix.parent.symlink_to("/proc/nowhere")
    with pytest.raises(EncampError) as caught:
        prepared.install()
    assert "encamp batch uninstall" in caught.value.hint
    prepared.uninstall()
    prepared.prefix.parent.unlink()
    assert prepared.snapshot() == before


def test_a_controller_without_the_plugin_is_warned_of(prepared: Host) -> None:
    plugins = prepared.directory / "plugins"
    plugins.mkdir()
    prepared.conf.write_text(f"{CONF}\nPluginDir={plugins}:/nowhere\n")
    assert "slurm-wlm-basic-plugins" in prepared.plan().warnings[0]
    (plugins / "job_submit_lua.so").touch()
    assert not any("slurm-wlm-basic-plugins" in each for each in prepared.plan().warnings)


def killed(act: Callable[[], object], *, at: str, number: int) -> bool:
    """Do something in a process that is killed on the spot when a function is called so many times;
    False: it was not called as often."""
    pid = os.fork()
    if pid == 0:
        try:
            _die_at(at, number)
            act()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)


def _die_at(at: str, number: int) -> None:
    """The function is about to be called for the last time."""
    owner: object = Path if at == "replace" else os
    real = getattr(owner, at)
    calls = 0

    def deadly(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)

    setattr(owner, at, deadly)


@pytest.mark.parametrize("script", ["prepared", "linked"])
@pytest.mark.parametrize("at", ["replace", "link", "fsync"])
def test_an_installation_that_was_killed_is_undone(
    request: pytest.FixtureRequest, script: str, at: str
) -> None:
    prepared: Host = request.getfixturevalue(script)
    before = prepared.snapshot()
    plan = prepared.plan()
    deaths = 0
    while killed(lambda: recording.install(plan, nothing_told), at=at, number=deaths + 1):
        deaths += 1
        if recording.all_installed():
            assert prepared.uninstall() == []
        settle(prepared)
        assert prepared.snapshot() == before, f"killed at call {deaths} of {at}"
    assert deaths >= (1 if at == "link" else 5)
    assert prepared.uninstall() == []
    assert prepared.snapshot() == before


@pytest.mark.parametrize("script", ["prepared", "linked"])
@pytest.mark.parametrize("at", ["replace", "fsync", "rmdir"])
def test_undoing_that_was_killed_is_finished_by_the_next(
    request: pytest.FixtureRequest, script: str, at: str
) -> None:
    prepared: Host = request.getfixturevalue(script)
    before = prepared.snapshot()
    deaths = 0
    while True:
        prepared.install()
        if not killed(prepared.uninstall, at=at, number=deaths + 1):
            break
        deaths += 1
        if recording.all_installed():
            assert prepared.uninstall() == []
        settle(prepared)
        assert prepared.snapshot() == before, f"killed at call {deaths} of {at}"
    assert deaths >= 1
    assert prepared.snapshot() == before


def settle(host: Host) -> None:
    """A call that died before it wrote anything down leaves at most its own empty directory, which
    the next call uses."""
    left = recording.directory()
    if left.is_dir():
        for path in left.iterdir():
            assert path.name.endswith(applying.UNFINISHED)
            path.unlink()
        left.rmdir()


def test_changes_are_told_before_they_are_made(prepared: Host) -> None:
    told: list[str] = []

    def tell(change: Change) -> None:
        assert applying.state(recording_of(change)) is State.BEFORE
        told.append(change.key)

    def recording_of(change: Change) -> Change:
        return next(each for each in prepared.recorded().changes if each.key == change.key)

    recording.install(prepared.plan(), tell)
    assert f"file {prepared.slurm}/job_submit.lua" in told
