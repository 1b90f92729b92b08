"""`encamp save`: what a machine has become, as an image."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated

import msgspec
import typer

from encamp.model.recipe import Compression


def register(app: typer.Typer) -> None:
    app.command()(save)


def save(
    machine: Annotated[str, typer.Argument(metavar="MACHINE", show_default=False)],
    name: Annotated[str, typer.Argument(metavar="NAME[:VERSION]", show_default=False)],
    compression: Annotated[
        Compression,
        typer.Option("--compression", help="How the image is packed: smaller, or faster."),
    ] = Compression.ZSTD,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Save a running machine as an image. Prints the image's digest.

    Only what the machine changed is stored, as a layer over its own image. The machine goes on;
    files that are being written are saved as they are at that moment. What is the machine's own
    stays out: its host name and machine id, what is in /tmp and /run, shares, and the files and
    keys that its context put there. An image of that name, if there is one, is no longer meant by
    it.

    Example: encamp save work tools:1.0 && encamp run --image tools:1.0 -- cc --version
    """
    from encamp.agent.keeper import Keeper
    from encamp.agent.saving import save as save_machine
    from encamp.cli.bar import Bar
    from encamp.cli.machines import is_elsewhere, print_json
    from encamp.home import default_home

    saved: Mapping[str, object]
    if is_elsewhere(machine):
        from encamp.cli.site_moves import save_on_site

        saved = save_on_site(machine, name, compression)
    else:
        keeper = Keeper.open(default_home())
        found = keeper.journal.find(machine)
        with Bar() as bar:
            made = asyncio.run(save_machine(keeper, found, name, bar, compression))
        saved = msgspec.structs.asdict(made)
    if as_json:
        print_json(saved)
    else:
        print(saved["digest"])
