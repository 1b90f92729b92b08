"""What is shipped beside the package: units for systemd that start what there is."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest
import typer.main

from encamp.cli.main import application

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
