# Runs in a machine, as root, with variables before it: makes it an execution host of Grid Engine's.
common="$SGE_ROOT/$SGE_CELL/common"
mkdir -p "$common"
mv /run/encamp/cell/* "$common"
rmdir /run/encamp/cell
for place in $PLACES; do
    mkdir -p "$place"
    chown "$ADMINISTRATOR" "$place"
done
export SGE_ROOT SGE_CELL SGE_QMASTER_PORT SGE_EXECD_PORT

# Has the master taken this host?
is_taken() {
    for place in $PLACES; do
        for file in "$place"/*/execd.pid; do [ ! -e "$file" ] || return 0; done
    done
    return 1
}

is_connected() {
    grep -q " [0-9A-F]*$(printf ':%04X' "$SGE_QMASTER_PORT") 01 " /proc/net/tcp
}

for program in "$SGE_ROOT/bin/$SGE_ARCH/sge_execd" /usr/lib/gridengine/sge_execd; do
    [ -x "$program" ] || continue
    # A master that still believes a lost host of this name to be there refuses it once, and the
    # daemon would try again a minute later: it is started anew.
    for patience in 5 10 20; do
        "$program"
        looks=$((patience * 5))
        while [ $looks -gt 0 ]; do
            if is_taken; then exit; fi
            looks=$((looks - 1))
            sleep 0.2
        done
        if is_connected; then exit; fi
        for pid in $(pidof "${program##*/}"); do kill -9 "$pid"; done
    done
    "$program"
    exit
done
echo "there is no sge_execd in this machine" >&2
exit 1
