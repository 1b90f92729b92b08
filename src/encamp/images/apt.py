"""Debian's archive, reached the way the host reaches it: its mirrors, its proxies, its keys.

A private apt with its own state: nothing is installed on the host, no right is needed, and
whatever else the host's sources name has no part in it. apt verifies every signature.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import re
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from encamp import programs
from encamp.images.portion import Portion
from encamp.model.errors import Code, EncampError
from encamp.workplace import write_private

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
HOST_LISTS = Path("/var/lib/apt/lists")
FRESH = 3600.0
"""Seconds for which a list of packages is taken as it is."""

REACH = 5.0
"""Seconds within which one of the mirrors has to be found and to take a connection. Without a
network, apt goes on trying for more than a minute."""

SILENCE = 120.0
"""Seconds without a word after which apt is taken to hang."""

INDEX = re.compile(r"'(?P<uri>[^' ]+?)/+dists/(?P<suite>[^' ]+)/main/binary-amd64/Packages")
ROLE = re.compile(r"(?P<release>[a-z]+)(?P<role>-updates|-security|/updates|)")
UNSTABLE = ("sid", "unstable")
"""Names of the suite that has neither updates nor security updates beside it."""

ARCHIVE_PATH = re.compile(r"debian|security", re.IGNORECASE)
UNSIGNED = re.compile(r"(GPG error: |The repository ')(?P<uri>\S+) (?P<suite>\S+) (In)?Release")
ABSENT = re.compile(
    r"The repository '(?P<uri>\S+) (?P<suite>\S+) Release' does not have a Release file"
)
OWN_SOURCE = re.compile(
    r"(?P<start>deb +(\[[^\]\n]*\] +)?)(?P<uri>[a-z+]+:[^\s]+)(?P<rest>( +[^\s\[\]]+)+)"
)
PORTS = {"http": 80, "https": 443}
CHANGES = re.compile(r"(\d+) upgraded, (\d+) newly installed")
DOWNLOADED = re.compile(r"dlstatus:\d+:([\d.]+):")
ACQUIRE = re.compile(
    r"Acquire::(https?|ftp|Proxy|Retries|Check-Valid-Until|Check-Date|Max-ValidTime|"
    r"Min-ValidTime|ForceIPv)[^ ]* \"[^\"]+\";",
    re.IGNORECASE,
)


RULES = """\
#clear APT::Update;
#clear APT::Architectures;
#clear Acquire::Languages;
APT::Architecture "amd64";
APT::Architectures { "amd64"; };
APT::Sandbox::User "root";
APT::Get::AllowUnauthenticated "false";
Acquire::AllowInsecureRepositories "false";
Acquire::AllowWeakRepositories "false";
Acquire::AllowDowngradeToInsecureRepositories "false";
Acquire::Languages "none";"""
"""What holds for every apt of ours, whatever the host's is told: only what is signed, for this
kind of processor, without translations."""


def environment() -> dict[str, str]:
    """For programs of Debian: their messages in English, no questions, all of Debian's paths."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *programs.ADMINISTRATOR_PATHS])
    return {**os.environ, "PATH": path, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}


@dataclass(frozen=True)
class Source:
    """One line of apt's sources: a suite of Debian's archive on a mirror."""

    uri: str
    suite: str

    def line(self) -> str:
        # The key is named so that only Debian itself can vouch for what is installed.
        signed = f" signed-by={KEYRING}" if KEYRING.exists() else ""
        return f"deb [arch=amd64{signed}] {self.uri} {self.suite} main\n"


def source_line(line: str) -> str:
    """A source of the recipe's own, as apt reads it."""
    found = OWN_SOURCE.fullmatch(line.strip())
    if found is None:
        raise EncampError(
            Code.CONFIGURATION,
            f"'{line}' is no source of packages.",
            "Write it as in sources.list: deb [signed-by=/path/to/key] URI SUITE COMPONENT...",
        )
    # Packages in a directory of the host are not to be seen from inside a tree.
    return f"{found['start']}{found['uri'].replace('file:', 'copy:', 1)}{found['rest']}\n"


def host_sources(suite: str) -> tuple[Source, ...]:
    """The mirrors of Debian's archive that the host uses, for this suite."""
    said = programs.run(
        ["apt-get", "--print-uris", "update"],
        purpose="reading the APT sources of this host",
        environment=environment(),
    )
    found = sources_for(suite, said)
    if not found:
        raise EncampError(
            Code.CONFIGURATION,
            "The APT sources of this host name no mirror of Debian's archive.",
            "Add one (component 'main') in /etc/apt/sources.list.d; see 'man sources.list'.",
        )
    return found


