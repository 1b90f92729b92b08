# Runs in a machine, as root, with variables before it: makes it a node of Slurm's.
# The key is for the daemon that needs it, and for nobody else.
owner=root
if grep -q '^munge:' /etc/passwd; then owner=munge; fi
mkdir -p /etc/munge /var/lib/munge /var/log/munge /run/munge
chmod 0700 /etc/munge /var/lib/munge /var/log/munge
chmod 0755 /run/munge
chown -R "$owner" /etc/munge /var/lib/munge /var/log/munge /run/munge
chmod 0400 /etc/munge/munge.key
start-stop-daemon -S -c "$owner" -x /usr/sbin/munged -- --num-threads=2

# Slurm asks there before it has its configuration, and wherever that says afterwards.
if [ "$MUNGE_SOCKET" != /run/munge/munge.socket.2 ]; then
    mkdir -p "${MUNGE_SOCKET%/*}"
    ln -sf /run/munge/munge.socket.2 "$MUNGE_SOCKET"
fi

# slurmd looks after control groups, needed or not; Slurm's own choice is the first generation.
if [ "$CONTROL_GROUPS" = 1 ] && ! grep -q ' /sys/fs/cgroup tmpfs ' /proc/mounts; then
    umount /sys/fs/cgroup || :
    mount -t tmpfs -o mode=755 cgroup /sys/fs/cgroup
    mkdir /sys/fs/cgroup/systemd
    mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
    for controller in freezer cpuset memory cpu,cpuacct devices; do
        mkdir -p /sys/fs/cgroup/$controller
        mount -t cgroup -o $controller cgroup /sys/fs/cgroup/$controller ||
            rmdir /sys/fs/cgroup/$controller
    done
fi

# Jobs for baits may be sent here, too. They wait until the machine's host has sent them on. Those
# for a machine such as this are where they belong: a site that did not know it has wrapped them.
for starter in $STARTERS; do
    [ -e "$starter" ] && continue
    mkdir -p "${starter%/*}"
    {
        echo '#!/bin/sh'
        echo "here=$ENVIRONMENT"
        cat <<'END'
if [ "${1#*:}" = "$here" ] && [ -f "$2" ]; then
    script=$(mktemp) && sed 1d "$2" >"$script" && chmod 0700 "$script" || exit 75
    shift 2
    exec "$script" "$@"
fi
echo "encamp: This is a worker node, which makes no machines: the job waits to be sent on." >&2
exec sleep 2000000000
END
    } >"$starter"
    chmod 0755 "$starter"
done

# A clone has been up for as long as its template: -b says that it has just begun.
for place in $PLACES; do mkdir -p "$place"; done
mkdir -p /run/slurm
memory=$(sed -n 's/^MemTotal: *\([0-9]*\) kB$/\1/p' /proc/meminfo)
set -- -b -N "$NODE" --conf-server "$CONTROLLERS"
if [ -z "$WRITTEN_DOWN" ]; then
    conf="CPUs=$PROCESSORS RealMemory=$((memory / 1024)) Feature=$FEATURES"
    conf="$conf Weight=1000" # other hosts first, for jobs that may be on any
    set -- "$@" -Z --conf "$conf"
fi
slurmd "$@" && exit
[ -z "$LOG" ] || tail -n 5 "$LOG" >&2
exit 1
