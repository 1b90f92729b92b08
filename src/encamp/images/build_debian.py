"""The root file system of a Debian release, put together by mmdebstrap from Debian's archive."""

from __future__ import annotations

import os
import re
from pathlib import Path

from encamp import programs
from encamp.home import user_name
from encamp.images.apt import Apt, acquire_settings, environment
from encamp.images.installing import Installing
from encamp.images.portion import Portion
from encamp.model.errors import Code, EncampError
from encamp.model.recipe import EPOCH, Recipe
from encamp.workplace import Workplace

LEFT_OUT = (
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/groff/*",
    "path-exclude=/usr/share/lintian/*",
    "path-exclude=/usr/share/locale/*",
    "path-include=/usr/share/locale/locale.alias",
)

FINISH = r"""
set -e
root="$1"
cd "$root/etc"
: > machine-id
: > resolv.conf
echo encamp > hostname
printf '127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n' > hosts
chmod 644 machine-id resolv.conf hostname hosts
sed 's#://[^/@ ]*@#://#' apt/sources.list.d/*.list > apt/sources.list
rm -f apt/sources.list.d/*.list apt/apt.conf.d/99mmdebstrap .pwd.lock
cd "$root/var"
rm -f lib/dpkg/*-old cache/debconf/*-old cache/ldconfig/aux-cache
find log -type f -delete
"""
"""Run on the finished tree: what belongs to the host or differs from build to build goes."""

MERGED = Path("/usr/share/mmdebstrap/hooks/merged-usr")
"""Makes /bin a link from the start. Otherwise a package that brings all of Perl does it."""


SILENCE = 600.0
"""Seconds without a word after which mmdebstrap is taken to hang."""


def build_root(recipe: Recipe, work: Workplace, apt: Apt, progress: Portion) -> Path:
    """The root file system as a tar archive."""
    mode = "root" if os.geteuid() == 0 else "unshare"
    if mode == "unshare":
        require_subordinate_ids()
    # The ids that stand for other users may not enter the home of this one.
    temporary = work.elsewhere() if mode == "unshare" else work.for_programs()
    what = f"installing Debian '{recipe.suite}'"
    target = work.directory / "root.tar"
    settings = [f"--aptopt={line}" for line in acquire_settings()]
    programs.run(
        [
            *("mmdebstrap", f"--mode={mode}", "--variant=minbase", "--format=tar"),
            *("--verbose", f"--hook-dir={MERGED}"),
            *("--architectures=amd64", f"--include={','.join(recipe.packages)}"),
            *(f"--dpkgopt={option}" for option in LEFT_OUT),
            *settings,
            f"--customize-hook={FINISH}",
            *(recipe.suite, target, apt.source_list),
        ],
        purpose=what,
        environment={
            **environment(),
            "TMPDIR": str(temporary),
            "SOURCE_DATE_EPOCH": str(EPOCH),
        },
        directory=temporary,
        hold=(work.lock,),
        silence=SILENCE,
        on_line=progress.reader(what, Installing().read),
    )
    progress.update(what, 1.0)
    return target


def require_subordinate_ids() -> None:
    """Without root, the files of other users in an image need ids that stand for them."""
    programs.find("newuidmap")
    user = user_name(os.geteuid())
    for file in ("/etc/subuid", "/etc/subgid"):
        try:
            text = Path(file).read_text()
        except OSError:
            text = ""
        if not re.search(rf"^({re.escape(user)}|{os.geteuid()}):\d+:\d{{5,}}$", text, re.MULTILINE):
            raise EncampError(
                Code.NOT_PERMITTED,
                f"{file} gives user '{user}' no subordinate ids, so no Debian can be installed.",
                f"Ask root to add the line '{user}:100000:65536' to {file} (an unused range), or "
                "to build the image once: everybody on this host then uses that one.",
            )
