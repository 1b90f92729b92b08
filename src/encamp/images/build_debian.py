"""The bare root tree of a Debian release, put together by mmdebstrap from Debian's archive."""

from __future__ import annotations

import re
import tarfile
from dataclasses import replace
from pathlib import Path

from encamp import programs
from encamp.images import namespace, tree
from encamp.images.apt import environment
from encamp.images.build_log import opened_log
from encamp.images.installing import Installing
from encamp.images.packages import Shelf
from encamp.images.portion import Portion
from encamp.images.tidy import tidied
from encamp.model.recipe import EPOCH, Recipe
from encamp.workplace import Workplace

LEFT_OUT = (
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    # Not the directories themselves: Java's scripts fail where they cannot make links in man1.
    "path-exclude=/usr/share/man/*/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/groff/*",
    "path-exclude=/usr/share/lintian/*",
    "path-exclude=/usr/share/locale/*",
    "path-include=/usr/share/locale/locale.alias",
)

STOCK = r"""
set -e
cp "$ENCAMP_SHELF"/lists/*_* "$1/var/lib/apt/lists/"
mkdir -p "$1/var/cache/apt/archives"
cd "$1/var/cache/apt/archives"
find "$ENCAMP_SHELF/debs" -maxdepth 1 -name '*.deb' -exec cp -t . {} + || :
"""
"""Run on the empty tree: apt finds the lists, and the packages, that are there already."""

TAKE = r"""
cd "$1/var/cache/apt/archives"
find . -maxdepth 1 -name '*.deb' -exec cp -l -f -t "$ENCAMP_SHELF/debs" {} + || :
"""
"""Run before mmdebstrap throws packages away: the next build finds them."""

FINISH = r"""
set -e
cd "$1/etc"
: > machine-id
: > resolv.conf
echo encamp > hostname
printf '127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n' > hosts
chmod 644 machine-id resolv.conf hostname hosts
rm -f apt/sources.list.d/*.list
"""
"""Run on the finished tree: what belongs to the host goes."""

MERGED = Path("/usr/share/mmdebstrap/hooks/merged-usr")
"""Makes /bin a link from the start. Otherwise a package that brings all of Perl does it; releases
without the package that says so keep a /bin of its own."""
IS_MERGED = "usr-is-merged"

SILENCE = 600.0
"""Seconds without a word after which mmdebstrap is taken to hang."""

CREDENTIALS = re.compile(r"://[^/@ ]*@")
SIGNED_BY = re.compile(r"signed-by=\S+?(?=[ \]])")
SOURCES = "etc/apt/sources.list"


def build_bare(recipe: Recipe, work: Workplace, shelf: Shelf, progress: Portion) -> tree.Entries:
    what = f"installing Debian '{recipe.suite}'"
    temporary = namespace.make_room(work.for_programs() / "bare")
    target = temporary / "bare.tar"
    merged = [f"--hook-dir={MERGED}"] if shelf.apt.knows(IS_MERGED) else []
    # In a file: everybody sees the words of a command, and there may be passwords in them.
    settings = shelf.write("acquire.conf", "".join(f"{line}\n" for line in shelf.settings()))
    with opened_log(work) as log:
        programs.run(
            namespace.within(
                [
                    *("mmdebstrap", "--mode=root", "--variant=minbase", "--format=tar"),
                    *("--verbose", *merged, "--skip=update"),
                    "--architectures=amd64",
                    *(f"--dpkgopt={option}" for option in LEFT_OUT),
                    f"--aptopt={settings}",
                    f"--setup-hook={STOCK}",
                    f"--extract-hook={TAKE}",
                    f"--customize-hook={TAKE}",
                    f"--customize-hook={FINISH}",
                    *(recipe.suite, target, shelf.sources),
                ],
                shelf.directory,
            ),
            purpose=what,
            environment={
                **environment(),
                "TMPDIR": str(temporary),
                "SOURCE_DATE_EPOCH": str(EPOCH),
                "ENCAMP_SHELF": str(shelf.directory),
                # Nothing here has to survive a power failure.
                "DPKG_FORCE": "unsafe-io",
            },
            directory=temporary,
            hold=(work.lock,),
            silence=SILENCE,
            on_line=progress.reader(what, Installing().read),
            log=log,
        )
    progress.update(what, 1.0)
    entries = tidied(tree.read(namespace.take_back(target)))
    sources = public_sources(shelf.sources.read_text())
    entries[SOURCES] = text_entry(sources, work.directory / "sources.list")
    return entries


def public_sources(text: str) -> str:
    """The sources as a machine needs them: without passwords and without paths of the host."""
    return SIGNED_BY.sub(
        "signed-by=/usr/share/keyrings/debian-archive-keyring.gpg", CREDENTIALS.sub("://", text)
    )


def text_entry(text: str, place: Path, mode: int = 0o644) -> tree.Entry:
    """A file of root's; its content is put at a place beside the tree."""
    data = text.encode()
    place.write_bytes(data)
    plain = tree.Entry(tarfile.REGTYPE, mode, 0, 0, EPOCH, source=place)
    return replace(plain, size=len(data), sha256=tree.content_digest(data))
