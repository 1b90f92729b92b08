"""`encamp login` and `encamp logout`: the site that commands go to from a host that is not its
manager's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from encamp.model.errors import Code, EncampError

if TYPE_CHECKING:
    from encamp.client.login import Login
    from encamp.client.place import Place
    from encamp.door.questions import Asker, Status


def register(app: typer.Typer) -> None:
    app.command()(login)
    app.command()(logout)


def login(
    url: Annotated[
        str,
        typer.Argument(
            metavar="[URL]",
            help="Where its manager answers: https://HOST:PORT, or HOST. Of several managers, all"
            " of theirs, with commas.",
            show_default=False,
        ),
    ] = "",
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="The token is in this file."),
    ] = None,
    authority: Annotated[
        Path | None,
        typer.Option(
            "--authority",
            metavar="FILE",
            help="The certificate that vouches for the manager's, if this host does not trust it.",
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Let the token go over the network in clear, by http://."),
    ] = False,
) -> None:
    """Work with a site whose manager is elsewhere.

    From then on, all commands go to that site; 'encamp logout' ends that. The token is asked for,
    or read from standard input; 'encamp token create' on the manager's host makes one. It is kept
    in your configuration directory, where only you can read it. Without a URL, it is told where you
    are logged in, and as whom.

    Example: encamp login https://manager.example.org:7478 --authority site.pem
    """
    if not url:
        if token_file or authority or insecure:
            raise EncampError(
                Code.USAGE, "There is no URL to log in at.", "See 'encamp login --help'."
            )
        _tell()
        return
    import sys

    from encamp.client.login import Login
    from encamp.client.place import Place, addresses, authority_text

    # What is wrong with the address is said before anybody is asked for a secret.
    where = ",".join(addresses(url, insecure=insecure))
    text = authority_text(str(authority)) if authority else ""
    wanted = Login(url=where, token=_token(token_file), authority=text, insecure=insecure)
    status = _status(Place(login=wanted))
    _save(wanted)
    print(f"Logged in at {where}: {_site(status)}.", file=sys.stderr)
    for line in _about(status):
        print(line, file=sys.stderr)


def logout() -> None:
    """Forget the login of 'encamp login'.

    The token is valid until it ends; 'encamp token revoke' takes it back.
    """
    import sys

    from encamp.home import login_path

    try:
        Path(login_path()).unlink()
    except FileNotFoundError:
        raise _nowhere() from None
    except OSError as error:
        raise EncampError(
            Code.NOT_PERMITTED, f"{login_path()} cannot be removed: {error.strerror}."
        ) from error
    print("Logged out.", file=sys.stderr)


def _tell() -> None:
    import os

    from encamp.client.login import saved_login
    from encamp.client.place import Place

    saved = saved_login()
    if saved is None:
        raise _nowhere()
    print(f"Logged in at {saved.url}.")
    for name in ("ENCAMP_DOOR", "ENCAMP_URL"):
        if os.environ.get(name):
            print(f"Commands do not go there now, but where {name} says.")
            break
    status = _status(Place(login=saved))
    print(f"It is {_site(status)}.")
    for line in _about(status):
        print(line)


def _nowhere() -> EncampError:
    return EncampError(
        Code.WRONG_STATE, "You are not logged in at any site.", "'encamp login URL' does that."
    )


def _token(file: Path | None) -> str:
    import sys

    from encamp.client.place import token_in

    if file is not None:
        return token_in(file)
    if sys.stdin.isatty():
        import getpass

        return getpass.getpass("Token: ").strip()
    return sys.stdin.readline().strip()


def _status(place: Place) -> Status:
    from encamp.client.far_door import HttpDoor
    from encamp.door.client import ask
    from encamp.door.questions import AskStatus, Status

    found = list(ask(HttpDoor(place), AskStatus(), Status))
    if len(found) != 1:
        raise EncampError(Code.PROTOCOL, f"The manager at {place} does not say how it is.")
    return found[0]


def _save(login: Login) -> None:
    import msgspec

    from encamp.home import login_path
    from encamp.manager.site_files import PRIVATE, make_directory, write_whole

    path = Path(login_path())
    make_directory(path.parent, 0o700)
    write_whole(path, msgspec.json.encode(login), PRIVATE)


def _site(status: Status) -> str:
    from encamp.cli.tables import clean

    return f"site '{clean(status.site)}', Encamp {clean(status.version)}"


def _about(status: Status) -> list[str]:
    import os

    from encamp.cli.tables import clean
    from encamp.home import user_name

    if status.asker is None:
        return []
    lines = [f"The site takes you for {described(status.asker)}."]
    here = user_name(os.geteuid())
    if status.asker.user != here:
        other = clean(status.asker.user)
        lines.append(f"Here you are {here}; on the site your jobs and machines are {other}'s.")
    return lines


def described(asker: Asker) -> str:
    """Who somebody is to the site, and how far that goes."""
    from encamp.cli.tables import clean, moment

    words = [clean(asker.user)]
    if asker.administrator:
        words.append("an administrator")
    if asker.scope is not None:
        ends = f" until {moment(asker.expires)}" if asker.expires else ""
        words.append(f"with a token for '{asker.scope.value}'{ends}")
    return ", ".join(words)
