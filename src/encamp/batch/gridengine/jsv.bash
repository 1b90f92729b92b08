#!/bin/bash
# Grid Engine's master asks this script about every job before it takes it (jsv(1); one process goes
# on for many jobs). A job that asks for an environment (-l env=NAME), or that a rule of the site
# gives one, is told the starter by a variable, and goes where that environment can be had.
# Everything here is done by the shell itself: no job waits for a program to start.
LC_ALL=C
set -f +B

rules='@ENCAMP_RULES@'
site_jsv='@ENCAMP_SITE_JSV@'
name_pattern='^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$'
anywhere=any   # What hosts offer that make machines of every environment.

reject() {
    printf 'RESULT STATE REJECT %s\n' "$1"
}

# What a list such as l_hard says of one name: the value in $value; fails if it says nothing.
look_up() {
    local list=$1 name=$2 part found=1
    value=
    local IFS=,
    for part in $list; do
        case $part in
            "$name"=*) value=${part#*=}; found=0 ;;
            "$name") value=; found=0 ;;
        esac
    done
    return $found
}

# The list without that name, in $value.
without() {
    local list=$1 name=$2 part
    value=
    local IFS=,
    for part in $list; do
        case $part in
            "$name"=* | "$name") ;;
            *) value+=${value:+,}$part ;;
        esac
    done
}

# The environment that the first rule gives that fits, in $value; `none`: the job is left alone. A
# rule about queues cannot be judged before the job is in one: then it is empty, and the host decides.
judge() {
    local environment queue account user group asked
    value=none
    [[ -r $rules ]] || return
    while IFS=$'\t' read -r environment queue account user group _; do
        [[ $environment =~ $name_pattern ]] || continue
        [[ ${account:--} == - || $account == "${params[P]}" ]] || continue
        [[ ${user:--} == - || $user == "${params[USER]}" ]] || continue
        [[ ${group:--} == - || $group == "${params[GROUP]}" ]] || continue
        if [[ ${queue:--} != - ]]; then
            asked=${params[q_hard]}
            case $asked in
                '' | *[*?\[,]*)
                    value=
                    return ;;
            esac
            [[ ${asked%%@*} == "$queue" ]] || continue
        fi
        value=$environment
        return
    done < "$rules"
}

