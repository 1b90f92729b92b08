"""A machine like Encamp's under libvirt, saved once and restored again and again.

The daemon is started here, in a mount namespace in which its own directories are empty, and is
ended here; the system's libvirt, if there is one, is neither used nor changed.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from xml.sax.saxutils import escape

from bench.bare import command_frames, connect, new_hello, read_until
from bench.ground import Ground
from bench.measure import ImpossibleError
from encamp.machines.engine import SHARES
from encamp.machines.freeze import boot_origin
from encamp.machines.hardware import PORTS, SHARES_PORT
from encamp.machines.qemu import KERNEL_ARGUMENTS
from encamp.model.driver import DriverName
from encamp.model.size import MIB

NAME = "encamp-bench"
PATIENCE = 60.0

DIRECTORIES = ("/run", "/var/lib/libvirt", "/var/cache/libvirt", "/var/log", "/etc/libvirt")
"""What the daemon gets empty ones of."""

QEMU_SETTINGS = """\
user = "root"
group = "root"
cgroup_controllers = [ ]
security_driver = "none"
namespaces = [ ]
stdio_handler = "file"
remember_owner = 0
"""

START = """\
set -e
directory=$1
shift
for empty; do mkdir -p "$empty"; mount -t tmpfs none "$empty"; done
mkdir -p /run/libvirt /var/log/libvirt/qemu
cp "$directory/qemu.conf" /etc/libvirt/
exec libvirtd --config "$directory/libvirtd.conf" --pid-file "$directory/pid"
"""


class SavedMachine:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._uri = f"qemu+unix:///system?socket={directory}/libvirt-sock"

    def virsh(self, *words: str) -> str:
        done = subprocess.run(
            ["virsh", "--connect", self._uri, "--quiet", *words],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        if done.returncode:
            raise ImpossibleError(f"`virsh {words[0]}` failed: {done.stderr.strip()}")
        return done.stdout

    def save(self, description: str) -> None:
        """Boot it, let it run something as Encamp does before it freezes, and save it."""
        described = self.directory / "machine.xml"
        described.write_text(description)
        self.virsh("create", str(described))
        with self._said(["echo", "ready"], b"ready\n"):
            pass
        self.virsh("save", NAME, str(self.directory / "saved"))

    def restore(self, words: Sequence[str], expected: bytes) -> float:
        """Milliseconds from `virsh restore` until a command has printed what it should."""
        started = time.perf_counter()
        self.virsh("restore", str(self.directory / "saved"))
        with self._said(words, expected):
            took = (time.perf_counter() - started) * 1000
        self.virsh("destroy", NAME)
        return took

    @contextmanager
    def _said(self, words: Sequence[str], expected: bytes) -> Iterator[socket.socket]:
        with connect(self.directory / "port.0") as port:
            port.sendall(new_hello().encode() + command_frames(words))
            read_until(port, expected)
            yield port


@contextmanager
def libvirt_machine(ground: Ground) -> Iterator[SavedMachine]:
    for program in ("libvirtd", "virsh", "unshare"):
        if shutil.which(program) is None:
            raise ImpossibleError(f"there is no `{program}` here; `tools/setup bench` installs it.")
    if os.geteuid() != 0:
        raise ImpossibleError("only root can start libvirt's daemon for machines of the system.")
    directory = ground.scratch / "libvirt"
    directory.mkdir()
    with _daemon(directory):
        machine = SavedMachine(directory)
        try:
            machine.save(_description(ground, directory))
            yield machine
        finally:
            if NAME in machine.virsh("list", "--all", "--name"):
                machine.virsh("destroy", NAME)


@contextmanager
def _daemon(directory: Path) -> Iterator[None]:
    (directory / "qemu.conf").write_text(QEMU_SETTINGS)
    (directory / "libvirtd.conf").write_text(
        f'unix_sock_dir = "{directory}"\n'
        'auth_unix_rw = "none"\nauth_unix_ro = "none"\n'
        f'log_outputs = "3:file:{directory}/log"\n'
    )
    words = ["unshare", "--mount", "--propagation", "private"]
    words += ["sh", "-c", START, "sh", str(directory), *DIRECTORIES]
    with (directory / "out").open("wb") as out:
        # `unshare` and the shell become the daemon, so this is its process.
        daemon = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + PATIENCE
        while not (directory / "libvirt-sock").exists():
            if daemon.poll() is not None or time.monotonic() > deadline:
                said = (directory / "out").read_text().strip().splitlines()
                raise ImpossibleError(f"libvirt's daemon did not start: {' '.join(said[-1:])}")
            time.sleep(0.05)
        yield
    finally:
        daemon.terminate()
        try:
            daemon.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _description(ground: Ground, directory: Path) -> str:
    """The machine, as like Encamp's as libvirt makes them."""
    plan = ground.plan
    arguments = plan.environment.kernel_arguments
    origin = boot_origin(ground.keeper.home, plan.image, plan.hardware, arguments, ground.scratch)
    kind, cpu = "qemu", "<cpu mode='maximum'/>"
    if plan.hardware.driver is DriverName.KVM:
        kind, cpu = "kvm", "<cpu mode='host-passthrough'/>"
    ports = "".join(
        f"<channel type='unix'><source mode='bind' path='{escape(str(directory))}/{name}'/>"
        f"<target type='virtio' name='{shown}'/></channel>"
        for name, shown in (
            *((f"port.{number}", f"encamp.{number}") for number in range(PORTS)),
            (SHARES, SHARES_PORT),
        )
    )
    return f"""\
<domain type='{kind}'>
  <name>{NAME}</name>
  <memory unit='MiB'>{plan.hardware.size.memory // MIB}</memory>
  <vcpu>{plan.hardware.size.cpus}</vcpu>
  <os>
    <type arch='x86_64' machine='pc'>hvm</type>
    <kernel>{escape(str(plan.image.kernel))}</kernel>
    <initrd>{escape(str(origin.initramfs))}</initrd>
    <cmdline>{escape(" ".join((*KERNEL_ARGUMENTS, *origin.arguments)))}</cmdline>
  </os>
  <features><acpi/></features>
  {cpu}
  <on_poweroff>destroy</on_poweroff>
  <on_reboot>destroy</on_reboot>
  <on_crash>destroy</on_crash>
  <devices>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw'/>
      <source file='{escape(str(plan.image.root))}'/>
      <target dev='vda' bus='virtio'/>
      <readonly/>
    </disk>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
    <serial type='file'><source path='{escape(str(directory))}/console'/></serial>
    {ports}
  </devices>
</domain>
"""
