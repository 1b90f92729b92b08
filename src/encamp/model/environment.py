"""An environment: what a job asks for by name."""

from __future__ import annotations

import enum

import msgspec

from encamp.model.driver import DriverName, Isolation
from encamp.model.machine import After, Share
from encamp.model.node import Enrolment
from encamp.model.recipe import AddedFile, Recipe
from encamp.model.size import Size
from encamp.model.storage import Storage as Storage


class DescriptionFile(msgspec.Struct, frozen=True):
    """A file of descriptions that its owner sends along with a request."""

    path: str
    """Where it is for its owner: mistakes are told with it."""
    directory: str
    """What relative paths in it are relative to."""
    text: str


class Answer(enum.Enum):
    """Who answers first in a machine that has come up."""

    GUEST = "guest"
    """Encamp's guest program."""
    QEMU_AGENT = "qemu-agent"
    """qemu-guest-agent, in a disk that brings it along."""
    SSH = "ssh"
    """The ssh server of a disk."""


class Readiness(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to tell that a machine is ready for work. All that is given must hold."""

    answer: Answer = Answer.GUEST
    command: tuple[str, ...] = ()
    """Succeeds, as root, in the machine."""
    port: int | None = None
    """A TCP port of the machine that answers."""
    file: str | None = None
    """A path that exists in the machine."""
    timeout: float = 120.0
    """Seconds until it is given up."""
    interval: float = 0.5
    """Seconds between two tries."""

    @property
    def tested(self) -> bool:
        """Whether there is more to test than that the guest answers."""
        return bool(self.command) or self.port is not None or self.file is not None


class Account(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A user that a machine shall know."""

    name: str
    uid: int
    gid: int | None = None
    """As the uid if not given."""
    home: str | None = None
    """/home/NAME if not given."""
    shell: str = "/bin/sh"
    ssh_keys: tuple[str, ...] = ()


class Context(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What each machine is handed at its first start, before it is ready."""

    files: tuple[AddedFile, ...] = ()
    variables: dict[str, str] = {}
    users: tuple[Account, ...] = ()
    ssh_keys: tuple[str, ...] = ()
    """May log in as root and as the job's user."""
    user_data: str | None = None
    """Handed to the machine as it is: /run/encamp/user-data, and cloud-init's user data."""
    run: tuple[str, ...] = ()
    """Shell commands run as root, one after another, after all else is in place; a service is
    started by one that ends in `&`, or that puts itself into the background."""

    @property
    def handed(self) -> bool:
        """Whether there is anything to hand over that is not just said with every command."""
        return bool(
            self.files or self.users or self.ssh_keys or self.run or self.user_data is not None
        )


class Environment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    summary: str = ""
    image: Recipe | str
    """How its image is built; or an image by name (`NAME[:VERSION]`) or digest."""
    size: Size
    storage: Storage = Storage.AUTO
    network: str = "none"
    isolation: Isolation = Isolation.KERNEL
    """The weakest that its machines take."""
    driver: DriverName | None = None
    """What its machines are made of; None: what suits them best on their host."""
    shares: tuple[Share, ...] = ()
    devices: tuple[str, ...] = ()
    """Devices beyond what every machine has."""
    kernel_arguments: tuple[str, ...] = ()
    templates: bool = True
    """May machines be cloned from a template, or must each one boot?"""
    ready: Readiness = Readiness()
    context: Context = msgspec.field(default_factory=Context)
    after: After = After.DESTROY
    reuse: bool = False
    """May a machine have one job of its owner after the other, where those allow it, too?"""
    save_as: str | None = None
    """The image that `after: save` makes: NAME or NAME:VERSION."""
    enrol: Enrolment | None = None
    """Its machines are worker nodes of a batch system."""
    labels: dict[str, str] = {}
    classes: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    """Who may use it: names, and groups as `@group`; everybody if none is named."""
    qemu: tuple[str, ...] = ()
    """More words of QEMU's command line; only a site's administrators write them."""
    origin: str = ""
    """The file that describes it."""


def image_name(environment: Environment) -> str:
    """What people call its image."""
    image = environment.image
    if isinstance(image, str):
        return image
    return f"{image.name}:{image.version}" if image.version else image.name
