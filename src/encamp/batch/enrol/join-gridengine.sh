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
for program in "$SGE_ROOT/bin/$SGE_ARCH/sge_execd" /usr/lib/gridengine/sge_execd; do
    [ -x "$program" ] || continue
    # It goes into the background when it has spoken to the master.
    exec "$program"
done
echo "there is no sge_execd in this machine" >&2
exit 1
