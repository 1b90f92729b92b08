"""The attributes of environments: one table that checks, documents and tells editors."""

from __future__ import annotations

import os.path
import re
from typing import Any

from encamp.describe.kinds import WRONG, Anything, Either, ListOf, Made, MapOf
from encamp.describe.nodes import Scalar
from encamp.describe.records import Attribute, Record
from encamp.describe.words import Bytes, Choice, Duration, HostPath, Mode, Truth, Whole, Word
from encamp.model.driver import DriverName, Isolation
from encamp.model.environment import Account, Answer, Context, Readiness
from encamp.model.image import WORD
from encamp.model.machine import After, Share
from encamp.model.node import Enrolment
from encamp.model.recipe import AddedFile, Compression, Kind
from encamp.model.size import MIB
from encamp.model.storage import Storage
from encamp.model.wanted import NETWORKS

NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,55}")
"""Environments' names become host names, with a few letters added."""

DEVICES = ("balloon", "rng", "watchdog")

ORIGINS = {
    "debian": Kind.DEBIAN,
    "mini": Kind.MINI,
    "oci": Kind.OCI,
    "rootfs": Kind.ROOTFS,
    "disk": Kind.DISK,
    "from": Kind.LAYER,
}
"""What an image starts from: exactly one of these stands in its recipe."""

PACKAGE = r"[A-Za-z0-9][A-Za-z0-9+.~:=/_-]*"
IMAGE = rf"{WORD}(?::{WORD})?"
NO_DIGEST = r"(?![0-9a-f]{64}(?::|$))"
"""What an image is given as its name must not look like the digest of one."""
SUITE = r"[a-z][a-z0-9-]*"
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?"
USER = r"@?[A-Za-z_][A-Za-z0-9._-]*"
OWNER = r"[A-Za-z_][A-Za-z0-9._-]*|[0-9]{1,9}"
"""By name or number."""


def _text(words: str = "text", *, late: bool = False, most: int = 65536) -> Word:
    return Word(words, late=late, most=most)


def _word(words: str, pattern: str, *, late: bool = False) -> Word:
    return Word(words, pattern=pattern, late=late)


def _absolute(words: str, *, late: bool = False) -> Word:
    # Of what only a machine knows, one thing begins with a slash.
    begins = r"(\$\{late\.owner\.home\})?/" if late else "/"
    return _word(words, rf"{begins}[^\0]*", late=late)


LARGEST_TEXT = 1024 * 1024
"""Characters a file's content or user data may have."""


def _file(path: str, **values: Any) -> AddedFile:
    return AddedFile(path=path, **values)


def _file_record(*, late: bool) -> Record:
    return Record(
        "a file",
        {
            "path": Attribute(_absolute("an absolute path", late=late), "where, in the machine"),
            "content": Attribute(_text(late=late, most=LARGEST_TEXT), "what is in it"),
            "source": Attribute(
                HostPath("a path of this host"), "a file or directory to copy instead"
            ),
            "mode": Attribute(Mode(), "permissions, in quotes", '"0644"'),
            "owner": Attribute(_word("a user", OWNER), "whose it is", "root"),
            "group": Attribute(_word("a group", OWNER), "and which group's", "root"),
        },
        _file,
        required=("path",),
        one_of=("content", "source"),
    )


class _ShareText(Word):
    """A share as on the command line."""

    def make(self, node: Scalar) -> Any:
        parts = re.findall(r"(?:\\[:\\]|[^:])+", node.text)
        names = [re.sub(r"\\([:\\])", r"\1", part) for part in parts]
        readonly = len(names) > 1 and names[-1] == "ro"
        if len(names) > 1 and names[-1] in ("ro", "rw"):
            names.pop()
        if not 1 <= len(names) <= 2 or (len(names) == 2 and not names[1].startswith("/")):
            return WRONG
        directory = (node.base or node.source).directory
        source = os.path.normpath(os.path.join(directory, names[0]))  # noqa: PTH118
        path = os.path.normpath(names[1]) if len(names) == 2 else source
        return Share(source=source, path=path, readonly=readonly)


def _share(source: str, path: str | None = None, readonly: bool = False) -> Share:
    return Share(source=source, path=path or source, readonly=readonly)


