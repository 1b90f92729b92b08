"""Asks a Salt master's minions for values, as its command line does. Run by Salt's own Python.

salt_questions.py CONFIGURATION     a size on each line of the standard input is a question,
                                    the number of minions that returned it the answer
"""

from __future__ import annotations

import sys

import salt.client

PATIENCE = 30


def main() -> None:
    client = salt.client.LocalClient(c_path=sys.argv[1])
    for number, line in enumerate(sys.stdin):
        size = int(line)
        returned = client.cmd("*", "encamp_bench.value", [size, number % 10], timeout=PATIENCE)
        values = [value for value in returned.values() if isinstance(value, str)]
        print(sum(len(value) == size for value in values), flush=True)


if __name__ == "__main__":
    main()
