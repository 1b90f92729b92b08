"""The accounting of a private Slurm site: slurmdbd, and a database that nothing else can reach.

Whoever can open the database's socket may do everything in it, so the socket is in a directory of
root's. That spares the database tables of users, and with them seconds of setting up.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from encamp import programs
from encamp.batch.slurm.conf import LOOPBACK, accounting_port
from encamp.batch.slurm.places import wait_for

if TYPE_CHECKING:
    from encamp.batch.slurm.site import SlurmSite

PROGRAMS = ("mariadbd", "slurmdbd", "sacctmgr")

DATABASE = (
    *("mariadbd", "--no-defaults", "--user=root", "--skip-networking", "--skip-grant-tables"),
    # A site's few jobs, which nobody misses after a power failure.
    *("--innodb-buffer-pool-size=16M", "--innodb-log-file-size=4M", "--performance-schema=off"),
    "--innodb-flush-log-at-trx-commit=0",
)


def slurmdbd_conf(directory: Path, port: int) -> str:
    lines = [
        "AuthType=auth/munge",
        f"AuthInfo=socket={directory}/munge/socket",
        "DbdHost=localhost",
        f"DbdAddr={LOOPBACK}",
        f"DbdPort={port}",
        "CommunicationParameters=NoInAddrAny",
        "SlurmUser=root",
        "StorageType=accounting_storage/mysql",
        "StorageHost=localhost",
        "StorageUser=root",
        f"LogFile={directory}/log/slurmdbd",
        f"PidFile={directory}/run/slurmdbd.pid",
    ]
    return "\n".join(lines) + "\n"


def start_accounting(site: SlurmSite) -> None:
    """Before the controller, which asks slurmdbd what its own cluster is."""
    for name in PROGRAMS:
        programs.find(name)
    place, logs = site.directory / "accounts", site.directory / "log"
    place.chmod(0o700)
    port = accounting_port(site.port)
    conf = site.conf.with_name("slurmdbd.conf")
    conf.touch(mode=0o600)
    conf.write_text(slurmdbd_conf(site.directory, port))
    door = place / "socket"
    words = [*DATABASE, f"--datadir={place}", f"--socket={door}"]
    site.controller.start(words, log=logs / "said.mariadbd", polite=False)
    wait_for("mariadbd", door.exists, site.said)
    site.controller.start(
        ["slurmdbd", "-D"],
        log=logs / "said.slurmdbd",
        variables={"MYSQL_UNIX_PORT": str(door)},
        polite=False,
    )

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((LOOPBACK, port)) == 0

    wait_for("slurmdbd", listens, site.said)
    site.run(["sacctmgr", "--immediate", "add", "cluster", "encamp"])