SHARE = Either(
    _ShareText("DIR[:PATH][:ro]"),
    Record(
        "a share",
        {
            "source": Attribute(HostPath("a directory of this host"), "the host's directory"),
            "path": Attribute(_absolute("an absolute path"), "where the machine sees it"),
            "readonly": Attribute(Truth(), "may the machine only read it?", "false"),
        },
        _share,
        required=("source",),
    ),
)

IMAGE_RECORD = Record(
    "an image",
    {
        "debian": Attribute(
            _word("a release's code name, such as bookworm,", SUITE),
            "start from this release of Debian",
        ),
        "mini": Attribute(
            _word("a release's code name, such as bookworm,", SUITE),
            "start from BusyBox and this release's kernel",
        ),
        "oci": Attribute(
            HostPath("a path or docker://...", schemes=("docker://",)),
            "start from a container's image",
        ),
        "rootfs": Attribute(HostPath("a path"), "start from a directory or tar archive"),
        "disk": Attribute(HostPath("a path"), "start from a whole disk, raw or qcow2"),
        "from": Attribute(
            _word("an environment or an image", IMAGE),
            "start from the image of another environment, or from an image; what is added"
            " becomes a layer over it",
        ),
        "name": Attribute(
            _word("a name of up to 100 characters", NO_DIGEST + WORD),
            "the image's name; if not given, that of the environment which describes it",
        ),
        "version": Attribute(
            _word("a version of up to 100 characters", WORD),
            "its version",
        ),
        "suite": Attribute(
            _word("a release's code name, such as bookworm,", SUITE),
            "Debian's release that the kernel is from, for what brings none",
            "bookworm",
        ),
        "packages": Attribute(ListOf(_word("a package", PACKAGE)), "what apt installs"),
        "sources": Attribute(
            ListOf(_word("a line of sources.list", r"deb\s.+")), "more of apt's sources"
        ),
        "files": Attribute(ListOf(_file_record(late=False)), "files to add"),
        "run": Attribute(
            ListOf(_text("a shell command")), "commands run as root in the tree, in order"
        ),
        "kernel": Attribute(
            _word("a package", PACKAGE), "Debian's package with the kernel", "linux-image-amd64"
        ),
        "compression": Attribute(Choice(Compression), "how the image is packed", "zstd"),
    },
)


def _command(value: Any) -> tuple[str, ...]:
    return ("/bin/sh", "-c", value) if isinstance(value, str) else value


READY = Record(
    "'ready'",
    {
        "answer": Attribute(Choice(Answer), "who answers first in a machine", "guest"),
        "command": Attribute(
            Made(
                Either(
                    _text("a command", late=True),
                    ListOf(_text("a word", late=True)),
                ),
                _command,
            ),
            "succeeds in the machine: a line for /bin/sh, or a list of words",
        ),
        "port": Attribute(
            Whole("a port, from 1 to 65535,", least=1, most=65535),
            "a TCP port of the machine that answers",
        ),
        "file": Attribute(_absolute("an absolute path", late=True), "a path that exists in it"),
        "timeout": Attribute(Duration("a time such as 30s or 2m"), "given up after this", "2m"),
        "interval": Attribute(
            Duration("a time such as 0.5s or 2s"), "time between two tries", "0.5s"
        ),
    },
    Readiness,
)

CONTEXT = Record(
    "'context'",
    {
        "files": Attribute(ListOf(_file_record(late=True)), "files to put into place"),
        "variables": Attribute(
            MapOf("variables", VARIABLE, _text("a value", late=True)),
            "variables for every command",
        ),
        "users": Attribute(
            ListOf(
                Record(
                    "a user",
                    {
                        "name": Attribute(
                            _word("a user's name", r"[a-z_][a-z0-9._-]{0,31}"), "login name"
                        ),
                        "uid": Attribute(Whole("a number", least=1, most=(1 << 31) - 1), "its id"),
                        "gid": Attribute(
                            Whole("a number", least=1, most=(1 << 31) - 1), "its group's id", "uid"
                        ),
                        "home": Attribute(
                            _absolute("an absolute path"), "home directory", "/home/NAME"
                        ),
                        "shell": Attribute(_absolute("an absolute path"), "shell", "/bin/sh"),
                        "ssh_keys": Attribute(
                            ListOf(_text("a public key")), "public keys that may log in as it"
                        ),
                    },
                    Account,
                    required=("name", "uid"),
                )
            ),
            "users to add",
        ),
        "ssh_keys": Attribute(
            ListOf(_text("a public key", late=True)), "public keys that may log in"
        ),
        "user_data": Attribute(
            _text(late=True, most=LARGEST_TEXT), "handed over as it is, also to cloud-init"
        ),
        "run": Attribute(
            ListOf(_text("a shell command", late=True)),
            "commands run as root after all that, in order",
        ),
    },
    Context,
)