def sources_for(suite: str, uris: str) -> tuple[Source, ...]:
    """Pick Debian's archive out of what `apt-get --print-uris update` says.

    A host on another release uses the same mirrors, so only the suite is exchanged.
    """
    found: dict[Source, None] = {}
    for match in INDEX.finditer(uris):
        role = ROLE.fullmatch(match["suite"])
        if role is None or not ARCHIVE_PATH.search(match["uri"]):
            continue
        if role["role"] and suite in UNSTABLE:
            continue
        suffix = role["role"].replace("/updates", "-security")
        found[Source(match["uri"], suite + suffix)] = None
    ours = tuple(found)
    return ours if any(source.suite == suite for source in ours) else ()


def check_reachable(sources: Sequence[Source]) -> None:
    """Can one of the mirrors be reached at all? Only apt knows the ways through a proxy, and those
    that are no network's."""
    places = set()
    for source in sources:
        parts = urlsplit(source.uri)
        if parts.scheme not in PORTS or parts.hostname is None:
            return
        places.add((parts.hostname, parts.port or PORTS[parts.scheme]))
    if any(name.lower().endswith("_proxy") for name in os.environ) or any(
        "proxy" in line.lower() for line in acquire_settings()
    ):
        return
    answers: queue.Queue[str] = queue.Queue()

    def reach(place: tuple[str, int]) -> None:
        try:
            socket.create_connection(place, REACH).close()
            answers.put("")
        except OSError as error:
            answers.put(f"{place[0]}: {error.strerror or error}")

    for place in places:
        # Looking up a name cannot be broken off: such a thread is left to itself.
        threading.Thread(target=reach, args=(place,), daemon=True).start()
    why = f"none of its mirrors answers within {REACH:.0f} s"
    end = time.monotonic() + REACH
    for _ in places:
        with contextlib.suppress(queue.Empty):
            why = answers.get(timeout=max(0.0, end - time.monotonic()))
        if not why:
            return
    raise EncampError(
        Code.BUILD_FAILED,
        f"Debian's archive cannot be reached ({why}).",
        detail=f"Could not connect to Debian's archive: {why}.",
    )


NETRC, NETRC_PARTS = Path("/etc/apt/auth.conf"), Path("/etc/apt/auth.conf.d")


def acquire_settings(netrc: Path = NETRC, parts: Path = NETRC_PARTS) -> list[str]:
    """The host's settings for reaching a mirror (proxies, certificates), as lines of apt.conf."""
    said = programs.run(
        ["apt-config", "dump", "--format", '%f "%v";%n', "Acquire"],
        purpose="reading the APT configuration of this host",
        environment=environment(),
    )
    lines = [line for line in said.splitlines() if ACQUIRE.fullmatch(line)]
    return [*lines, f'Dir::Etc::netrc "{netrc}";', f'Dir::Etc::netrcparts "{parts}";']


def passwords() -> str:
    """Those that the host has for mirrors, as far as we may read them."""
    found = []
    for path in (NETRC, *sorted(NETRC_PARTS.glob("*.conf"))):
        with contextlib.suppress(OSError):
            found.append(f"{path.read_text()}\n")
    return "".join(found)


