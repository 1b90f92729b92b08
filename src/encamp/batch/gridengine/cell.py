"""A Grid Engine cell as its packages would make it, in a directory: the files it begins with, and
what its master is told first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

ROOT = Path("/var/lib/gridengine")
SPOOL = Path("/var/spool/gridengine")
PROGRAMS = Path("/usr/lib/gridengine")
SHARED = Path("/usr/share/gridengine")
CELL = "default"
ADMINISTRATOR = "sgeadmin"
"""The account that the packages make; what it owns, users cannot write to."""
QMASTER_PORT, EXECD_PORT = 6444, 6445

VARIABLES = {
    "SGE_ROOT": str(ROOT),
    "SGE_CELL": CELL,
    "SGE_ARCH": "lx-amd64",
    "SGE_QMASTER_PORT": str(QMASTER_PORT),
    "SGE_EXECD_PORT": str(EXECD_PORT),
}

BOOTSTRAP = f"""\
admin_user              {ADMINISTRATOR}
default_domain          none
ignore_fqdn             false
spooling_method         berkeleydb
spooling_lib            libspoolb
spooling_params         {SPOOL}/spooldb
binary_path             /usr/sbin
qmaster_spool_dir       {SPOOL}/qmaster
security_mode           none
listener_threads        2
worker_threads          2
scheduler_threads       1
"""

CONFIGURATION = {
    "execd_spool_dir": f"{SPOOL}/execd",
    "min_uid": "500",
    "min_gid": "500",
    "mailer": "/bin/true",
    "load_report_time": "00:00:05",
    "max_unheard": "00:00:30",
    "execd_params": "INHERIT_ENV=false",
    "reporting_params": "accounting=true reporting=false flush_time=00:00:01 joblog=false "
    "sharelog=00:00:00",
}
"""What differs from the packages' defaults: quick answers, no mail."""

GROUPS_BEGIN, GROUPS_EACH, MOST_HOSTS = 2_000_000, 100, 100
"""Jobs are told apart by a group of their own, of which each host of each site has some: on one
machine, each sees the processes of the others, and would take them for its own."""

SCHEDULER = {
    "schedule_interval": "0:0:1",
    "flush_submit_sec": "1",
    "flush_finish_sec": "1",
    "load_adjustment_decay_time": "0:0:0",
    "job_load_adjustments": "NONE",
}

QUEUE = {
    "hostlist": "@allhosts",
    "pe_list": "smp mpi",
    "rerun": "TRUE",
    "load_thresholds": "NONE",
    "shell": "/bin/sh",
    "shell_start_mode": "unix_behavior",
    "tmpdir": "/run/scratch",
    "notify": "00:00:05",
}
"""A busy machine may be the whole of a private site: load keeps nothing from starting."""

HOST = """\
hostname              {name}
load_scaling          NONE
complex_values        NONE
user_lists            NONE
xuser_lists           NONE
projects              NONE
xprojects             NONE
usage_scaling         NONE
report_variables      NONE
"""

PARALLEL = """\
pe_name            {name}
slots              999
user_lists         NONE
xuser_lists        NONE
start_proc_args    NONE
stop_proc_args     NONE
allocation_rule    {rule}
control_slaves     TRUE
job_is_first_task  FALSE
urgency_slots      min
accounting_summary FALSE
qsort_args         NONE
"""
PARALLEL_RULES = {"smp": "$pe_slots", "mpi": "$round_robin"}


def groups_of(site: int, host: int) -> str:
    first = GROUPS_BEGIN + (site * MOST_HOSTS + host) * GROUPS_EACH
    return f"gid_range {first}-{first + GROUPS_EACH - 1}\n"


def with_values(text: str, values: dict[str, str]) -> str:
    """A description as `qconf` prints it, with other values. A value may go on over lines."""
    lines: list[str] = []
    skipping = False
    for line in text.splitlines():
        if skipping:
            skipping = line.endswith("\\")
            continue
        name = line.split(maxsplit=1)[0] if line.strip() else ""
        if name in values:
            skipping = line.endswith("\\")
            line = f"{name} {values[name]}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def lay_out(directory: Path, master: str) -> None:
    """The directories and files that the master begins with."""
    for name in ("cell/common", "spool/qmaster/job_scripts", "spool/execd", "spool/spooldb"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    (directory / "log").mkdir(exist_ok=True)
    common = directory / "cell" / "common"
    (common / "act_qmaster").write_text(f"{master}\n")
    (common / "bootstrap").write_text(BOOTSTRAP)
    defaults = (SHARED / "default-configuration").read_text()
    (directory / "spool" / "first-configuration").write_text(with_values(defaults, CONFIGURATION))


def first_spooling() -> Sequence[Sequence[str]]:
    """The commands that fill the empty data base, as the administrator."""
    resources = str(SHARED / "util" / "resources")
    fill = str(PROGRAMS / "spooldefaults")
    return (
        (str(PROGRAMS / "spoolinit"), "berkeleydb", "libspoolb", f"{SPOOL}/spooldb", "init"),
        (fill, "configuration", f"{SPOOL}/first-configuration"),
        (fill, "complexes", f"{resources}/centry"),
        (fill, "usersets", f"{resources}/usersets"),
        (fill, "managers", ADMINISTRATOR, "root"),
        (fill, "operators", ADMINISTRATOR, "root"),
    )