SYSTEMS = ("slurm", "gridengine")
FEATURE = r"[A-Za-z0-9][A-Za-z0-9._-]*"

ENROL = Either(
    Made(Choice(SYSTEMS), lambda system: Enrolment(system=system)),
    Record(
        "'enrol'",
        {
            "system": Attribute(Choice(SYSTEMS), "the batch system"),
            "features": Attribute(
                ListOf(_word("a feature's name", FEATURE)),
                "what else jobs may ask of such a node, beside the environment's name",
            ),
            "idle": Attribute(
                Duration("a time such as 5m"), "it leaves after so long without a job", "5m"
            ),
            "lease": Attribute(
                Duration("a time such as 8h"),
                "after this it takes no more jobs, and leaves when the last has ended",
            ),
        },
        Enrolment,
        required=("system",),
    ),
)

ENVIRONMENT = Record(
    "an environment",
    {
        "summary": Attribute(_text(most=500), "one line for whoever chooses an environment"),
        "extends": Attribute(
            ListOf(_word("an environment's name", NAME.pattern), most=32),
            "what it inherits from; the later of several wins",
        ),
        "abstract": Attribute(Truth(), "is it only there to be extended?", "false"),
        "image": Attribute(
            Either(_word("an image, as NAME or NAME:VERSION,", IMAGE), IMAGE_RECORD),
            "the image by name or digest; or how to build it",
        ),
        "cpus": Attribute(Whole("a number from 1", least=1, most=4096), "processors", "1"),
        "memory": Attribute(Bytes("a size such as 512M or 2G", least=96 * MIB), "memory", "512M"),
        "disk": Attribute(
            Bytes("a size such as 10G", least=16 * MIB, zero=True),
            "room for what it writes; 0: in its memory",
            "0",
        ),
        "storage": Attribute(Choice(Storage), "where it keeps what it writes", "auto"),
        "network": Attribute(Choice(NETWORKS), "what it reaches", "none"),
        "isolation": Attribute(
            Choice(Isolation), "the weakest that it takes of what keeps its guest in", "kernel"
        ),
        "driver": Attribute(
            Choice(DriverName), "what its machines are made of; else what suits them best"
        ),
        "shares": Attribute(ListOf(SHARE), "directories of the host that it sees live"),
        "devices": Attribute(ListOf(Choice(DEVICES)), "more devices"),
        "kernel_arguments": Attribute(
            ListOf(_word("a word without blanks", r"[^\s\0]+")), "more words for its kernel"
        ),
        "ready": Attribute(READY, "how to tell that a machine is ready for work"),
        "context": Attribute(CONTEXT, "what each machine is handed at its first start"),
        "after": Attribute(Choice(After), "what becomes of a machine after its job", "destroy"),
        "save_as": Attribute(
            _word("an image, as NAME or NAME:VERSION,", NO_DIGEST + IMAGE),
            "the name it is saved under, with 'after: save'",
        ),
        "reuse": Attribute(
            Truth(),
            "may jobs of one owner that allow it share a machine, one after another?",
            "false",
        ),
        "enrol": Attribute(
            ENROL, "the batch system whose worker nodes its machines become", trusted=True
        ),
        "templates": Attribute(Truth(), "may machines be cloned from a template?", "true"),
        "labels": Attribute(
            MapOf("labels", LABEL, _text("a value")), "facts for whoever places machines"
        ),
        "classes": Attribute(ListOf(_word("a name", LABEL)), "the groups it belongs to"),
        "users": Attribute(
            ListOf(_word("a user, or a group as '@group',", USER)),
            "who may use it; everybody if nobody is named",
        ),
        "qemu": Attribute(
            ListOf(_text("a word")),
            "more words of QEMU's command line; without references",
            trusted=True,
        ),
        "values": Attribute(
            MapOf("values", VARIABLE, Anything()), "anything of your own, to refer to"
        ),
    },
)

RESERVED = frozenset({*ENVIRONMENT.attributes, "up", "late", "name", "here"})
"""What a reference's first word means; no environment can be called so."""

NOT_INHERITED = frozenset({"extends", "abstract"})
