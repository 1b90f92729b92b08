#!/bin/sh
# speed_programs: what people's programs do, in the current directory. Prints a name and milliseconds for each.
set -eu

step() {
    name=$1
    shift
    begun=$(date +%s%N)
    "$@" >/dev/null
    ended=$(date +%s%N)
    echo "$name	$(((ended - begun) / 1000))" | sed 's/\(...\)$/.\1/'
}

python() {
    /usr/bin/python3 -c "$1"
}

loop="s = 0
for i in range(2000000): s += i * i"
sines="import math
s = 0.0
for i in range(1000000): s += math.sin(i)"
commits="import sqlite3
d = sqlite3.connect('database')
d.execute('create table t (n)')
d.commit()
for i in range(100):
    d.execute('insert into t values (?)', (i,))
    d.commit()"

compile() {
    for number in 1 2 3; do
        gcc -O2 -c -o "$number.o" "$number.c"
    done
}

programs() {
    for number in $(seq 100); do
        /bin/true
    done
}

starts() {
    for number in 1 2 3 4 5; do
        python pass
    done
}

for number in 1 2 3; do
    printf '#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\nint f%s(int a, char **b) { int s = 0; for (int i = 0; i < a; i++) s += atoi(b[i]); printf("%%d\\n", s); return s; }\n' \
        "$number" >"$number.c"
done
compile
python pass
step "loop in Python" python "$loop"
step "sines in Python" python "$sines"
step "three gcc -O2" compile
step "5 starts of Python" starts
step "100 times /bin/true" programs
step "100 commits of SQLite" python "$commits"
rm -f database ./*.o ./?.c
