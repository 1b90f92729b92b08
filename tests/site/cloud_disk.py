"""Makes real disks to test with: a boot loader, a kernel, systemd, cloud-init, qemu-guest-agent and
an ssh server, all Debian's, on one partition. No loop device and no root are needed for it.

One is what a distribution calls a cloud image; the others are the same with something taken away.
"""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
from pathlib import Path

from encamp import programs
from encamp.images.apt import acquire_settings, environment, host_sources

SUITE = "bookworm"
PACKAGES = (
    "linux-image-cloud-amd64",
    "initramfs-tools",
    "systemd-sysv",
    "udev",
    "dbus",
    "iproute2",
    "netplan.io",
    "cloud-init",
    "qemu-guest-agent",
    "openssh-server",
)
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")

SECTOR = 512
START = 2048
"""The first sector of the partition; what comes before is the boot loader's."""
SECTORS = 700 * 2048
GRUB = Path("/usr/lib/grub/i386-pc")
GRUB_MODULES = ("biosdisk", "part_msdos", "ext2", "linux")
QUICK = (
    "mitigations=off apparmor=0 init_on_alloc=0 nowatchdog psi=0 tsc=reliable random.trust_cpu=on"
    " cryptomgr.notests"
)
"""Without what only takes time under emulation."""
MENU = f"""\
set root=(hd0,msdos1)
linux /vmlinuz root=/dev/vda1 rw console=ttyS0 quiet systemd.show_status=yes {QUICK}
initrd /initrd.img
boot
"""

BEFORE = r"""
set -e
mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/usr/share/initramfs-tools/modules.d"
printf 'MODULES=list\nCOMPRESS=lz4\n' > "$1/etc/initramfs-tools/conf.d/small"
printf 'virtio_pci\nvirtio_blk\next4\n' > "$1/usr/share/initramfs-tools/modules.d/disk"
"""

NOT_NEEDED = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "cloud-config.service",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty@tty1.service",
    "serial-getty@ttyS0.service",
    "systemd-binfmt.service",
    "proc-sys-fs-binfmt_misc.automount",
    "systemd-journal-flush.service",
    "systemd-networkd-wait-online.service",
    "systemd-pstore.service",
    "systemd-timesyncd.service",
    "systemd-update-utmp.service",
    "systemd-update-utmp-runlevel.service",
)
"""Units that only take time under emulation."""

CLOUD = """\
datasource_list: [NoCloud, None]
ssh_genkeytypes: [ed25519]
cloud_init_modules: [bootcmd, write-files, set_hostname, users-groups, ssh, runcmd]
cloud_config_modules: []
cloud_final_modules: [scripts-user]
"""
"""A selection of what cloud-init does by itself; each module takes its time under emulation, and so
does each start of cloud-init: `runcmd` comes one stage earlier than elsewhere, where it only writes
the script that the last stage runs."""

AGENT = """\
[Unit]
StartLimitIntervalSec=0
[Service]
ExecStart=/usr/sbin/qemu-ga
Restart=always
RestartSec=1
"""
"""Debian's own unit is bound to its port's device, and not started again should that come late."""

NETWORK = """\
network: {version: 2, ethernets: {first: {match: {name: "e*"}, dhcp4: true}}}
"""

AFTER = r"""
set -e
tree=$1
for unit in $NOT_NEEDED; do ln -sf /dev/null "$tree/etc/systemd/system/$unit"; done
printf '%s' "$CLOUD" > "$tree/etc/cloud/cloud.cfg.d/90-test.cfg"
printf '%s' "$AGENT" > "$tree/etc/systemd/system/qemu-guest-agent.service"
wants="$tree/etc/systemd/system/multi-user.target.wants"
ln -s ../qemu-guest-agent.service "$wants/qemu-guest-agent.service"
echo '/dev/vda1 / ext4 noatime 0 1' > "$tree/etc/fstab"
: > "$tree/etc/machine-id"
rm -rf "$tree"/var/lib/apt/lists/* "$tree"/var/cache/apt/*.bin "$tree"/var/log/*.log
# Without what is mounted in the tree while it is worked on.
export tree
unshare --mount sh -c '
    grep -o " $tree/[^ ]* " /proc/self/mountinfo | sort -ru | xargs -r umount -l
    exec mke2fs -q -t ext4 -F -m 0 -O ^has_journal -E "offset=$OFFSET,nodiscard" \
        -d "$tree" "$DISK" "${SIZE}k"'
"""


