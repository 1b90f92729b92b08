"""Settings of a site and of its user: what each may say, and who has the last word."""

from __future__ import annotations

import pytest

from encamp.describe.settings import load_settings
from encamp.model.errors import Code, EncampError
from encamp.model.link import Bridge
from encamp.model.settings import Settings, Signatures
from encamp.model.size import MIB
from tests.describe.conftest import Host, root_only

KEY, OTHER = "RW" + "A" * 54, "RW" + "B" * 54


def refused() -> EncampError:
    with pytest.raises(EncampError) as caught:
        load_settings()
    assert caught.value.code is Code.CONFIGURATION
    return caught.value


def test_nothing_is_set_without_files(host: Host) -> None:
    assert load_settings() == Settings()


@root_only
def test_everything_can_be_set(host: Host) -> None:
    host.write(
        host.site,
        f"""
        repositories: [/srv/images, https://images.example/encamp, pool]
        redirects: [files.example, "node2:8080"]
        in_place: true
        image_limit: 20G
        template_limit: 3G
        signatures:
          required: true
          keys: [{KEY}, site.pub]
        volume_group: fast
        thin_pool: machines
        bridge:
          name: br0
          addresses: 10.9.0.16-10.9.0.31/24
          gateway: 10.9.0.1
          hosts: {{controller: 10.9.0.2}}
        """,
        "settings.yaml",
    )
    assert load_settings() == Settings(
        repositories=("/srv/images", "https://images.example/encamp", f"{host.site}/pool"),
        redirects=("files.example", "node2:8080"),
        in_place=True,
        image_limit=20 * 1024 * MIB,
        template_limit=3 * 1024 * MIB,
        signatures=Signatures(required=True, keys=(KEY, f"{host.site}/site.pub")),
        volume_group="fast",
        thin_pool="machines",
        bridge=Bridge(
            name="br0",
            addresses="10.9.0.16-10.9.0.31/24",
            gateway="10.9.0.1",
            hosts={"controller": "10.9.0.2"},
        ),
    )
    assert load_settings() == load_settings()


@root_only
def test_user_adds_to_the_sites_settings(host: Host) -> None:
    host.write(host.site, f"repositories: /srv\nsignatures: {{keys: {KEY}}}", "settings.yaml")
    host.write(
        host.user,
        f"repositories: [/mine, /srv]\nsignatures: {{required: true, keys: {OTHER}}}",
        "settings.yaml",
    )
    settings = load_settings()
    assert settings.repositories == ("/srv", "/mine")
    assert settings.signatures == Signatures(required=True, keys=(KEY, OTHER))


@root_only
def test_user_cannot_take_back_what_the_site_requires(host: Host) -> None:
    host.write(
        host.site,
        f"image_limit: 1G\nsignatures: {{required: true, keys: {KEY}}}",
        "settings.yaml",
    )
    host.write(
        host.user,
        f"image_limit: 5G\nsignatures: {{required: false, keys: {OTHER}}}",
        "settings.yaml",
    )
    settings = load_settings()
    assert settings.signatures == Signatures(required=True, keys=(KEY,))
    assert settings.image_limit == 1024 * MIB


@pytest.mark.parametrize("name", ["volume_group", "thin_pool"])
def test_volumes_are_the_sites_business(host: Host, name: str) -> None:
    path = host.write(host.user, f"{name}: x", "settings.yaml")
    assert refused().detail == (
        f"{path}:1:1: '{name}' may only be written in the files of the site's administrators"
    )


def test_all_mistakes_are_told_at_once(host: Host) -> None:
    path = host.write(
        host.user,
        """\
        repositries: [/srv]
        image_limit: lots
        signatures: {required: yes, keys: "ftp://x"}
        repositories: ["${x}", "ftp://host/x"]
        """,
        "settings.yaml",
    )
    assert refused().detail.splitlines() == [
        (
            f"{path}:1:1: there is no attribute 'repositries' in settings;"
            " did you mean 'repositories'?"
        ),
        f"{path}:2:14: a size such as 20G is expected here, not 'lots'",
        (
            f"{path}:3:24: true or false is expected here, not 'yes', which means different things"
            " to different readers of YAML"
        ),
        f"{path}:3:35: minisign's public key, or its file, is expected here, not 'ftp://x'",
        f"{path}:4:16: there are no references in settings",
        f"{path}:4:24: a directory or a URL is expected here, not 'ftp://host/x'",
    ]


def test_settings_that_others_could_have_written_are_refused(host: Host) -> None:
    host.write(host.user, "image_limit: 1G", "settings.yaml").chmod(0o666)
    assert "can be written to by others" in refused().sentence


def test_limit_can_be_lowered_for_one_command(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.write(host.user, "image_limit: 1G", "settings.yaml")
    monkeypatch.setenv("ENCAMP_IMAGE_LIMIT", "200M")
    assert load_settings().image_limit == 200 * MIB
    monkeypatch.setenv("ENCAMP_IMAGE_LIMIT", "9G")
    assert load_settings().image_limit == 1024 * MIB


@root_only
@pytest.mark.parametrize("whose", ["site", "user"])
def test_settings_that_cannot_be_looked_at_are_not_taken_for_none(host: Host, whose: str) -> None:
    directory = getattr(host, whose)
    directory.mkdir(exist_ok=True)
    loop = directory / "settings.yaml"
    loop.symlink_to(loop)
    assert str(loop) in refused().sentence
    loop.unlink()
    assert load_settings() == Settings()


@root_only
@pytest.mark.parametrize(
    ("addresses", "said"),
    [
        ("10.9.0.31-10.9.0.16/24", "ends before it begins"),
        ("10.9.0.16-10.9.1.31/24", "leads out of 10.9.0.0/24"),
        ("10.9.0.1-10.9.0.31/24", "an address that somebody has"),
        ("10.9.0.16-10.9.0.300/24", "10.9.0.300"),
        ("10.9.0.16", "a range such as"),
    ],
)
def test_addresses_of_a_bridge_must_fit_together(host: Host, addresses: str, said: str) -> None:
    bridge = f"bridge: {{name: br0, addresses: {addresses}, gateway: 10.9.0.1}}"
    host.write(host.site, bridge, "settings.yaml")
    assert said in refused().detail


@root_only
def test_bridge_is_for_administrators_to_name(host: Host) -> None:
    host.write(host.user, "bridge: {name: br0, addresses: 10.9.0.16/24}", "settings.yaml")
    assert "may only be written in the files of the site's administrators" in refused().detail
