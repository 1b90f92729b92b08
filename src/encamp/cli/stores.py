"""What the host keeps to make machines from: templates, and its verdict on KVM."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from encamp.model.errors import Code, EncampError

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    templates = typer.Typer(help="Templates: environments booted once, to clone machines from.")
    templates.command("ls")(template_ls)
    templates.command("rm")(template_rm)
    app.add_typer(templates, name="template")
    app.command()(accelerator)


def template_ls(as_json: AsJson = False) -> None:
    """List the templates of this host."""
    from encamp.cli.machines import keeper, print_json
    from encamp.cli.tables import format_bytes, moment, show, table

    store = keeper().maker.templates
    found = store.ls()
    if as_json:
        print_json([template for template, _ in found])
        return
    made = table("key", "environment", "size", "network", "QEMU", "on disk", "made", "")
    for template, usable in found:
        hardware = template.hardware
        made.add_row(
            template.key[:8],
            template.environment,
            str(hardware.size),
            hardware.network,
            f"{template.qemu.split()[0]} {hardware.driver.value}",
            format_bytes(store.size(template)) if usable else "?",
            moment(template.created),
            "" if usable else "damaged: made again on next use",
        )
    show(made)


def template_rm(
    keys: Annotated[list[str] | None, typer.Argument(metavar="[KEY]...")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
) -> None:
    """Remove templates. Machines cloned from them live on; they are made again when needed."""
    from encamp.cli.machines import keeper

    store = keeper().maker.templates
    known = store.keys()
    chosen = known if everything else []
    for key in keys or ():
        matches = [other for other in known if other.startswith(key)]
        if len(matches) != 1:
            raise EncampError(
                Code.USAGE,
                f"'{key}' fits {len(matches)} templates.",
                "'encamp template ls' lists them.",
            )
        chosen += matches
    if not chosen and not everything:
        raise EncampError(Code.USAGE, "Which template?", "Name one, or --all.")
    for key in chosen:
        store.remove(key)
        print(key[:8])


def accelerator(
    again: Annotated[
        bool, typer.Option("--again", help="Forget the verdict and try anew.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Tell whether machines use KVM here, and what confines them."""
    import os

    import msgspec

    from encamp.cli.bar import Bar
    from encamp.cli.machines import keeper, print_json
    from encamp.describe.shipped import MINI
    from encamp.machines import accelerator as verdicts
    from encamp.machines.account import process_user
    from encamp.machines.process import confinement

    kept = keeper()
    if again:
        verdicts.forget(kept.home)
    with Bar() as bar:
        user = process_user(os.geteuid())
        verdict = verdicts.known(kept.home, user)
        if verdict is None:
            image = kept.maker.images.ensure(MINI, bar)
            verdict = asyncio.run(verdicts.decide(kept.home, image, user, bar))
    if as_json:
        print_json(msgspec.structs.asdict(verdict) | {"confinement": confinement()})
    else:
        print(f"{verdict.driver.value}: {verdict.reason}")
        print(f"confinement: {confinement()}")
