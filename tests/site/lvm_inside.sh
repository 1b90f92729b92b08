#!/bin/sh
# Runs in a machine: gives it the host's programs (shared read-only), device-mapper and a volume
# group with a thin pool, then runs a command there. Its memory is all that is written to.
#
#   lvm_inside.sh USR MODULES COMMAND...
set -eu
usr=$1 modules=$2 root=/tmp/root
shift 2

mkdir "$root"
mount -t tmpfs -o size=100% tmpfs "$root"
cd "$root"
mkdir -p usr dev proc sys run/lock tmp etc/lvm var/lib shared
ln -s usr/bin usr/sbin usr/lib usr/lib64 .
mount -o bind "$usr" usr
mount -o rbind "${usr%/*}" shared
mount -t devtmpfs dev dev
mount -t proc proc proc
mount -t sysfs sys sys
# There is no udev to make the nodes of devices, and nobody to watch over pools.
cat >etc/lvm/lvm.conf <<END
activation { udev_sync = 0 udev_rules = 0 verify_udev_operations = 1 monitoring = 0 }
devices { obtain_device_list_from_udev = 0 }
backup { backup = 0 archive = 0 }
END

for module in libcrc32c dm-mod dm-bufio dm-bio-prison dm-persistent-data dm-thin-pool loop; do
    insmod "$modules/$module.ko"
done
truncate -s 512M tmp/disk
losetup /dev/loop0 tmp/disk

inside() {
    env - PATH=/usr/sbin:/usr/bin LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 chroot . "$@"
}
inside pvcreate --quiet /dev/loop0
inside vgcreate --quiet machines /dev/loop0
inside lvcreate --quiet --type thin-pool --size 200M --name pool machines
inside "$@"
