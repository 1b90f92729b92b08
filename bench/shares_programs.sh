#!/bin/sh
# shares_programs DIR: what people's programs do with files, in DIR. Prints a name and milliseconds for each.
# Runs in a machine, as root; "cold" means that the machine's kernel has forgotten what it knew.
set -eu
cd "$1"
export HOME=/root GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b

step() {
    name=$1
    shift
    sync
    echo 3 >/proc/sys/vm/drop_caches
    begun=$(date +%s%N)
    "$@" >/dev/null
    ended=$(date +%s%N)
    printf '%s\t%s\n' "$name" $(((ended - begun) / 1000)) | sed 's/\(...\)$/.\1/'
}

git_script() {
    git init -q -b main one
    cd one
    for commit in 1 2 3 4; do
        for file in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
            seq "$commit" 200 >"$commit-$file"
        done
        git add .
        git commit -q -m "$commit"
    done
    cd ..
    git clone -q --no-local one two
    git -C two fsck --full --strict
}

modules() {
    mkdir package
    : >package/__init__.py
    for number in $(seq 60); do
        echo "def f$number(): return $number" >"package/m$number.py"
    done
}

import_them() {
    python3 -B -c 'import importlib
for number in range(1, 61): importlib.import_module(f"package.m{number}")'
}

tree() {
    mkdir tree
    for directory in $(seq 100); do
        mkdir "tree/$directory"
        for file in $(seq 100); do
            echo "$file" >"tree/$directory/$file"
        done
    done
    tar -C tree -cf tree.tar .
}

modules
step "git" git_script
step "import 60 modules" import_them
(cd /tmp && tree)
mkdir unpacked
step "unpack 10,000 files" tar -C unpacked -xf /tmp/tree.tar
step "compare 10,000 files" diff -r /tmp/tree unpacked
rm -rf /tmp/tree /tmp/tree.tar
