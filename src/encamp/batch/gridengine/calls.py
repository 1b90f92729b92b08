"""Grid Engine's own commands: how they are run, and what their failures mean."""

from __future__ import annotations

import os
import platform
import socket
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from encamp import programs
from encamp.model.errors import Code, EncampError

ROOT = "/var/lib/gridengine"
"""Where Debian has it."""
SILENCE = 10.0
"""Seconds after which a command hangs, or its master does."""
ARCHITECTURES = {"x86_64": "lx-amd64", "aarch64": "lx-arm64"}

UNREACHABLE = (
    "unable to send message to qmaster",
    "unable to contact qmaster",
    "can't resolve host",
    "commlib error",
    "got select error",
    "no qmaster",
    "act_qmaster",
    "SGE_ROOT directory",
    "cell directory",
    'error: fopen("',  # of a file in the cell's directory, whose name it may cut short
    "could not get",
    "can't get configuration",
    "nothing for",
)
"""What commands say when there is no master at the moment."""
MISSING = ("do not exist", "does not exist", "No cluster queue or queue instance")
REFUSED = ("denied", "must be manager", "must be operator", "insufficient rights")


class Calls:
    """The commands of one site's Grid Engine."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        """`settings`: where its things are, if not where its packages put them."""
        self._settings = settings
        self.root = settings.get("root") or os.environ.get("SGE_ROOT") or ROOT
        self.cell = settings.get("cell") or os.environ.get("SGE_CELL") or "default"

    def variables(self) -> dict[str, str]:
        found = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C",
            "SGE_ROOT": self.root,
            "SGE_CELL": self.cell,
            "SGE_LONG_QNAMES": "1",
        }
        for name in ("qmaster_port", "execd_port"):
            variable = f"SGE_{name.upper()}"
            value = self._settings.get(name) or os.environ.get(variable)
            if value:
                found[variable] = value
        return found

    def program(self, name: str) -> str:
        """The command itself where it can be found, without the script that the packages put
        before it."""
        commands = self._settings.get("commands")
        if commands:
            return str(Path(commands) / name)
        arch = ARCHITECTURES.get(platform.machine(), "")
        own = Path(self.root) / "bin" / arch / name
        return str(own) if arch and own.is_file() else name

    @cached_property
    def host(self) -> str:
        """What Grid Engine calls this host: with or without its domain, or by an alias."""
        if self._settings.get("host"):
            return self._settings["host"]
        arch = ARCHITECTURES.get(platform.machine(), "")
        teller = Path(self.root) / "utilbin" / arch / "gethostname"
        if arch and teller.is_file():
            with suppress(EncampError):
                told = programs.run(
                    [teller, "-aname"],
                    purpose="asking what this host is called",
                    environment=self.variables(),
                    silence=SILENCE,
                ).split()
                if len(told) == 1:
                    return told[0]
        return socket.gethostname()

    def __call__(self, name: str, *words: str, purpose: str) -> str:
        """What the command printed, its complaints included. Its times are UTC's."""
        try:
            return programs.run(
                [self.program(name), *words],
                purpose=purpose,
                code=Code.COMMAND_FAILED,
                environment=self.variables() | {"TZ": "UTC0"},
                silence=SILENCE,
            )
        except EncampError as error:
            raise meant(error, purpose) from error

    def described(self, option: str, text: str) -> None:
        """Have `qconf` read the description of an object."""
        with tempfile.NamedTemporaryFile("w", prefix="encamp-") as file:
            file.write(text)
            file.flush()
            self("qconf", option, file.name, purpose="describing something to Grid Engine")


def meant(error: EncampError, purpose: str) -> EncampError:
    """A failure in our own terms."""
    if error.code is not Code.COMMAND_FAILED:
        return error
    said = error.detail
    if any(words in said for words in UNREACHABLE):
        return EncampError(
            Code.UNREACHABLE,
            f"Grid Engine's master does not answer while {purpose}.",
            "Is it running, and is this one of its hosts? SGE_ROOT and SGE_CELL say where it is.",
            transient=True,
            detail=said,
        )
    if any(words in said for words in MISSING):
        return EncampError(
            Code.INPUT_MISSING, f"Grid Engine knows no such thing while {purpose}.", detail=said
        )
    if any(words in said for words in REFUSED):
        return EncampError(
            Code.NOT_PERMITTED,
            f"Grid Engine does not let us, while {purpose}.",
            "Make this host an administrative host and a submit host: qconf -ah HOST, qconf -as "
            "HOST.",
            detail=said,
        )
    return error
