"""Servers with a certificate: everything is encrypted, and only the right server is spoken to."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from encamp.bus import secret
from encamp.bus.opening import open_bus
from encamp.bus.server_file import Encryption
from encamp.manager.joining import join
from encamp.model.errors import Code, EncampError
from encamp.model.site import EVERYBODY, MANAGER, Site
from tests.bus.meeting import Kept, Watched, ignore, until
from tests.bus.nats_server import DEBIAN, WHEEL, NatsSite, nats_server, nats_site
from tests.bus.participant import participant


def certificate(directory: Path, name: str) -> Encryption:
    """One that vouches for itself."""
    key, made = directory / f"{name}.key", directory / f"{name}.pem"
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    about = ["-addext", "subjectAltName=IP:127.0.0.1", "-subj", f"/CN={name}"]
    words: list[str | Path] = [
        "openssl",
        "req",
        "-x509",
        *kind,
        *about,
        "-keyout",
        key,
        "-out",
        made,
    ]
    subprocess.run(words, check=True, capture_output=True)
    return Encryption(str(made), str(key), str(made))


@pytest.fixture(scope="module", params=[1, 3], ids=["one", "cluster"])
def encrypted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NatsSite]:
    directory = tmp_path_factory.mktemp("encrypted")
    encryption = certificate(directory, "server")
    authority = encryption.certificate
    with nats_site(
        directory, count=request.param, encryption=encryption, authority=authority
    ) as site:
        yield site


async def test_a_site_with_a_certificate_is_joined_by_its_secret_alone(
    encrypted: NatsSite, tmp_path: Path
) -> None:
    kept = Kept()
    invitation = secret.unpack(encrypted.enrolment.add("n1", (), None))
    join(tmp_path, invitation)
    assert all(url.startswith("tls://") for url in invitation.bus)
    n1 = Site(
        bus=invitation.bus,
        credential=str(tmp_path / "credentials" / "{name}.creds"),
        authority=str(tmp_path / "authority.pem"),
    )
    async with (
        open_bus(encrypted.manager(), MANAGER, (), kept),
        open_bus(n1, "n1", (EVERYBODY,), ignore) as bus,
    ):
        await bus.request(MANAGER, b"x" * 1_000_000)
    assert len(kept.messages) == 1


async def test_a_server_whose_certificate_is_not_trusted_is_not_spoken_to(
    encrypted: NatsSite, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = certificate(tmp_path, "other")
    site = msgspec.structs.replace(encrypted.manager(), authority=other.certificate)
    with pytest.raises(EncampError, match="No server of the bus answers") as caught:
        async with open_bus(site, MANAGER, (), ignore, patience=1.5):
            pass
    assert caught.value.code is Code.UNREACHABLE
    assert "CERTIFICATE_VERIFY_FAILED" in caught.value.hint


async def test_a_server_that_does_not_encrypt_is_not_spoken_to_by_a_tls_address(
    tmp_path: Path,
) -> None:
    with nats_server(tmp_path) as server:
        site = Site(bus=(server.url.replace("nats:", "tls:"),))
        with pytest.raises(EncampError, match="does not encrypt") as caught:
            async with open_bus(site, "a", (), ignore, patience=5):
                pass
        assert caught.value.code is Code.UNTRUSTED


@pytest.mark.parametrize("program", [DEBIAN, WHEEL], ids=["debian", "wheel"])
async def test_when_an_encrypted_server_is_killed_and_started_again_everybody_goes_on(
    tmp_path: Path, program: str, caplog: pytest.LogCaptureFixture
) -> None:
    encryption = certificate(tmp_path, "server")
    kept, watched, file = Kept(), Watched(), tmp_path / "kept"
    with (
        nats_site(
            tmp_path, program=program, encryption=encryption, authority=encryption.certificate
        ) as site,
        participant(site.member("far"), "far", file),
    ):
        async with (
            open_bus(site.manager(), MANAGER, (), kept) as manager,
            open_bus(site.member("n1"), "n1", (), ignore) as n1,
        ):
            await manager.watch(watched)
            await until(lambda: watched.of("far") and watched.of("n1"))
            for number in range(2):
                assert await manager.request("far", b"%d" % number) == b"%d" % (2 * number)
                site.server.stop()
                waiting = asyncio.create_task(manager.request("far", b"meanwhile", timeout=60))
                await asyncio.to_thread(site.server.start)
                assert await waiting == b"%d" % (2 * number + 1)
                await n1.send(MANAGER, b"%d" % number, timeout=60)
            await until(lambda: len(kept.messages) == 2)
    assert kept.bodies == [b"0", b"1"]
    assert "eof_received" not in caplog.text


async def test_an_encrypted_connection_can_be_closed_while_its_server_is_away(
    tmp_path: Path,
) -> None:
    encryption = certificate(tmp_path, "server")
    with nats_site(tmp_path, encryption=encryption, authority=encryption.certificate) as site:
        bus = open_bus(site.manager(), MANAGER, (), ignore)
        await bus.__aenter__()
        site.server.stop()
        await asyncio.sleep(0.5)
        async with asyncio.timeout(20):
            await bus.__aexit__(None, None, None)


async def test_whoever_is_removed_from_an_encrypted_site_is_told_so(tmp_path: Path) -> None:
    encryption = certificate(tmp_path, "server")
    with nats_site(tmp_path, encryption=encryption, authority=encryption.certificate) as site:
        invitation = secret.unpack(site.enrolment.add("n1", (), None))
        join(tmp_path / "n1", invitation)
        n1 = Site(
            bus=invitation.bus,
            credential=str(tmp_path / "n1" / "credentials" / "{name}.creds"),
            authority=encryption.certificate,
            presence=site.presence,
        )
        async with open_bus(n1, "n1", (EVERYBODY,), ignore) as bus:
            site.enrolment.remove("n1")
            site.server.reload()
            async with asyncio.timeout(60):
                reason = await bus.ended()
    assert reason.code is Code.NOT_PERMITTED
    assert "refuses the credential" in reason.sentence
