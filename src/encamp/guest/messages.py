"""What host and guest say to each other, as plain data."""

from __future__ import annotations

import enum
import errno
import os
import time

import msgspec

from encamp.guest.frames import (
    ENTROPY_LEAST,
    LIMIT,
    MACHINE_SIZE,
    NONCE_SIZE,
    PART,
    PAYLOAD_LIMIT,
    U32,
    U64,
    VERSION,
    WHOLE,
    WINDOW,
    Key,
    Type,
    decode_fields,
    encode,
    encode_fields,
    number,
    only,
    senseless,
    text,
)
from encamp.model.errors import Code, EncampError

COMMAND_LIMIT = 4 << 20
"""Arguments and environment of one command together; Linux itself stops at about half of it."""
EXEC_LIMIT = 8 << 20
"""The same with the command's files."""

UNLIMITED = (1 << 64) - 1


def _random_nonce() -> bytes:
    return os.urandom(NONCE_SIZE)


def _random_entropy() -> bytes:
    return os.urandom(2 * ENTROPY_LEAST)


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Who the machine shall be from now on."""

    machine: bytes
    hostname: str
    nonce: bytes = msgspec.field(default_factory=_random_nonce)
    entropy: bytes = msgspec.field(default_factory=_random_entropy)

    def __post_init__(self) -> None:
        if len(self.machine) != MACHINE_SIZE or len(self.nonce) != NONCE_SIZE:
            raise ValueError("a machine's id and a nonce have 16 bytes")
        if len(self.entropy) < ENTROPY_LEAST:
            raise ValueError(f"entropy has at least {ENTROPY_LEAST} bytes")

    def encode(self) -> bytes:
        return encode(
            Type.HELLO,
            0,
            encode_fields(
                [
                    (Key.VERSION, U32.pack(VERSION)),
                    (Key.NONCE, self.nonce),
                    (Key.MACHINE, self.machine),
                    (Key.HOSTNAME, self.hostname.encode()),
                    (Key.CLOCK, U64.pack(time.time_ns())),
                    (Key.ENTROPY, self.entropy),
                ]
            ),
        )


class Welcome(msgspec.Struct, frozen=True):
    """The guest's answer to a HELLO."""

    version: int
    machine: bytes
    program: str
    uptime_ns: int

    @classmethod
    def decode(cls, payload: bytes) -> Welcome:
        fields = decode_fields(payload)
        machine = only(fields, Key.MACHINE)
        if len(machine) != MACHINE_SIZE:
            raise senseless("a machine's id of the wrong size")
        return cls(
            number(fields, Key.VERSION),
            machine,
            text(fields, Key.PROGRAM),
            number(fields, Key.UPTIME, U64),
        )


class File(msgspec.Struct, frozen=True):
    """One that a command brings with it."""

    mode: int
    content: bytes


class Exec(msgspec.Struct, frozen=True, kw_only=True):
    """A command to run in the machine."""

    args: list[str | bytes]
    env: dict[str, str] = {}
    cwd: str | None = None
    fallback: str | None = None
    """Where it starts if it cannot start in `cwd`."""
    tells_fallback: bool = False
    """Does that stand on its standard error then?"""
    uid: int = 0
    gid: int = 0
    groups: list[int] = []
    terminal: tuple[int, int] | None = None
    """Rows and columns, if the command shall have a terminal."""
    builtin: bool = False
    """The command is one that the guest program does itself, such as `pack`."""
    merged: bool = False
    """Both outputs are one, as in a file: all of it comes as stdout, in the order it was written.
    Not with a terminal, where it is so in any case."""
    held: bool = False
    """It is made ready, all but its first instruction, and waits there until its stream is told to
    go. The machine first sends the answers that are due: whoever waits for them does so at the same
    time."""
    umask: int | None = None
    """None: 022."""
    limits: dict[int, tuple[int, int]] = {}
    """Soft and hard, by the number of the resource; RLIM_INFINITY, or all ones: none. Those that
    the machine's kernel does not know are left out there."""
    files: dict[str, File] = {}
    """By their path in the machine. They are there before the command begins, its user's own."""
    temporary: str | None = None
    """The directory that TMPDIR names. Made where that can be done, else TMPDIR names another."""

    def encode(self, stream: int) -> bytes:
        if not self.args:
            raise EncampError(Code.USAGE, "There is no command to run.")
        fields: list[tuple[int, bytes]] = [(Key.ARG, os.fsencode(word)) for word in self.args]
        fields += [(Key.ENV, os.fsencode(f"{k}={v}")) for k, v in self.env.items()]
        if self.cwd is not None:
            fields.append((Key.CWD, os.fsencode(self.cwd)))
        if self.fallback is not None:
            fields.append((Key.CWD, os.fsencode(self.fallback)))
        if self.tells_fallback:
            fields.append((Key.TELLING, b""))
        if any(b"\0" in value for _, value in fields):
            raise EncampError(Code.USAGE, "A command's arguments cannot hold a zero byte.")
        fields.append((Key.UID, U32.pack(self.uid)))
        fields.append((Key.GID, U32.pack(self.gid)))
        if self.groups:
            fields.append((Key.GROUPS, b"".join(map(U32.pack, self.groups))))
        if self.terminal is not None:
            fields.append((Key.TTY, WINDOW.pack(*self.terminal)))
        if self.builtin:
            fields.append((Key.BUILTIN, b""))
        if self.merged:
            fields.append((Key.MERGED, b""))
        if self.held:
            fields.append((Key.HELD, b""))
        if self.umask is not None:
            fields.append((Key.UMASK, U32.pack(self.umask & 0o777)))
        fields += [
            (Key.LIMIT, LIMIT.pack(resource, soft & UNLIMITED, hard & UNLIMITED))
            for resource, (soft, hard) in self.limits.items()
        ]
        if self.temporary is not None:
            fields.append((Key.TEMPORARY, os.fsencode(self.temporary)))
        payload = encode_fields(fields)
        files = encode_fields(
            (Key.FILE, U32.pack(file.mode) + os.fsencode(path) + b"\0" + file.content)
            for path, file in self.files.items()
        )
        if len(payload) > COMMAND_LIMIT or len(payload) + len(files) > EXEC_LIMIT:
            raise EncampError(
                Code.USAGE,
                f"The command and its environment are too long ({len(payload)} bytes).",
                "Put long lists of arguments into a file.",
            )
        payload += files
        last = max(0, len(payload) - 1) // PAYLOAD_LIMIT
        return b"".join(
            encode(
                Type.EXEC,
                stream,
                payload[part * PAYLOAD_LIMIT : (part + 1) * PAYLOAD_LIMIT],
                channel=WHOLE if part == last else PART,
            )
            for part in range(last + 1)
        )


