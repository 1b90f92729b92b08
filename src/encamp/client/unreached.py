"""Why nobody could be spoken with at an address, in words."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator

import httpx

from encamp.model.errors import Code, EncampError


def unreached(error: Exception, where: str) -> EncampError | str:
    """A sentence's end; or an error of its own, if trying again cannot help."""
    for cause in _causes(error):
        match cause:
            case ssl.SSLCertVerificationError():
                return EncampError(
                    Code.UNTRUSTED,
                    f"The certificate of {where} is not trusted: {_lower(cause.verify_message)}.",
                    "Ask an administrator of the site for the certificate that vouches for it"
                    " ('certificate' of 'api' in the manager's site.yaml, or its authority's), and"
                    " give it with --authority or ENCAMP_AUTHORITY.",
                )
            case ssl.SSLError() if cause.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
                return EncampError(
                    Code.UNREACHABLE,
                    f"What answers at {where} does not speak TLS.",
                    "A manager without a certificate is at an http:// address, on its own host.",
                )
            case socket.gaierror() if cause.errno == socket.EAI_AGAIN:
                return "the name of its host cannot be looked up now"
            case socket.gaierror():
                return "there is no host of this name"
            case TimeoutError() | httpx.TimeoutException():
                return "no answer in time"
            case OSError() if cause.errno:
                return os.strerror(cause.errno).lower()
    if isinstance(error, httpx.RemoteProtocolError) and "http://" in where:
        return "it ended the conversation, as one does that wants https://"
    return _lower(str(error) or type(error).__name__)


def _lower(text: str) -> str:
    """As the end of a sentence."""
    return text[:1].lower() + text[1:].rstrip(".")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """It, what it came from, and what that came from."""
    waiting: list[BaseException] = [error]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
        waiting += [other for other in (one.__cause__, one.__context__) if other is not None]
