"""What is shipped beside the package: units for systemd that start what there is."""

from __future__ import annotations

import ast
import configparser
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import typer.main

from encamp.batch.install.wanted import FIRST_DESCRIPTIONS
from encamp.cli.main import application
from tests.conftest import ROOT

UNITS = Path(__file__).parent.parent / "packaging" / "systemd"


def unit(name: str) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(interpolation=None, strict=False)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read_string((UNITS / f"encamp-{name}.service").read_text())
    return parsed


@pytest.mark.parametrize("name", ["manager", "agent"])
def test_a_unit_starts_a_command_that_there_is(name: str) -> None:
    program, encamp, command, *options = unit(name)["Service"]["ExecStart"].split()
    assert (program, encamp, command) == ("/usr/bin/env", "encamp", name)
    commands = vars(typer.main.get_command(application()))["commands"]
    known = {option for parameter in commands[name].params for option in parameter.opts}
    assert set(options) <= known


def test_machines_and_commands_outlive_the_agents_unit() -> None:
    service = unit("agent")["Service"]
    assert service["KillMode"] == "process"
    inherited = {"ProtectSystem", "PrivateTmp", "PrivateDevices", "NoNewPrivileges", "DeviceAllow"}
    assert not inherited & set(service), "the machines would be in a namespace of their own"


def test_what_is_left_on_hosts_names_no_pages_that_are_not_installed() -> None:
    written = [path.read_text() for path in UNITS.iterdir()]
    assert not [text for text in (*written, FIRST_DESCRIPTIONS.decode()) if "docs/" in text]


OPTIONAL = {"matplotlib": "plots", "psycopg": "postgresql"}
"""What is imported where an extra is needed, which the error names."""


def imported() -> set[str]:
    """Modules of others that Encamp imports anywhere."""
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"encamp"}


def test_what_is_imported_is_installed_with_it() -> None:
    """The tests have more than users: what only they install would not be missed here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def names(requirements: list[str]) -> set[str]:
        words = (re.split(r"[^A-Za-z0-9._-]", one, maxsplit=1)[0] for one in requirements)
        return set(map(plain, words))

    def plain(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    needed = names(project["dependencies"]) | {"nkeys"}  # nats-py[nkeys]
    known = packages_distributions()
    for module in imported():
        extra = OPTIONAL.get(module)
        given = needed if extra is None else names(project["optional-dependencies"][extra])
        assert plain(known[module][0]) in given, f"'{module}' is not among the dependencies"
