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
description_pattern='^([A-Za-z0-9][A-Za-z0-9._-]*)[[:space:]]*:([[:space:]]|$)'
anywhere=any   # What hosts offer that make machines. Jobs go where another name is offered than theirs.
for_nodes=encamp_node   # What a job must ask for to be sent to a worker node, by its environment.

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

# The environments that the site describes, in $value: lines of YAML begin with their names. Fails if
# a file is not there, or is written in another way, so that some could be missed.
described() {
    local files file line begun names=
    list_of descriptions || return 1
    files=$value
    while [[ -n $files ]]; do
        file=${files%%, *}
        files=${files#"$file"}
        files=${files#, }
        [[ -f $file && -r $file ]] || return 1
        begun=
        while IFS= read -r line || [[ -n $line ]]; do
            line=${line%$'\r'}
            if [[ $line =~ $description_pattern ]]; then
                begun=yes
                names+=${names:+, }${BASH_REMATCH[1]}
            elif [[ ! $line =~ ^[[:space:]]*(#|$) && $line != --- ]]; then
                [[ -n $begun && $line == [[:space:]]* ]] || return 1
            fi
        done < "$file" || return 1
    done
    value=$names
    [[ -n $names ]]
} 2> /dev/null

# Fails for an environment that the site does not let jobs name; what it does is in $value.
offered() {
    list_of environments || described || return 0
    [[ ", $value," == *", $1,"* ]]
}

# The environments in $value without those of worker nodes: whether there are such is not known here.
listed() {
    local name names=$value shown=
    for name in ${names//, / }; do
        has_nodes "$name" || has_other_nodes "$name" || shown+=${shown:+, }$name
    done
    value=$shown
}

# Of those in $value, the first that differs from a name in large letters or in its end; in $meant.
nearest() {
    local one
    meant=''
    for one in ${value//, / }; do
        [[ -z $meant && (${one,,} == "${1,,}"* || ${1,,} == "${one,,}"*) ]] || continue
        meant=" Did you mean '$one'?"
    done
}

# Are machines of it hosts of Grid Engine's themselves? Then only such a one will do.
has_nodes() {
    list_of nodes && [[ ", $value," == *", $1,"* ]]
}

# Are they hosts of another batch system? Then no job here can have one.
has_other_nodes() {
    list_of other_nodes && [[ ", $value," == *", $1,"* ]]
}

# Does l_hard limit the memory of a job with one slot to less than the smallest machine needs? Such a
# job could only be held by its host. The bytes that a machine needs are in $least.
is_too_small() {
    local power=0
    list_of memory || return
    least=$value
    [[ -z ${params[pe_name]} ]] && look_up "$1" h_vmem || return
    [[ $value =~ ^([0-9]{1,12})([KkMmGg]?)$ ]] || return
    case ${BASH_REMATCH[2]} in
        [Kk]) power=10 ;;
        [Mm]) power=20 ;;
        [Gg]) power=30 ;;
    esac
    ((10#${BASH_REMATCH[1]} << power < least))
}

verify() {
    local hard=${params[l_hard]} wanted='' before=${params[l_hard]}
    if look_up "${params[l_soft]}" env; then
        reject "An environment cannot be a soft request: ask for it by -l env=NAME before -soft."
        return
    fi
    without "$hard" "$for_nodes" # That is ours to ask for.
    hard=$value
    if look_up "$hard" env; then
        wanted=${value%"|$anywhere"}
        without "$hard" env
        hard=$value
        # Grid Engine itself says TRUE of a request without a value.
        if [[ ! $wanted =~ $name_pattern || $wanted == "$anywhere" || $wanted == TRUE ]]; then
            reject "No environment can have the name that was asked for by -l env=: use letters, digits, dots, dashes and underlines, 64 at most."
            return
        fi
        if has_other_nodes "$wanted"; then
            reject "Machines of environment '$wanted' are worker nodes of Slurm: only its own jobs can ask for one, with 'sbatch -C $wanted'."
            return
        fi
        if [[ $wanted != none ]] && ! has_nodes "$wanted" && ! offered "$wanted"; then
            nearest "$wanted"
            listed
            reject "There is no environment '$wanted' here.$meant There are: $value."
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
        if has_nodes "$wanted"; then
            hard+=,$for_nodes=$wanted
            # Such a host may come for this very job: that there is none yet is no mistake.
            [[ ${params[w]} != [ew] ]] || printf 'PARAM w n\n'
        elif is_too_small "$hard"; then
            reject "A machine needs at least $((least >> 20)) MiB of memory, and the job asks for less: ask for h_vmem=$((least >> 20))M or more."
            return
        fi
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

# What the shell itself says of one that has gone would have the master refuse the job.
site_begins() {
    [[ -n $site_jsv ]] || return
    if [[ -z ${SITE_PID-} ]] || ! kill -0 "$SITE_PID" 2> /dev/null; then
        # One that does not look for the end of its input is to end when nobody hears it any more.
        coproc SITE { trap - PIPE; exec "$site_jsv"; } 2> /dev/null
        # shellcheck disable=SC2153 # coproc sets it
        site_in=${SITE[1]} site_out=${SITE[0]}
    fi
    local line
    site_hears START || return
    while IFS= read -r -t 30 -u "$site_out" line; do
        [[ $line == STARTED ]] && return
        printf '%s\n' "$line" # It may want the variables, too.
    done 2> /dev/null
    site_ends # What it said later would count for another job.
}

site_hears() {
    [[ -z $site_jsv ]] || { printf '%s\n' "$1" >&"$site_in"; } 2> /dev/null
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
    done 2> /dev/null
    site_ends
    printf 'RESULT STATE REJECT_WAIT %s\n' "The site's own job verifier does not answer; try again."
    return 1
}

# At once: nothing that it has to say is waited for. The shell forgets the number with the process.
site_ends() {
    local pid=${SITE_PID-}
    [[ -n $pid ]] || return
    kill -KILL "$pid"
    wait "$pid"
} 2> /dev/null

# With some time to do it in good order.
# shellcheck disable=SC2317 # called by a trap
site_quits() {
    [[ -n ${SITE_PID-} ]] || return
    local lines=0
    site_hears QUIT
    while ((lines++ < 100)) && read -r -t 1 -u "$site_out"; do :; done
    site_ends
} 2> /dev/null

# ── what the master says ─────────────────────────────────────────────────────────────────────────

# The master passes line ends in a job's words on as they are, so that a job can say to us what only
# the master should. Whoever answered that would give each job the answer meant for another from then
# on. But the master says nothing after its START and its BEGIN until it is answered: only what is
# followed by silence is the master's own.
brief=0.005   # Less than it takes the master to look for an answer again.
moment=0.2    # More than a master that is busy needs between two lines of a job that is out of order.

# Let go of what comes until there has been silence for so many seconds; the last line is in $line,
# and $came says whether there was any.
settle() {
    local part='' piece code
    came=
    while :; do
        IFS= read -r -t "$1" piece
        code=$?
        part+=$piece
        if ((code == 0)); then
            line=$part part='' came=yes
        elif ((code <= 128)); then
            exit 0 # The master has gone.
        elif [[ -z $part ]]; then
            return
        fi
    done
}

# The one answer to a job that has said what it should not.
refuse() {
    site_ends # It has heard that, too.
    settle "$moment"
    until [[ $line == BEGIN ]]; do settle "$moment"; done
    asked=
    reject "Some of the job's words have line ends, and what follows reads as Grid Engine's own (START, PARAM, BEGIN or QUIT): put it into a script, and submit that."
}

# A job's lines, up to its one answer.
hear() {
    local name words
    case $line in
        START | QUIT) refuse ;;
        'PARAM '*)
            words=${line#PARAM }
            name=${words%% *}
            if [[ $name =~ ^[A-Za-z_]+$ && $words == *' '* ]]; then
                if [[ -v params[$name] ]]; then
                    refuse
                    return
                fi
                params[$name]=${words#* }
            fi
            site_hears "$line" ;;
        'ENV '*) site_hears "$line" ;;
        BEGIN)
            settle "$brief"
            if [[ -n $came ]]; then
                refuse
                return
            fi
            asked=
            site_verifies && verify ;;
    esac
}

trap '' PIPE
trap site_quits EXIT
asked=    # Is there a job that is not answered yet?
silence=$brief
declare -A params=()
while IFS= read -r line; do
    if [[ -n $asked ]]; then
        hear
        continue
    fi
    [[ $line != START && $line != QUIT ]] || settle "$silence"
    case $line in
        START)
            asked=yes
            silence=$brief
            params=()
            site_begins
            printf 'STARTED\n' ;;
        QUIT) break ;;
        # What is left of a job whose own BEGIN was answered: its START or QUIT may come, too.
        *) silence=$moment ;;
    esac
done
exit 0
