#!/usr/bin/env python3
"""Refuses references from one room of BrokerCore to a room above it.

    Tests/Rooms/check.py [--list | --why FROM TO] [--sources FOLDER] [--store FOLDER]

A room is a folder of Sources/BrokerCore. ROOMS has them from the lowest to the highest: a file may name declarations of
its own room and of lower ones, so there is no circle between rooms. Files of one target need no imports of each other, so
the references are read from the index that the compiler writes in a debug build, by libIndexStore of the toolchain: a
`swift build` comes before this check.

    --list     prints for each room how many references it has to which other rooms
    --why      prints the references from one room to another
    --sources  the folder of the rooms, Sources/BrokerCore unless given
    --store    the index, .build/debug/index/store unless given
"""

import argparse
import collections
import ctypes
import os
import pathlib
import re
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# Lowest first, each with what it is about.
ROOMS = {
    "Base": "time, errors, quotas and waiting, which every other room uses",
    "Telemetry": "the log and the metrics",
    "Cache": "records of the store in memory, for how long they are valid, and their revalidation",
    "Events": "changes of the store: announced within a process, told to listeners",
    "Audit": "what the audit log tells of changes and reads, and when it is signed",
    "Tenants": "tenants and their configuration",
    "Providers": "requests to the providers of tenants",
    "Records": "credentials in the store, in memory and in the journal",
    "Renewals": "credentials are renewed: leases, attempts, what becomes of their results",
    "Credentials": "credentials are handed out, set, removed and listed",
    "Accounts": "accounts are activated at providers without a login page",
    "Apps": "apps whose token endpoint the broker is: clients, sessions, codes, and their grants",
    "Logins": "logins of users",
    "AppToApp": "apps of a device that the sessions of users let in, and the links between apps",
    "Assembly": "the parts, put together",
}

# Which modules a room does not refer to, and why.
REFUSED = {
    "Providers": (["CredentialStore", "Renewal"], "a request to a provider knows nothing of leases and records"),
}


class Text(ctypes.Structure):
    """`indexstore_string_ref_t`."""

    _fields_ = [("data", ctypes.POINTER(ctypes.c_char)), ("length", ctypes.c_size_t)]

    def __str__(self):
        return ctypes.string_at(self.data, self.length).decode() if self.length else ""


