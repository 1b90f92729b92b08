"""Starts a job as a batch system does:

    python shepherd.py ID UID GID GROUPS DIRECTORY UMASK OPEN-FILES MOST-OPEN-FILES WORD...

Its own process stays root's; the job is its child, with the job's user and groups, and the
shepherd's standard streams. Ends as the job does.
"""

import os
import resource
import signal
import sys


def main() -> None:
    _, _, uid, gid, groups, directory, umask, soft, hard, *words = sys.argv
    child = os.fork()
    if child == 0:
        os.setsid()
        for group in filter(None, os.environ.pop("SHEPHERD_GROUPS", "").split(":")):
            with open(f"{group}/cgroup.procs", "w") as file:
                file.write(str(os.getpid()))
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(soft), int(hard)))
        os.setgroups([int(group) for group in groups.split(",") if group])
        os.setgid(int(gid))
        os.setuid(int(uid))
        os.chdir(directory)
        os.umask(int(umask, 8))
        os.execv(words[0], words)
    with open(os.environ["SHEPHERD_CHILD"], "w") as file:  # Whoever watches finds the job by it.
        file.write(str(child))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