class Kind(enum.IntEnum):
    EXITED = 0
    KILLED = 1
    NOT_STARTED = 2
    NOT_FURNISHED = 3
    """Nor was it started: what it brings with it could not be put into the machine."""


class Exit(msgspec.Struct, frozen=True):
    """How a command ended."""

    kind: Kind
    value: int
    """Its exit code, the signal that killed it, or the error that kept it from starting."""
    text: str = ""
    """What is to be said about that."""

    @property
    def started(self) -> bool:
        return self.kind in (Kind.EXITED, Kind.KILLED)

    @property
    def code(self) -> int:
        """As a shell would report it."""
        if self.kind is Kind.EXITED:
            return self.value
        if self.kind is Kind.KILLED:
            return 128 + self.value
        return 127 if (self.kind, self.value) == (Kind.NOT_STARTED, errno.ENOENT) else 126

    @classmethod
    def decode(cls, payload: bytes) -> Exit:
        fields = decode_fields(payload)
        kind, value = number(fields, Key.KIND), number(fields, Key.VALUE)
        if kind > Kind.NOT_FURNISHED:
            raise senseless(f"an EXIT of kind {kind}")
        if (kind == Kind.EXITED and value > 255) or (kind == Kind.KILLED and not 0 < value < 128):
            raise senseless(f"an EXIT of kind {kind} with value {value}")
        return cls(Kind(kind), value, text(fields, Key.TEXT))


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A user the machine shall know."""

    name: str
    uid: int
    gid: int
    group: str
    groups: dict[int, str] = {}
    """Names of other groups. What cannot be a group's name in the machine is left out there."""
    home: str
    shell: str = "/bin/sh"
    exact: bool = False
    """Refused if the image gives the name another number, or the number another name."""

    def fields(self) -> list[tuple[int, bytes]]:
        fields: list[tuple[int, bytes]] = [
            (Key.NAME, self.name.encode()),
            (Key.UID, U32.pack(self.uid)),
            (Key.GID, U32.pack(self.gid)),
            (Key.GROUP, self.group.encode()),
            (Key.HOME, os.fsencode(self.home)),
            (Key.SHELL, os.fsencode(self.shell)),
        ]
        if self.groups:
            lines = "\n".join(f"{number}:{name}" for number, name in self.groups.items())
            fields.append((Key.GROUP_NAMES, lines.encode()))
        if self.exact:
            fields.append((Key.EXACT, b""))
        return fields


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """The address of the machine's one interface."""

    address: str
    prefix: int
    gateway: str | None = None
    dns: str | None = None
    mac: str | None = None
    """What the interface calls itself; None: as the machine was made."""
    name: str | None = None
    """The machine's name, which is its address's from now on; None: it is its own loopback's."""
    hosts: dict[str, str] = {}
    """Other names that it is to know, and their addresses."""

    def fields(self) -> list[tuple[int, bytes]]:
        fields: list[tuple[int, bytes]] = [
            (Key.ADDRESS, self.address.encode()),
            (Key.PREFIX, U32.pack(self.prefix)),
        ]
        if self.gateway is not None:
            fields.append((Key.GATEWAY, self.gateway.encode()))
        if self.dns is not None:
            fields.append((Key.DNS, self.dns.encode()))
        if self.mac is not None:
            fields.append((Key.MAC, bytes.fromhex(self.mac.replace(":", ""))))
        if self.name is not None:
            fields.append((Key.NAME, self.name.encode()))
        if self.hosts:
            lines = "".join(f"{address}\t{name}\n" for name, address in self.hosts.items())
            fields.append((Key.HOSTS, lines.encode()))
        return fields