class Index:
    """The occurrences of symbols in the files below a folder."""

    DEFINITION, REFERENCE = 1 << 1, 1 << 2
    RECORD = 2
    VISIT = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p)
    FUNCTIONS = [
        ("store_create", ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_void_p]),
        ("unit_reader_create", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]),
        ("unit_reader_dispose", None, [ctypes.c_void_p]),
        ("unit_reader_is_system_unit", ctypes.c_bool, [ctypes.c_void_p]),
        ("unit_reader_get_main_file", Text, [ctypes.c_void_p]),
        ("unit_reader_dependencies_apply_f", ctypes.c_bool, [ctypes.c_void_p, ctypes.c_void_p, VISIT]),
        ("unit_dependency_get_kind", ctypes.c_int, [ctypes.c_void_p]),
        ("unit_dependency_get_filepath", Text, [ctypes.c_void_p]),
        ("unit_dependency_get_name", Text, [ctypes.c_void_p]),
        ("record_reader_create", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]),
        ("record_reader_dispose", None, [ctypes.c_void_p]),
        ("record_reader_occurrences_apply_f", ctypes.c_bool, [ctypes.c_void_p, ctypes.c_void_p, VISIT]),
        ("occurrence_get_roles", ctypes.c_uint64, [ctypes.c_void_p]),
        ("occurrence_get_symbol", ctypes.c_void_p, [ctypes.c_void_p]),
        ("occurrence_get_line_col", None, [ctypes.c_void_p] + [ctypes.POINTER(ctypes.c_uint)] * 2),
        ("symbol_get_name", Text, [ctypes.c_void_p]),
        ("symbol_get_usr", Text, [ctypes.c_void_p]),
    ]

    def __init__(self, store, folder):
        self.library = self.load()
        self.folder = os.path.realpath(folder) + os.sep
        self.units = os.path.join(store, "v5", "units")
        self.store = self.library.store_create(os.fsencode(store), None)
        if not self.store or not os.path.isdir(self.units):
            sys.exit(f"rooms: there is no index in {store}; run `swift build` first")

    @classmethod
    def load(cls):
        swift = shutil.which("swift")
        if not swift:
            sys.exit("rooms: needs swift in PATH, whose libIndexStore reads the index")
        library = ctypes.CDLL(str(pathlib.Path(os.path.realpath(swift)).parent.parent / "lib" / "libIndexStore.so"))
        for name, result, arguments in cls.FUNCTIONS:
            function = getattr(library, "indexstore_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(library, name, function)
        return library

    def records(self):
        """The name of the newest record of each file, by the file's path below the folder."""
        newest = {}
        for name in os.listdir(self.units):
            unit = self.library.unit_reader_create(self.store, os.fsencode(name), None)
            if not unit:
                continue
            try:
                main = str(self.library.unit_reader_get_main_file(unit))
                is_ours = main.startswith(self.folder) and os.path.exists(main)
                if self.library.unit_reader_is_system_unit(unit) or not is_ours:
                    continue
                written = os.path.getmtime(os.path.join(self.units, name))

                def visit(_, dependency):
                    is_record = self.library.unit_dependency_get_kind(dependency) == self.RECORD
                    if is_record and str(self.library.unit_dependency_get_filepath(dependency)) == main:
                        record = str(self.library.unit_dependency_get_name(dependency))
                        newest[main] = max(newest.get(main, (0, "")), (written, record))
                    return True

                self.library.unit_reader_dependencies_apply_f(unit, None, self.VISIT(visit))
            finally:
                self.library.unit_reader_dispose(unit)
        return {file[len(self.folder):]: record for file, (_, record) in newest.items()}

    def occurrences(self, record):
        """Each occurrence of a symbol in a record: its roles, the symbol's USR and name, the line."""
        reader = self.library.record_reader_create(self.store, os.fsencode(record), None)
        if not reader:
            sys.exit(f"rooms: the index has no record {record}; build again")
        found = []
        line, column = ctypes.c_uint(), ctypes.c_uint()

        def visit(_, occurrence):
            symbol = self.library.occurrence_get_symbol(occurrence)
            self.library.occurrence_get_line_col(occurrence, ctypes.byref(line), ctypes.byref(column))
            found.append((
                self.library.occurrence_get_roles(occurrence), str(self.library.symbol_get_usr(symbol)),
                str(self.library.symbol_get_name(symbol)), line.value,
            ))
            return True

        self.library.record_reader_occurrences_apply_f(reader, None, self.VISIT(visit))
        self.library.record_reader_dispose(reader)
        return found

    def references(self):
        """(file, line, symbol's name, its USR, the file of the folder that defines it, if any) for each reference."""
        files = {file: self.occurrences(record) for file, record in sorted(self.records().items())}
        home = {usr: file for file, found in files.items() for roles, usr, _, _ in found if roles & self.DEFINITION}
        for file, found in files.items():
            for roles, usr, name, line in found:
                if roles & self.REFERENCE:
                    yield file, line, name, usr, home.get(usr)


def room(file):
    return file.split(os.sep)[0] if os.sep in file else None


def module(usr):
    """The Swift module that a symbol is declared in; nil for what is of C. A USR begins with the length of the name."""
    start = re.match(r"s:(?:e:s:)?(\d+)", usr)
    return usr[start.end():start.end() + int(start[1])] if start else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--why", nargs=2, metavar=("FROM", "TO"))
    parser.add_argument("--sources", type=pathlib.Path, default=ROOT / "Sources" / "BrokerCore")
    parser.add_argument("--store", default=str(ROOT / ".build" / "debug" / "index" / "store"))
    options = parser.parse_args()

    files = {str(path.relative_to(options.sources)) for path in options.sources.rglob("*.swift")}
    faults = [f"{file} is in no room" for file in sorted(files) if room(file) not in ROOMS]
    index = Index(options.store, options.sources)
    if missing := sorted(files - set(index.records())):
        sys.exit("rooms: the index does not have " + ", ".join(missing) + "; build again")

    references = collections.defaultdict(list)
    order = list(ROOMS)
    for file, line, name, usr, target in index.references():
        start, end = room(file), room(target) if target else None
        if end and end != start:
            text = f"{file}:{line} refers to {name} of {target}"
            references[start, end].append(text)
            if start in ROOMS and end in ROOMS and order.index(start) < order.index(end):
                faults.append(f"{text}, which is above")
        modules, reason = REFUSED.get(start, ([], ""))
        if module(usr) in modules:
            faults.append(f"{file}:{line} refers to {name} of {module(usr)}: {reason}")

    if options.why:
        print("\n".join(references[tuple(options.why)]) or "no references")
        return
    if options.list:
        for start in order:
            counts = [f"{end} {len(references[start, end])}" for end in order if references[start, end]]
            print(f"{start}: {', '.join(counts) or 'none'}")
    if faults:
        print("\n".join(dict.fromkeys(faults)))
        sys.exit("rooms: a room refers to lower ones only; ROOMS in Tests/Rooms/check.py has their order")
    print(f"{len(files)} files in {len({room(file) for file in files})} rooms, without a reference upwards: {', '.join(order)}")


main()
