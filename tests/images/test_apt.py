"""Debian's archive as the host reaches it, without whatever else the host's sources name."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from encamp.images import apt
from encamp.images.apt import Apt, Source, host_sources, sources_for
from encamp.images.portion import Portion
from encamp.model.errors import Code, EncampError
from tests.builds import Told


def uris(*pairs: tuple[str, str]) -> str:
    return "".join(
        f"'{uri}/dists/{suite}/{part}' file 0 \n"
        for uri, suite in pairs
        for part in ("InRelease", "main/binary-amd64/Packages.xz", "main/binary-all/Packages.xz")
    )


def test_updates_and_security_are_used_and_nothing_else() -> None:
    said = uris(
        ("http://mirror/debian", "bookworm"),
        ("http://mirror/debian", "bookworm-updates"),
        ("http://mirror/debian", "bookworm-backports"),
        ("http://mirror/debian-security", "bookworm-security"),
        ("http://elsewhere/apt", "bookworm"),
        ("http://elsewhere/debian", "bookworm-pgdg"),
        ("http://elsewhere/apt/debian", "bookworm/product/7.0"),
    )
    assert sources_for("bookworm", said) == (
        Source("http://mirror/debian", "bookworm"),
        Source("http://mirror/debian", "bookworm-updates"),
        Source("http://mirror/debian-security", "bookworm-security"),
    )


def test_a_host_on_another_release_uses_its_own_mirrors() -> None:
    said = uris(("http://mirror/debian", "trixie"), ("http://mirror/security", "trixie-security"))
    assert sources_for("bookworm", said) == (
        Source("http://mirror/debian", "bookworm"),
        Source("http://mirror/security", "bookworm-security"),
    )


def test_without_the_release_itself_there_is_no_archive() -> None:
    assert sources_for("bookworm", uris(("http://mirror/debian", "bookworm-updates"))) == ()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that this test's apt takes for the host's further sources."""
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    configuration = tmp_path / "apt.conf"
    configuration.write_text(f'Dir::Etc::sourceparts "{parts}";\nDir::Etc::sourcelist "/dev/null";')
    monkeypatch.setenv("APT_CONFIG", str(configuration))
    return parts


@pytest.mark.site
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("one.list", "deb http://mirror.invalid/debian bookworm main contrib\n"),
        (
            "one.sources",
            "Types: deb\nURIs: http://mirror.invalid/debian\nSuites: bookworm\nComponents: main\n",
        ),
    ],
)
def test_both_ways_to_write_sources_are_read(host: Path, name: str, text: str) -> None:
    (host / name).write_text(text)
    (host / "other.list").write_text("deb http://other.invalid/linux/debian bookworm stable\n")
    assert host_sources("bookworm") == (Source("http://mirror.invalid/debian", "bookworm"),)


@pytest.mark.site
def test_mirrors_that_cannot_be_reached_are_told_of_without_waiting_for_apt(
    host: Path, tmp_path: Path, told: Told
) -> None:
    (host / "one.list").write_text("deb http://127.0.0.1:9/debian bookworm main\n")
    with pytest.raises(EncampError) as raised:
        Apt(tmp_path / "apt", "bookworm").update(Portion(told))
    assert raised.value.code is Code.BUILD_FAILED
    assert "127.0.0.1: Connection refused" in raised.value.sentence


@pytest.mark.site
def test_a_host_without_debians_archive_is_told_so(host: Path) -> None:
    (host / "other.list").write_text("deb http://other.invalid/apt noble main\n")
    with pytest.raises(EncampError) as raised:
        host_sources("bookworm")
    assert raised.value.code is Code.CONFIGURATION


@pytest.mark.site
def test_the_hosts_proxies_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configuration = tmp_path / "apt.conf"
    configuration.write_text(
        'Acquire::http::Proxy "http://proxy.invalid:3128";\n'
        'Acquire::https::mirror.invalid::Verify-Peer "true";\n'
        'Acquire::Retries "5";\n'
        'Acquire::AllowInsecureRepositories "true";\n'
    )
    monkeypatch.setenv("APT_CONFIG", str(configuration))
    settings = apt.acquire_settings()
    assert 'Acquire::http::Proxy "http://proxy.invalid:3128";' in settings
    assert 'Acquire::https::mirror.invalid::Verify-Peer "true";' in settings
    assert 'Acquire::Retries "5";' in settings
    assert not any("Insecure" in line for line in settings)


@pytest.mark.site
def test_a_suite_that_no_mirror_has_is_said_to_be_none(
    host: Path, tmp_path: Path, told: Told
) -> None:
    a_repository(tmp_path / "debian", signed=True)
    (host / "one.list").write_text(f"deb file:{tmp_path}/debian bookworm main\n")
    (tmp_path / "apt").mkdir()
    with pytest.raises(EncampError) as raised:
        Apt(tmp_path / "apt", "nosuchsuite").update(Portion(told))
    assert raised.value.code is Code.CONFIGURATION
    mirror = f"file:{tmp_path}/debian"
    assert raised.value.sentence == f"There is no suite 'nosuchsuite' of Debian at {mirror}."
    assert "bookworm" in raised.value.hint
    assert raised.value.detail == ""


@pytest.mark.site
def test_what_apt_says_is_told_without_its_reports_of_progress(host: Path, tmp_path: Path) -> None:
    (host / "one.list").write_text("deb http://127.0.0.1:9/debian bookworm main\n")
    (tmp_path / "apt").mkdir()
    with pytest.raises(EncampError) as raised:
        Apt(tmp_path / "apt", "bookworm").fetch_lists(Portion(Told()))
    assert "Connection refused" in raised.value.detail
    assert "dlstatus" not in raised.value.detail


def a_repository(directory: Path, signed: bool) -> None:
    """A repository that looks like Debian's archive and is not."""
    index = directory / "dists/bookworm/main/binary-amd64/Packages"
    index.parent.mkdir(parents=True)
    index.write_text("")
    release = (
        "Origin: Debian\nSuite: bookworm\nCodename: bookworm\nArchitectures: amd64\n"
        "Components: main\nDate: Sat, 10 Jun 2023 00:00:00 UTC\nSHA256:\n"
        f" {hashlib.sha256(b'').hexdigest()} 0 main/binary-amd64/Packages\n"
    )
    name = "InRelease" if signed else "Release"
    (directory / "dists/bookworm" / name).write_text(release)


@pytest.mark.site
@pytest.mark.parametrize("signed", [True, False])
def test_only_debian_can_vouch_for_debian(
    host: Path, tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch, signed: bool
) -> None:
    a_repository(tmp_path / "debian", signed)
    (host / "strange.list").write_text(f"deb [trusted=yes] file:{tmp_path}/debian bookworm main\n")
    (tmp_path / "apt").mkdir()
    private = Apt(tmp_path / "apt", "bookworm")
    with pytest.raises(EncampError) as raised:
        private.update(Portion(told))
    assert raised.value.code is Code.CONFIGURATION
    assert "signed by Debian" in raised.value.sentence
