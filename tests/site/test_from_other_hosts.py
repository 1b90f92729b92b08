"""The command line on a host that is not the manager's: a token and HTTPS are all that it has.

A process to which all of the site's files are hidden stands for such a host.
"""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from encamp.home import Home
from encamp.model.errors import Code
from tests.builds import give_images
from tests.cli.driving import Running, on_terminal
from tests.manager.api.test_server import certificate
from tests.site.accounts import Account, accounts
from tests.site.siting import QUICK, RunningSite, free_port, root_only, running_site

pytestmark = [pytest.mark.site, root_only]

EVERY_BYTE = bytes(range(256))


class Far:
    """Somebody with an account elsewhere."""

    def __init__(self, site: RunningSite, account: Account, url: str) -> None:
        self.site = site
        self.account = account
        self.url = url
        self.authority = account.directory / "site.pem"

    @property
    def variables(self) -> dict[str, str]:
        return self.account.variables | {"ENCAMP_QUIET": "1"}

    def command(self, *words: str | Path) -> list[str | Path]:
        account = self.account
        become = ["setpriv", f"--reuid={account.uid}", f"--regid={account.gid}", "--clear-groups"]
        hidden = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"']
        encamp = [account.python, "-m", "encamp.cli.main"]
        return [*hidden, self.site.root, *become, *encamp, *words]

    def __call__(
        self, *words: str | Path, input: bytes = b"", code: int = 0
    ) -> CompletedProcess[bytes]:
        done = subprocess.run(
            self.command(*words),
            cwd=self.account.directory,
            env=self.variables,
            input=input,
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stderr.decode()}"
        return done

    def token(self, scope: str) -> bytes:
        words = ("token", "create", "--scope", scope, "--owner", self.account.name)
        return self.site(*words).stdout.encode()

    def log_in(self, scope: str = "use") -> str:
        token = self.token(scope)
        done = self("login", self.url, "--authority", self.authority, input=token)
        return done.stderr.decode()


@pytest.fixture(scope="module")
def far(site_home: Home) -> Iterator[Far]:
    with tempfile.TemporaryDirectory(prefix="encamp-far-") as name:
        place = Path(name)
        place.chmod(0o755)
        (place / "site").mkdir(mode=0o711)
        yield from served(place, place / "site", site_home)


def served(place: Path, root: Path, site_home: Home) -> Iterator[Far]:
    api = certificate(root / "tls", "manager")
    port = free_port()
    settings = f"""{QUICK}
api:
  listen: 127.0.0.1:{port}
  certificate: {api.certificate}
  key: {api.key}
"""
    with ExitStack() as held:
        nothing = Home(place / "nothing").prepare()
        (account,) = held.enter_context(accounts(1, place, nothing))
        give_images(Home(root / "node1-home").prepare(), site_home)
        site = held.enter_context(running_site(root, (), settings, start=False))
        site.add_agent("node1")
        with open(root / "node1" / "site.yaml", "a") as file:
            file.write("meeting:\n  listen: 127.0.0.1:0\n  address: 127.0.0.1\n")
        site.start()
        site.wait_for_hosts("node1")
        made = Far(site, account, f"https://127.0.0.1:{port}")
        shutil.copyfile(str(api.certificate), made.authority)
        made.authority.chmod(0o644)
        yield made


def test_site_is_used_as_if_its_manager_were_here(far: Far) -> None:
    refused = far("login", far.url, input=far.token("use"), code=Code.UNTRUSTED.value)
    assert b"--authority" in refused.stderr
    assert f"takes you for {far.account.name}, with a token for 'use'" in far.log_in()
    saved = far.account.directory / ".config" / "encamp" / "login.json"
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    assert stat.S_IMODE(saved.parent.stat().st_mode) == 0o700
    assert far.url in far("login").stdout.decode()
    assert far.account.name in far("status").stdout.decode()

    # A job, with files and streams.
    (far.account.directory / "data").write_bytes(EVERY_BYTE * 1000)
    script = "cat data; cp data copy; cat; id -u >&2; exit 7"
    words = ("run", "--in", "data", "--out", "copy", "--", "sh", "-c", script)
    done = far(*words, input=EVERY_BYTE, code=7)
    assert done.stdout == EVERY_BYTE * 1001
    assert done.stderr == f"{far.account.uid}\n".encode()
    copy = far.account.directory / "copy"
    assert copy.read_bytes() == EVERY_BYTE * 1000
    assert copy.stat().st_uid == far.account.uid
    (job,) = far.site.ask("jobs", "--all")
    assert job["request"]["owner"] == far.account.name

    # One that nobody waits for.
    script = r"echo begun; sleep 0.5; printf 'o\033ver\n'; echo kept > left"
    name = far("run", "--detach", "--out", "left", "--", "sh", "-c", script).stdout.decode().strip()
    assert far("logs", "--follow", name).stdout == b"begun\no\x1bver\n"
    # An administrator's terminal is told nothing by it.
    assert far.site("logs", name).stdout == "begun\no\x1bver\n"
    with on_terminal(far.site.environment, "logs", name, rows=24, columns=80) as terminal:
        assert terminal.all() == b"begun\r\no\\x1bver\r\n"
    far("fetch", name)
    assert (far.account.directory / "left").read_text() == "kept\n"

    # A machine that stays.
    assert far("start", "--name", "work").stdout == b"work\n"
    listed = far("ps").stdout.decode()
    assert "work" in listed
    assert far.account.name in listed
    assert far("exec", "work", "--", "cat", input=EVERY_BYTE).stdout == EVERY_BYTE
    far("copy", "data", "work:/var/tmp/given")
    far("copy", "work:/var/tmp/given", "back")
    assert (far.account.directory / "back").read_bytes() == EVERY_BYTE * 1000
    assert b"guest waited for" in far("show", "work").stdout
    assert b"encamp-guest: ready" in far("console", "work").stdout
    assert b"on host node1" in far("save", "work", "given").stderr
    script = "wc -c < /var/tmp/given"
    assert far("run", "--image", "given", "--", "sh", "-c", script).stdout == b"256000\n"
    far("stop", "work")
    far("rm", "work")

    far("logout")
    assert not saved.exists()


