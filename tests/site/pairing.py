"""Two managers of one site, as on two hosts: each has its own home, configuration and door."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from encamp.door.client import ask
from encamp.door.questions import AskStatus, Question, Status
from encamp.model.errors import Code, EncampError
from tests.site.siting import ENCAMP, QUICK, Daemon, RunningSite, running_site

HOSTS = ("first", "second")

MUCH = 2_000_000
"""Characters."""
TASK = f"""
much:
  run: [/bin/sh, -c, 'head -c {MUCH} /dev/zero | tr "\\0" x']
  returns: str
"""
TASK += """
task:
  run:
    - /bin/sh
    - -c
    - 'echo "$1" >> "$0"; echo "$1"'
    - BEGUN
    - '{number}'
  parameters: "number: str"
  returns: str
count:
  run:
    - /bin/sh
    - -c
    - >-
      echo count >> "$0";
      i=0; while [ ! -e "$0.enough" ]; do i=$((i + 1)); echo line $i; sleep 0.1; done
    - BEGUN
  returns: str
"""


class Pair:
    def __init__(self, site: RunningSite) -> None:
        self.site = site
        self.begun = site.root / "begun"
        """A line for each command that was ever begun."""

    def add_manager(
        self, host: str, store: str, prefix: Sequence[str] = (), settings: str = ""
    ) -> Daemon:
        config, home = self.site.root / f"{host}-config", self.home(host)
        shutil.copytree(self.site.config, config, dirs_exist_ok=True)
        with open(config / "site.yaml", "a") as file:
            file.write(f"host: {host}\nstore: {store}\n{settings}")
        home.mkdir(exist_ok=True)
        environment = {
            **self.site.environment,
            "ENCAMP_HOME": str(home),
            "ENCAMP_SITE_CONFIG": str(config),
        }
        words = [*prefix, str(ENCAMP), "manager", "--verbose"]
        return self.site.add_daemon(host, words, environment)

    def home(self, host: str) -> Path:
        return self.site.root / f"{host}-home"

    def daemon(self, host: str) -> Daemon:
        return self.site.daemons[host]

    def ask(self, host: str, question: Question, *expected: type) -> list[Any]:
        return list(ask(self.home(host) / "manager.sock", question, *expected))

    def status(self, host: str) -> Status | None:
        """None: nobody answers there."""
        try:
            (found,) = self.ask(host, AskStatus(), Status)
        except EncampError as error:
            if error.code is not Code.UNREACHABLE:
                raise
            return None
        assert isinstance(found, Status)
        return found

    def epoch(self, host: str) -> int:
        found = self.status(host)
        return found.leadership.epoch if found is not None else 0

    def leads(self, host: str) -> bool:
        found = self.status(host)
        return found is not None and found.leads

    def stands_by(self, host: str) -> bool:
        found = self.status(host)
        return found is not None and not found.leads

    def leader(self) -> str:
        """Waits until there is one, and makes it the one that the site's own questions go to."""
        leads = self.site.wait_for("a leader", lambda: [host for host in HOSTS if self.leads(host)])
        assert len(leads) == 1
        self.look_at(leads[0])
        return str(leads[0])

    def look_at(self, host: str) -> None:
        self.site.home = self.home(host)

    def settled(self) -> tuple[str, str]:
        """Who leads and who stands by, ready to take over."""
        leader = self.leader()
        (other,) = set(HOSTS) - {leader}
        self.site.wait_for(
            f"{other} standing by",
            lambda: (
                (found := self.status(leader))
                and [(seen.host, seen.trouble) for seen in found.leadership.standing_by]
                == [(other, "")]
            ),
        )
        self.site.wait_for_hosts("node1")
        return leader, other

    def have_lead(self, host: str) -> None:
        """Whoever leads."""
        leader, other = self.settled()
        if leader != host:
            self.daemon(leader).stop()
            assert self.leader() == other
            self.site.start(leader)
            self.settled()

    def ran(self) -> list[str]:
        return self.begun.read_text().split() if self.begun.exists() else []


@contextmanager
def pair(root: Path, *, host: str = "127.0.0.1") -> Iterator[Pair]:
    """A site with one agent, and no manager yet. `host`: where its bus listens."""
    with running_site(root, (), QUICK, start=False, host=host) as site:
        del site.daemons["manager"]
        made = Pair(site)
        site.add_agent("node1")
        commands = TASK.replace("BEGUN", str(made.begun))
        (site.root / "node1" / "commands.yaml").write_text(commands)
        yield made
