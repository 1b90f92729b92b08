"""A small image with a batch system's daemons: BusyBox, and of this host what those need."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

SLURM = ("/usr/sbin/slurmd", "/usr/sbin/slurmstepd", "/usr/sbin/munged")
SLURM_PLUGINS = Path("/usr/lib/x86_64-linux-gnu/slurm-wlm")
GRID_ENGINE = tuple(
    f"/usr/lib/gridengine/{name}" for name in ("sge_execd", "sge_shepherd", "sge_coshepherd")
)
NOT_FOR_NODES = re.compile(r"(openapi|mpi_pmi|burst|.*_lua|libslurm_pmi|.*cray|.*knl)")
PASSWORDS = """\
root:*:0:0:root:/root:/bin/sh
munge:*:120:120::/nonexistent:/bin/false
sgeadmin:*:121:121::/var/lib/gridengine:/bin/sh
nobody:*:65534:65534::/nonexistent:/bin/false
"""
GROUPS = "root:*:0:\nmunge:*:120:\nsgeadmin:*:121:\nnogroup:*:65534:\n"


def slurm_tree(root: Path) -> Path:
    plugins = [
        path for path in SLURM_PLUGINS.glob("*.so") if not NOT_FOR_NODES.fullmatch(path.stem)
    ]
    return tree(root, [*map(Path, SLURM), *plugins])


def gridengine_tree(root: Path) -> Path:
    tree(root, map(Path, GRID_ENGINE))
    (root / "usr/sbin").mkdir()
    for path in map(Path, GRID_ENGINE):
        # Where the cell says that programs are; on Debian there is a script in between.
        (root / "usr/sbin" / path.name).symlink_to(path)
    return root


def tree(root: Path, files: Iterable[Path]) -> Path:
    """A directory with these files and the libraries that they need, as they lie on this host."""
    wanted = set(files)
    for file in list(wanted):
        found = subprocess.run(["ldd", file], capture_output=True, text=True, check=False)
        wanted.update(Path(path) for path in re.findall(r"(/\S+) \(0x", found.stdout))
    for file in wanted:
        target = root / file.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file.resolve(), target)
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/passwd").write_text(PASSWORDS)
    (root / "etc/group").write_text(GROUPS)
    return root