class Apt:
    """A private apt for one suite, in a directory of the cache.

    `more` are source lines of the recipe's own, beside those of Debian's archive.
    """

    def __init__(
        self, directory: Path, suite: str, hold: tuple[int, ...] = (), more: tuple[str, ...] = ()
    ) -> None:
        self.directory = directory
        self.suite = suite
        self.hold = hold
        self.more = tuple(source_line(line) for line in more)
        self.sources = host_sources(suite)
        self.lists = directory / "lists"
        for path in (self.lists / "partial", directory / "archives" / "partial"):
            path.mkdir(parents=True, exist_ok=True)
        (directory / "status").touch()
        self.configure()

    @property
    def source_list(self) -> Path:
        return self.directory / "sources.list"

    @property
    def archives(self) -> Path:
        return self.directory / "archives"

    def source_lines(self) -> str:
        return "".join((*map(Source.line, self.sources), *self.more))

    def state(self) -> str:
        """Names what the archive offers now: changes whenever its lists do."""
        digest = hashlib.sha256(self.source_lines().encode())
        for path in sorted(self.lists.glob("*Release")):
            digest.update(path.read_bytes())
        return digest.hexdigest()

    def configure(self) -> None:
        path = self.directory
        # There may be passwords in it.
        write_private(self.source_list, self.source_lines())
        (path / "apt.conf").write_text(
            f"""\
{RULES}
Dir::State "{path}";
Dir::State::lists "{self.lists}";
Dir::State::status "{path}/status";
Dir::Cache "{path}";
Dir::Cache::archives "{path}/archives";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
Dir::Etc::sourcelist "{self.source_list}";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
"""
        )

    def call(
        self,
        *arguments: str,
        purpose: str,
        directory: Path | None = None,
        progress: Portion | None = None,
    ) -> str:
        program, *rest = arguments
        try:
            return programs.run(
                [program, "-q", "-c", self.directory / "apt.conf", "-o", "APT::Status-Fd=1", *rest],
                purpose=purpose,
                environment=environment(),
                directory=directory or self.directory,
                hold=self.hold,
                on_line=progress.reader(purpose, downloaded) if progress else None,
                # On a disk that fills up at the wrong moment it waits for ever.
                silence=SILENCE,
            )
        except EncampError as error:
            lines = error.detail.splitlines()
            error.detail = "\n".join(line for line in lines if not DOWNLOADED.match(line))
            raise

    def update(self, progress: Portion) -> None:
        """Fetch the lists of packages, unless those that are there were fetched just now."""
        stamp = self.directory / "updated"
        if stamp.exists() and 0 <= time.time() - stamp.stat().st_mtime < FRESH:
            known = stamp.read_text()
            # Without those that turned out not to be Debian's.
            sources = tuple(each for each in self.sources if each.line() in known)
            if "".join((*map(Source.line, sources), *self.more)) == known:
                self.sources = sources
                self.configure()
                return
        stamp.unlink(missing_ok=True)
        check_reachable(self.sources)
        try:
            self.fetch_lists(progress)
        except EncampError as error:
            self.drop_strangers(error)
            self.fetch_lists(progress)
        write_private(stamp, self.source_list.read_text())

    def fetch_lists(self, progress: Portion) -> None:
        self.call(
            *("apt-get", "update", "--error-on=any"),
            purpose="fetching the list of Debian packages",
            progress=progress,
        )

    def drop_strangers(self, error: EncampError) -> None:
        """Do without the sources that look like Debian's archive and are not signed by Debian."""
        strange, absent = (
            {(found["uri"].rstrip("/"), found["suite"]) for found in said.finditer(error.detail)}
            for said in (UNSIGNED, ABSENT)
        )
        kept = tuple(each for each in self.sources if (each.uri, each.suite) not in strange)
        if len(kept) == len(self.sources):
            raise error
        if not any(each.suite == self.suite for each in kept):
            mirrors = [each.uri for each in self.sources if each.suite == self.suite]
            if all((uri, self.suite) in absent for uri in mirrors):
                raise EncampError(
                    Code.CONFIGURATION,
                    f"There is no suite '{self.suite}' of Debian at {', '.join(mirrors)}.",
                    "Name a release by its code name, such as bookworm. If it is one of those that"
                    " were moved to archive.debian.org, add that mirror in"
                    " /etc/apt/sources.list.d.",
                ) from error
            raise EncampError(
                Code.CONFIGURATION,
                "No APT source of this host is signed by Debian.",
                "Add a mirror of Debian's archive in /etc/apt/sources.list.d.",
                detail=error.detail,
            ) from error
        self.sources = kept
        self.configure()

    def fetch(self, packages: Sequence[str], status: Path, lists: Path, debs: Path) -> None:
        """Fetch packages, with those they need, for a tree that has some already."""
        places = {"State::status": status, "State::lists": lists, "Cache::archives": debs}
        options = [f"--option=Dir::{name}={path}" for name, path in places.items()]
        self.call(
            *("apt-get", *options, "--option=APT::Install-Recommends=0"),
            *("--yes", "--download-only", "install", *packages),
            purpose="fetching packages",
        )

    def is_current(self, status: Path) -> bool:
        """Whether the archive has nothing newer for a tree with these packages."""
        said = self.call(
            *("apt-get", "--simulate", "--option", f"Dir::State::status={status}"),
            *("--option", "APT::Install-Recommends=0", "dist-upgrade"),
            purpose="looking for newer packages",
        )
        changes = CHANGES.search(said)
        return changes is not None and changes[1] == changes[2] == "0"

    def knows(self, package: str) -> bool:
        """Whether the suite has a package of this name."""
        said = self.call(
            "apt-cache", "pkgnames", package, purpose=f"looking for the Debian package '{package}'"
        )
        return package in said.split()

    def show(self, package: str) -> dict[str, str]:
        """What the archive says about the version of a package that would be installed."""
        said = self.call(
            *("apt-cache", "show", "--no-all-versions", package),
            purpose=f"looking for the Debian package '{package}'",
        )
        pairs = (line.partition(": ") for line in said.splitlines() if not line.startswith(" "))
        return {key: value for key, _, value in pairs}

    def download(self, package: str, directory: Path, progress: Portion) -> Path:
        """Fetch a package, verified, into a directory; the path of the file."""
        self.call(
            *("apt-get", "download", package),
            purpose=f"fetching the Debian package '{package}'",
            directory=directory,
            progress=progress,
        )
        return next(directory.glob(f"{package}_*.deb"))


def downloaded(line: str) -> float | None:
    match = DOWNLOADED.match(line)
    return float(match[1]) / 100 if match else None