# What the rules file lists under a word, in $value; fails if there is no such list.
list_of() {
    local line
    value=
    [[ -r $rules ]] || return
    while IFS= read -r line; do
        [[ $line == "=$1"$'\t'* ]] || continue
        value=${line#*$'\t'}
        value=${value//$'\t'/, }
        return 0
    done < "$rules"
    return 1
}

# Fails for an environment that the site does not let jobs name; what it does is in $value.
offered() {
    list_of environments || return 0
    [[ ", $value," == *", $1,"* ]]
}

# Are machines of it hosts of Grid Engine's themselves? Then only such a one will do.
has_nodes() {
    list_of nodes && [[ ", $value," == *", $1,"* ]]
}

verify() {
    local hard=${params[l_hard]} wanted='' before=${params[l_hard]}
    if look_up "${params[l_soft]}" env; then
        reject "An environment cannot be a soft request: ask for it by -l env=NAME before -soft."
        return
    fi
    if look_up "$hard" env; then
        wanted=${value%"|$anywhere"}
        without "$hard" env
        hard=$value
        # Grid Engine itself says TRUE of a request without a value.
        if [[ ! $wanted =~ $name_pattern || $wanted == "$anywhere" || $wanted == TRUE ]]; then
            reject "No environment can have the name that was asked for by -l env=: use letters, digits, dots, dashes and underlines, 64 at most."
            return
        fi
        if [[ $wanted != none ]] && ! has_nodes "$wanted" && ! offered "$wanted"; then
            reject "There is no environment '$wanted' here. There are: $value."
            return
        fi
        if [[ $wanted != none && ${params[CMDNAME]} == NONE ]]; then
            reject "A login cannot be in an environment: use qrsh with a command, or qsub."
            return
        fi
    elif [[ ${params[CMDNAME]} == NONE ]]; then
        wanted=none # Somebody who logs in wants this host.
    else
        judge
        wanted=$value
    fi
    if [[ -n $wanted && $wanted != none ]]; then
        hard+=${hard:+,}env=$wanted
        has_nodes "$wanted" || hard+=\|$anywhere
    fi
    if [[ -n $wanted ]]; then
        printf 'ENV ADD ENCAMP_ENVIRONMENT %s\n' "$wanted"
    else
        printf 'ENV DEL ENCAMP_ENVIRONMENT\n'
    fi
    if [[ $hard != "$before" ]]; then
        printf 'PARAM l_hard%s\n' "${hard:+ $hard}"
    fi
    printf 'RESULT STATE CORRECT\n'
}

# ── a verifier that the site had before, which is asked first ────────────────────────────────────

site_begins() {
    [[ -n $site_jsv ]] || return
    if [[ -z $site_pid ]] || ! kill -0 "$site_pid" 2> /dev/null; then
        coproc SITE { exec "$site_jsv"; } 2> /dev/null
        # shellcheck disable=SC2153 # coproc sets it
        site_in=${SITE[1]} site_out=${SITE[0]} site_pid=$SITE_PID
    fi
    local line
    printf 'START\n' >&"$site_in" || return
    while IFS= read -r -t 30 -u "$site_out" line; do
        [[ $line == STARTED ]] && return
        printf '%s\n' "$line" # It may want the variables, too.
    done
}

site_hears() {
    [[ -z $site_jsv ]] || printf '%s\n' "$1" >&"$site_in"
}

# What it says goes on to the master, and counts for us; succeeds if it has nothing against the job.
site_verifies() {
    [[ -n $site_jsv ]] || return 0
    local line name
    site_hears BEGIN
    while IFS= read -r -t 30 -u "$site_out" line; do
        case $line in
            'RESULT STATE ACCEPT'* | 'RESULT STATE CORRECT'*) return 0 ;;
            'RESULT STATE '*) printf '%s\n' "$line"; return 1 ;;
            'PARAM '*)
                line=${line#PARAM }
                name=${line%% *}
                params[$name]=
                [[ $line == *' '* ]] && params[$name]=${line#* }
                printf 'PARAM %s\n' "$line" ;;
            *) printf '%s\n' "$line" ;;
        esac
    done
    printf 'RESULT STATE REJECT_WAIT %s\n' "The site's own job verifier does not answer; try again."
    return 1
}

# The master passes line ends in a job's words on as they are, so that a job can say to us what only
# the master should. Whoever answered that would give each job the answer meant for another from then
# on: at whatever does not belong there we end, and the master begins another verifier.
give_up() {
    [[ -z $site_pid ]] || kill "$site_pid" 2> /dev/null
    exit 1
}

# The master waits for an answer to its START and its BEGIN. What follows one of them at once is of a
# job's making, as all that it makes comes in one piece.
check_last() {
    ! read -r -t 0 || give_up
}

trap '' PIPE
site_pid=
asked=    # Is there a job that is not answered yet?
declare -A params=()
while IFS= read -r line; do
    case $line in
        START)
            [[ -z $asked ]] || give_up
            check_last
            asked=yes
            params=()
            site_begins
            printf 'STARTED\n' ;;
        'PARAM '*)
            [[ -n $asked ]] || give_up
            site_hears "$line"
            line=${line#PARAM }
            name=${line%% *}
            if [[ $name =~ ^[A-Za-z_]+$ && $line == *' '* ]]; then
                [[ ! -v params[$name] ]] || give_up
                params[$name]=${line#* }
            fi ;;
        'ENV '*)
            [[ -n $asked ]] || give_up
            site_hears "$line" ;;
        BEGIN)
            [[ -n $asked ]] || give_up
            check_last
            asked=
            site_verifies && verify ;;
        QUIT)
            site_hears QUIT
            break ;;
    esac
done
exit 0
