"""The root file system of `mini`: BusyBox, a handful of files in /etc, and empty directories."""

from __future__ import annotations

import io
import tarfile

from encamp import programs
from encamp.images import tree
from encamp.images.apt import Apt
from encamp.images.portion import Portion
from encamp.model.errors import Code, EncampError
from encamp.model.recipe import EPOCH, Recipe
from encamp.workplace import Workplace

DIRECTORIES = {
    **dict.fromkeys(
        ("bin", "dev", "etc", "home", "lib", "lib64", "mnt", "opt", "proc", "run", "sbin"), 0o755
    ),
    **dict.fromkeys(("sys", "usr", "usr/bin", "usr/sbin", "usr/lib", "var", "var/log"), 0o755),
    "root": 0o700,
    "tmp": 0o1777,
    "var/tmp": 0o1777,
}

FILES = {
    "etc/passwd": """\
root:x:0:0:root:/root:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/bin/false
""",
    "etc/group": """\
root:x:0:
tty:x:5:
nogroup:x:65534:
""",
    "etc/hostname": "encamp\n",
    "etc/hosts": """\
127.0.0.1 localhost
::1 localhost ip6-localhost ip6-loopback
""",
    "etc/nsswitch.conf": """\
passwd: files
group: files
hosts: files dns
""",
    "etc/profile": """\
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
umask 022
for file in /etc/profile.d/*.sh; do
    if [ -r "$file" ]; then . "$file"; fi
done
unset file
""",
    "etc/os-release": """\
NAME="Encamp mini"
PRETTY_NAME="Encamp mini"
ID=encamp-mini
ID_LIKE=busybox
""",
    "etc/resolv.conf": "",
}

BUSYBOX = "bin/busybox"


def fetch(recipe: Recipe, work: Workplace, apt: Apt, progress: Portion) -> None:
    """Get BusyBox's package, while apt is ours."""
    (package,) = recipe.packages
    apt.download(package, work.directory, progress.part(0, 0.6))


def build_root(work: Workplace, progress: Portion) -> tree.Entries:
    """The root tree, once the package is there."""
    progress.update("assembling BusyBox", 0.6)
    deb = next(work.directory.glob("*.deb"))
    unpacked = work.for_programs() / "busybox"
    programs.run(["dpkg-deb", "-x", deb, unpacked], purpose="unpacking BusyBox", hold=(work.lock,))
    # Where newer releases put all their programs, it is below /usr.
    places = (unpacked / BUSYBOX, unpacked / "usr" / BUSYBOX)
    binary = next((path for path in places if path.exists()), None)
    if binary is None:
        raise EncampError(Code.BUILD_FAILED, f"The Debian package {deb.name} lacks /{BUSYBOX}.")
    applets = programs.run(
        [binary, "--list-full"], purpose="asking BusyBox what it can do", hold=(work.lock,)
    )
    path = work.directory / "root.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        fill(tar, binary.read_bytes(), applets.split())
    progress.update("assembling BusyBox", 1.0)
    return tree.read(path)


def fill(tar: tarfile.TarFile, busybox: bytes, applets: list[str]) -> None:
    for name, mode in sorted(DIRECTORIES.items()):
        add(tar, name, mode, kind=tarfile.DIRTYPE)
    for name, text in sorted(FILES.items()):
        add(tar, name, 0o644, text.encode())
    add(tar, BUSYBOX, 0o755, busybox)
    for applet in sorted(set(applets) - {BUSYBOX, f"usr/{BUSYBOX}", "linuxrc"}):
        add(tar, applet, 0o777, kind=tarfile.SYMTYPE, link=f"/{BUSYBOX}")


def add(
    tar: tarfile.TarFile,
    name: str,
    mode: int,
    data: bytes = b"",
    *,
    kind: bytes = tarfile.REGTYPE,
    link: str = "",
) -> None:
    member = tarfile.TarInfo(name)
    member.mode, member.type, member.linkname = mode, kind, link
    member.size, member.mtime = len(data), EPOCH
    member.uname = member.gname = "root"
    tar.addfile(member, io.BytesIO(data))
