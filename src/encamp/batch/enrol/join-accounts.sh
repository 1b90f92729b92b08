# Runs in a machine, as root: has it know the accounts that jobs run as, unless its image does.
set -e
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
for kind in passwd group; do
    [ -e /run/encamp/$kind ] || continue
    while IFS=: read -r name rest; do
        grep -q "^$name:" /etc/$kind || echo "$name:$rest" >>/etc/$kind
    done </run/encamp/$kind
done

# Homes that nobody shares are the machine's own: without one, some batch systems start no job.
if [ -e /run/encamp/passwd ]; then
    while IFS=: read -r name _ uid gid _ home _; do
        case $home in
            /home/*) [ -e "$home" ] || { mkdir -p "$home" && chown "$uid:$gid" "$home"; } ;;
        esac
    done </run/encamp/passwd
    rm /run/encamp/passwd /run/encamp/group
fi