def test_environment_of_ones_own_goes_along_with_the_job(far: Far) -> None:
    described = far.account.directory / "environments.yaml"
    described.write_text("mine: {extends: ours, context: {variables: {GREETING: Hello}}}\n")
    of_the_site = far.site.config / "environments.yaml"
    of_the_site.write_text(
        "ours: {extends: mini, context: {variables: {WHOSE: the site's}}}\n"
        "mind: {extends: mini, users: [root]}\n"
    )
    try:
        far.log_in()
        # Neither the host nor the manager has the one; the host does not have the other.
        words = ("--", "sh", "-c", "echo $GREETING from $WHOSE; id -un")
        done = far("run", "-e", "mine", *words)
        assert done.stdout.decode() == f"Hello from the site's\n{far.account.name}\n"
        done = far("run", "-e", "ours", *words)
        assert done.stdout.decode() == f"from the site's\n{far.account.name}\n"
        done = far("run", "-e", "min", *words, code=Code.UNKNOWN_ENVIRONMENT.value)
        assert b"mind" not in done.stderr
        # That the site describes what the caller's own extends is not known here.
        assert b"'ours'" not in done.stderr
        listed = far("env", "ls").stdout.decode()
        assert ("ours" in listed, "(site)" in listed, "mind" in listed) == (True, True, False)
        found = {one["name"]: one for one in json.loads(far("env", "ls", "--json").stdout)}
        assert found["mine"]["file"] == str(described)
        assert "file" not in found["ours"]
        assert "mind" in far.site("env", "ls").stdout
        assert b"ours" not in far("env", "ls", "--local", code=Code.CONFIGURATION.value).stdout
        assert b"One of your own goes into environments.yaml" in done.stderr
    finally:
        described.unlink()
        of_the_site.unlink()


def test_job_and_its_client_outlast_manager_and_agent(far: Far) -> None:
    """The manager is found again by its address; the agent is met at another port."""
    far.log_in()
    words = far.command("run", "--", "cat")
    with subprocess.Popen(
        words,
        cwd=far.account.directory,
        env=far.variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        running = Running(process)
        running.type(b"before\n")
        assert running.line() == b"before\n"
        for daemon in ("manager", "node1"):
            far.site.daemons[daemon].kill()
            far.site.daemons[daemon].start()
            running.type(b"meanwhile\n")
            assert running.line() == b"meanwhile\n"
        far.site.wait_for_hosts("node1")
        running.type(b"after\n")
        assert running.line() == b"after\n"
        assert running.ends_with() == 0
    far("logout")


def test_nobody_goes_further_than_their_token(far: Far) -> None:
    name = far.site("run", "--detach", "--", "sleep", "1000").stdout.strip()
    no = Code.NOT_PERMITTED.value
    try:
        far.log_in()
        assert name not in far("jobs", "--all", "--json").stdout.decode()
        far("cancel", name, code=Code.USAGE.value)
        far("command", "send", "node1", "agent.ping", code=no)
        far("token", "create", code=no)
        far("audit", code=no)
        far("run", "--share", ".", "--", "true", code=Code.USAGE.value)
        far.log_in("read")
        assert b"node1" in far("hosts").stdout
        assert b"this needs 'use'" in far("run", "--", "true", code=no).stderr
    finally:
        far.site("cancel", name)
    administering = far.site("token", "create", "--scope", "administer").stdout.encode()
    far("login", far.url, "--authority", far.authority, input=administering)
    made = far("token", "create", "--owner", "carol", "--scope", "read")
    assert b"is for carol" in made.stderr

    far.log_in()
    for token in far.site.ask("token", "ls"):
        far.site("token", "revoke", token["id"])
    assert b"'encamp login URL'" in far("jobs", code=no).stderr
    far("logout")
    assert b"encamp login" in far("jobs", code=Code.UNREACHABLE.value).stderr
