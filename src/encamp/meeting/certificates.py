"""The certificate of an agent's meeting point, and how clients recognise it.

Nobody vouches for it: the agent tells the manager its fingerprint over the bus, where it has to
prove who it is, and the manager tells clients. `openssl` makes it; it is on every host that has
certificates of others to check, and a library for one call in a host's life would be dear.
"""

from __future__ import annotations

import hashlib
import hmac
import ssl
import tempfile
from pathlib import Path

from encamp import programs
from encamp.model.errors import Code, EncampError

YEARS = 50
"""It is recognised by its fingerprint, not by its age."""

KEY = "meeting.key"
CERTIFICATE = "meeting.crt"


class Certificate:
    """A certificate and its key, in files of the agent's."""

    def __init__(self, directory: Path) -> None:
        self.key = directory / KEY
        self.certificate = directory / CERTIFICATE

    def make(self, name: str) -> None:
        """Unless it is there: those who know its fingerprint would not know another."""
        if self.certificate.exists() and self.key.exists():
            return
        directory = self.certificate.parent
        with tempfile.TemporaryDirectory(dir=directory, prefix=".meeting-") as place:
            key, certificate = Path(place) / KEY, Path(place) / CERTIFICATE
            programs.run(
                [
                    *(programs.find("openssl"), "req", "-x509", "-batch", "-nodes"),
                    *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
                    *("-days", str(YEARS * 365), "-subj", f"/CN={name}"),
                    *("-keyout", key, "-out", certificate),
                ],
                purpose="Making the certificate of the meeting point",
                code=Code.CONFIGURATION,
            )
            key.chmod(0o600)
            # Whoever finds the certificate finds its key.
            key.rename(self.key)
            certificate.rename(self.certificate)

    def fingerprint(self) -> str:
        try:
            text = self.certificate.read_text()
            return hashlib.sha256(ssl.PEM_cert_to_DER_cert(text)).hexdigest()
        except (OSError, ValueError) as error:
            raise EncampError(
                Code.CONFIGURATION,
                f"The certificate {self.certificate} cannot be read: {error}.",
                "Remove it, and its key beside it: another is made when the agent starts.",
            ) from error

    def server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # A client comes with a ticket, not with the memory of an earlier visit.
        context.num_tickets = 0
        try:
            context.load_cert_chain(self.certificate, self.key)
        except OSError as error:
            raise EncampError(
                Code.CONFIGURATION,
                f"The certificate {self.certificate} and its key cannot be used: {error}.",
                "Remove both: others are made when the agent starts.",
            ) from error
        return context


def client_context() -> ssl.SSLContext:
    """Encrypts, and leaves it to `check_fingerprint` to recognise the other side."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def check_fingerprint(found: ssl.SSLObject | None, expected: str, where: str) -> None:
    """Before anything is said to it: is this the agent that the manager spoke of?"""
    certificate = None if found is None else found.getpeercert(binary_form=True)
    fingerprint = "" if certificate is None else hashlib.sha256(certificate).hexdigest()
    if not expected or not hmac.compare_digest(fingerprint.encode(), expected.encode()):
        raise EncampError(
            Code.UNTRUSTED,
            f"Whoever answers at {where} is not the agent that the manager knows there.",
            "Something stands between, or its certificate was just replaced; nothing was told it.",
            transient=True,
        )


def is_loopback(address: str) -> bool:
    return address in {"localhost", "::1"} or address.startswith("127.")