def cloud_disk(cache: Path) -> Path:
    """A cloud image, raw; made once and kept."""
    made_of = (SUITE, PACKAGES, LEFT_OUT, SECTORS, MENU, BEFORE, NOT_NEEDED, CLOUD, AGENT, AFTER)
    path = cache / f"cloud-{hashlib.sha256(repr(made_of).encode()).hexdigest()[:16]}.raw"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        for older in cache.glob("cloud-*.raw"):
            older.unlink()
        # Whoever builds without being root does it as other users, who must get in.
        with tempfile.TemporaryDirectory(prefix="encamp-disk-") as directory:
            Path(directory).chmod(0o777)
            made = Path(directory) / "disk"
            with made.open("xb") as file:
                file.truncate((START + SECTORS) * SECTOR)
            made.chmod(0o666)
            install(made)
            make_bootable(made)
            copy_sparse(made, path)
    return path


def without_cloud_init(disk: Path, target: Path) -> Path:
    """The same disk where cloud-init is switched off, as its administrator would do that."""
    copy_sparse(disk, target)
    change(target, "cd /etc/cloud", "write /dev/null cloud-init.disabled")
    return target


def without_agents(disk: Path, target: Path) -> Path:
    """The same disk with neither cloud-init nor qemu-guest-agent: its ssh server is left, and a
    network that somebody has set up on it."""
    without_cloud_init(disk, target)
    units = "/etc/systemd/system"
    network = target.with_suffix(".network")
    network.write_text(NETWORK)
    network.chmod(0o600)
    change(
        target,
        f"write {network} /etc/netplan/dhcp.yaml",
        "rm /usr/sbin/qemu-ga",
        f"rm {units}/qemu-guest-agent.service",
        f"rm {units}/multi-user.target.wants/qemu-guest-agent.service",
    )
    return target


def without_boot_loader(disk: Path, target: Path) -> Path:
    """The same disk with something in its first sector that leads nowhere."""
    copy_sparse(disk, target)
    with target.open("r+b") as file:
        file.write(b"\xcd\x18" * 8)  # The BIOS's own word for: nothing to boot here.
    return target


def install(disk: Path) -> None:
    sources = disk.with_suffix(".sources")
    sources.write_text("".join(source.line() for source in host_sources(SUITE)))
    # What it mounts is gone with it, also if it is killed; without root it sees to that itself.
    words = ["unshare", "--mount", "--"] if os.geteuid() == 0 else []
    words += ["mmdebstrap", "--variant=minbase", "--format=null", f"--include={','.join(PACKAGES)}"]
    words += [f"--aptopt={line}" for line in acquire_settings()]
    words += ["--aptopt=APT::Install-Recommends false"]
    words += [f"--dpkgopt=path-exclude={path}" for path in LEFT_OUT]
    words += [f"--setup-hook={BEFORE}", f"--customize-hook={AFTER}"]
    run(
        *words,
        *(SUITE, "-", "-"),
        reads=sources,
        variables={
            "AGENT": AGENT,
            "CLOUD": CLOUD,
            "DISK": str(disk),
            "DPKG_FORCE": "unsafe-io",
            "NOT_NEEDED": " ".join(NOT_NEEDED),
            "OFFSET": str(START * SECTOR),
            "SIZE": str(SECTORS // 2),
            "TMPDIR": str(disk.parent),
        },
    )


def make_bootable(disk: Path) -> None:
    """A partition table and GRUB before the partition, as grub-install would have put it there."""
    core = disk.with_suffix(".core")
    menu = disk.with_suffix(".menu")
    menu.write_text(MENU)
    prefix = "(hd0,msdos1)/boot/grub"
    words = ["grub-mkimage", "-O", "i386-pc", "-p", prefix, "-c", str(menu), "-o", str(core)]
    run(*words, *GRUB_MODULES)
    active, linux = 0x80, 0x83
    far = b"\xfe\xff\xff"
    partition = struct.pack("<B3sB3sII", active, far, linux, far, START, SECTORS)
    loader = (GRUB / "boot.img").read_bytes()[:440]
    first = loader + bytes(6) + partition + bytes(48) + b"\x55\xaa"
    body = core.read_bytes()
    assert len(first) == SECTOR
    assert len(first) + len(body) <= START * SECTOR
    with disk.open("r+b") as file:
        file.write(first + body)


def change(disk: Path, *requests: str) -> None:
    """Change files on the disk's partition."""
    commands = disk.with_suffix(".commands")
    commands.write_text("".join(f"{request}\n" for request in requests))
    run("debugfs", "-w", "-f", str(commands), f"{disk}?offset={START * SECTOR}")
    commands.unlink()


def copy_sparse(source: Path, target: Path) -> None:
    # Under another name first: what is there is whole.
    half = target.with_suffix(".half")
    run("cp", "--sparse=always", "--reflink=auto", str(source), str(half))
    half.chmod(0o644)
    half.rename(target)


def run(*words: str, reads: Path | None = None, variables: dict[str, str] | None = None) -> None:
    """Run a program to its end; it ends too if the tests are interrupted."""
    with (reads or Path("/dev/null")).open("rb") as file:
        programs.run(
            words,
            purpose="making a disk to test with",
            environment={**environment(), **(variables or {})},
            reads=file,
        )
