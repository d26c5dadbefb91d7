"""Writes Deploy/function-order.txt, by which the linker places the functions of the broker that run.

    function_order.py PROGRAM    exits with 1 where the program lacks too many of the functions that the file names
"""

import os
import re
import subprocess
import sys

from servers import Failure

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../Deploy/function-order.txt")
READS = 500
# So much of the file must name functions of the program: what is renamed loses its place, which costs pages and nothing else.
LEAST_SHARE = 0.8
OPENING = """\
# The functions that the broker runs from its start to its end, those that take most instructions first. Deploy/build has
# the linker place them in this order, so that they share pages: see "The order of functions" in PERFORMANCE.md.
# Written by Tests/Benchmarks/run --only order.
"""


def measure_order(session, findings):
    """Runs the broker on each store, from its start to its end, under callgrind."""
    instructions = {}
    for server in (session.small, session.postgres):
        for function, count in profile(session, server).items():
            instructions[function] = instructions.get(function, 0) + count
    own = functions(session.arguments.broker)
    ordered = sorted(own & instructions.keys(), key=lambda name: (-instructions[name], name))
    if not ordered:
        raise Failure("callgrind has seen none of the program's functions")
    with open(PATH, "w", encoding="ascii") as file:
        file.write(OPENING)
        file.writelines(f"{name}\n" for name in ordered)
    findings.table("Functions in their order", ["functions"], [[len(ordered)]])


def profile(session, server):
    """The instructions of each function, by its name in the program."""
    path = os.path.join(session.directory, "order")
    with server.without_debug_information(f"{path}-program"):
        server.start(wrapper=["valgrind", "--tool=callgrind", "--demangle=no", f"--callgrind-out-file={path}"])
        session.tools.run_load(server, server.request("order"), "--count", READS, "--connections", 4)
    with open(path, encoding="utf-8", errors="replace") as file:
        return own_instructions(file)


def own_instructions(lines):
    """The instructions of each function without those of the functions that it calls, from callgrind's file."""
    names, counts = {}, {}
    function, is_call = None, False
    for line in lines:
        if match := re.match(r"c?fn=\((\d+)\)(?: (\S+))?", line):
            number, name = match.groups()
            if name:
                # A recursive function has a number behind its name.
                names[number] = re.sub(r"'\d+$", "", name)
            if line.startswith("fn="):
                function = names[number]
        elif line.startswith("calls="):
            is_call = True
        elif re.match(r"[+\-*\d]", line) and function:
            # The line behind a call has what the called function took.
            if not is_call:
                counts[function] = counts.get(function, 0) + int(line.split()[1])
            is_call = False
    return counts


def functions(program):
    """The names of the functions in a program, without those that change with each build.

    Optimisation at link time ends the name of a module's own function with the module's digest where another module's code
    calls it.
    """
    listed = subprocess.run(["nm", program], check=True, capture_output=True, text=True).stdout
    found = {words[2] for line in listed.splitlines() if len(words := line.split()) == 3 and words[1] in "tTwW"}
    return {name for name in found if ".llvm." not in name}


def check(program):
    """Says how many of the functions in the file the program has. Returns the exit status."""
    with open(PATH, encoding="ascii") as file:
        named = {line.strip() for line in file if not line.startswith("#")}
    share = len(named & functions(program)) / len(named)
    print(f"{share:.1%} of the functions that Deploy/function-order.txt names are in the program")
    if share >= LEAST_SHARE:
        return 0
    print("Write the file again: Tests/Benchmarks/run --only order", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(check(sys.argv[1]))
