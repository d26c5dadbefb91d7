#!/usr/bin/env python3
"""Holds the documents against the code.

    Tests/DeployTests/documents.py [--program PATH] [--update] [--root FOLDER]

* Each file and each name of the code in back quotes in Deploy/ARCHITECTURE.md exists.
* With --program, which is token-broker as built: Deploy/VARIABLES.md's table is the one that `token-broker help variables`
  gives. --update writes it so. All else needs no build.
* Deploy/PERFORMANCE.md's table of bounds is that of Tests/Benchmarks/thresholds.json. --update writes it so.
* No client of Deploy/clients is longer than CLIENTS says, or has a line of more than 130 characters.
* Each link from one document to a place in the repository leads to a file, and to a heading where it names one; and each
  source file that a document names exists.
* Deploy/OPERATIONS.md links to each page of Deploy/operations/, and none is longer than 300 lines.
* The commands and options that a document shows are those of Deploy/COMMANDS.md.

Says everything that does not fit and ends with 1 if anything does not.
"""
import argparse
import collections
import functools
import json
import pathlib
import re
import subprocess
import sys

# Beside the pages of Deploy/operations/.
DOCUMENTS = [
    "README.md", "CHANGELOG.md", "SECURITY.md", "Deploy/APP2APP.md", "Deploy/APPS.md", "Deploy/ARCHITECTURE.md",
    "Deploy/CALLS.md", "Deploy/CLAIMS.md", "Deploy/COMMANDS.md", "Deploy/LIBRARY.md", "Deploy/OPERATIONS.md",
    "Deploy/THREAT_MODEL.md", "Deploy/VARIABLES.md", "Deploy/clients/README.md", "Deploy/PERFORMANCE.md",
    "Deploy/PERFORMANCE-TABLES.md", "Tests/README.md", "Tests/ChaosTests/README.md", "Tests/Simulation/README.md",
]
LONGEST_PAGE = 300
FILE = re.compile(r"[\w.+/-]*\w\.(?:swift|py|c|h|md|yml|yaml|json)")
# `Type`, `Type.member`, `Type.member(_:)`
NAME = re.compile(r"([A-Z]\w*[a-z]\w*)((?:\.\w+)*)(?:\([\w:]*\))?")
DECLARED = re.compile(
    r"^[ \t]*(?:@\w+(?:\([^)]*\))?[ \t]+)*(?:(?:package|public|private|fileprivate|final|indirect|internal)[ \t]+)*"
    r"(?:struct|class|enum|protocol|actor|typealias|extension)[ \t]+([\w.]+)", re.MULTILINE)
MEMBER = r"\b(?:func|var|let|case|struct|class|enum|actor|protocol|typealias)\b[^\n]*(?<![\w.]){}\b"
# `name` or `name(_:)` of a function or property, as far as it can be told from a word: by a capital or by parentheses.
LOCAL = re.compile(r"([a-z]\w*[A-Z]\w*|[a-z]\w*(?=\())(?:\([\w:]*\))?")
# Names of Swift and of its libraries.
FOREIGN = {"Date", "Mutex", "String", "Task", "Sendable", "Foundation", "FoundationEssentials", "nonisolated"}
# How many lines a client has at most. What Python says in 150 takes more in Go, where each condition has three lines, and in
# Swift, whose Foundation has no stream of lines on Linux.
CLIENTS = {
    "token_broker.py": 150, "token-broker.ts": 150, "TokenBroker.java": 150, "tokenbroker.go": 170, "TokenBroker.swift": 187,
}
BEGIN, END = "<!-- begin of what Tests/DeployTests/documents.py --update writes -->", "<!-- end -->"

faults = []


def expect(condition, text):
    if not condition:
        faults.append(text)


class Code:
    """The files of the repository, and what its Swift files declare."""

    def __init__(self, root):
        self.root = root
        self.files = [
            str(path.relative_to(root)) for top in ["Sources", "Tests", "Deploy"] for path in (root / top).rglob("*")
            if path.is_file()
        ]
        self.texts = {file: (root / file).read_text() for file in self.files if file.endswith(".swift")}
        # The texts of the files that declare or extend a type, by the last part of the type's name.
        self.declaring = collections.defaultdict(list)
        for text in self.texts.values():
            for name in {match.split(".")[-1] for match in DECLARED.findall(text)}:
                self.declaring[name].append(text)
        self.modules = {path.name for path in (root / "Sources").iterdir()}
        self.modules |= {path.name for path in (root / "Tests").iterdir()}
        self.rooms = {path.name for path in (root / "Sources/BrokerCore").iterdir() if path.is_dir()}

    @functools.cache
    def has_file(self, path):
        return (self.root / path).exists() or any(file.endswith("/" + path) for file in self.files)

    @functools.cache
    def has_member(self, name):
        pattern = re.compile(MEMBER.format(re.escape(name)))
        return any(pattern.search(text) for file, text in self.texts.items() if file.startswith("Sources/"))

    def fault(self, name, members):
        """What is wrong with a name; None where it exists."""
        if name in FOREIGN:
            return None
        if name in self.declaring:
            for member in members:
                pattern = re.compile(MEMBER.format(re.escape(member)))
                if not any(pattern.search(text) for text in self.declaring[name]):
                    return f"{name} has no {member}"
            return None
        return None if not members and name in self.modules | self.rooms else f"there is no {name}"


def check_names(root):
    name = "Deploy/ARCHITECTURE.md"
    code = Code(root)
    for number, line in enumerate((root / name).read_text().split("\n"), 1):
        for text in re.findall(r"`([^`]+)`", line):
            # Of a command, its program and its files.
            for word in text.split():
                if FILE.fullmatch(word) or word.startswith(("Sources/", "Tests/", "Deploy/")):
                    expect(code.has_file(word), f"{name}:{number}: there is no file {word}")
            if (match := NAME.fullmatch(text)) and not FILE.fullmatch(text):
                fault = code.fault(match[1], [part for part in match[2].split(".") if part])
                expect(not fault, f"{name}:{number}: {fault}")
            if (match := LOCAL.fullmatch(text)) and match[1] not in FOREIGN:
                expect(code.has_member(match[1]), f"{name}:{number}: there is no {match[1]}")


def table_of_variables(program):
    """The table in the words of the program's help: a row for each variable."""
    text = subprocess.run(
        [program, "help", "variables"], capture_output=True, text=True, check=True, timeout=60).stdout
    rows = []
    for line in text.split("\n"):
        if start := re.match(r"  (TOKEN_BROKER_\w+|HTTPS_PROXY|NO_PROXY)( \*)?(?:\s{2,}(.*))?$", line):
            rows.append([start[1], start[2] or "", [start[3]] if start[3] else []])
        elif rows and line.startswith("   "):
            rows[-1][2].append(line.strip())
    lines = ["| variable | meaning |", "|---|---|"]
    for name, star, words in rows:
        meaning = " ".join(words).replace("|", "\\|")
        lines.append(f"| `{name}`{star} | {meaning} |")
    return "\n".join(lines)


def table_of_bounds(root):
    """What each figure of the benchmark is held to."""
    lines = ["| figure | bound |", "|---|---|"]
    for figure in json.loads((root / "Tests/Benchmarks/thresholds.json").read_text()).values():
        bounds = [f"{word} {figure[key]:,}" for key, word in [("most", "at most"), ("least", "at least")] if key in figure]
        lines.append(f"| {figure['text']} | {', '.join(bounds)} |")
    return "\n".join(lines)


def check_table(root, name, wanted, source, is_to_update):
    """Holds what stands between the marks in a document against a table, or writes the table there."""
    path = root / name
    before, table, after = re.fullmatch(
        f"(.*{re.escape(BEGIN)}\n)(.*?)(\n{re.escape(END)}.*)", path.read_text(), re.DOTALL).groups()
    if is_to_update:
        path.write_text(before + wanted + after)
        return
    had, wanted = table.split("\n"), wanted.split("\n")
    for line in had + wanted:
        expect(line in had and line in wanted, f"{name}: not as {source} has it: {line[:100]}")
    expect(
        had == wanted or set(had) != set(wanted),
        f"{name}: not in the order of {source}; Tests/DeployTests/documents.py --update writes it so")


def anchors(text):
    """The anchors of a document's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def pages(root):
    """The pages for operators, as paths from the root."""
    return [str(path.relative_to(root)) for path in sorted((root / "Deploy/operations").glob("*.md"))]


def check_links(root):
    for name in DOCUMENTS + pages(root):
        path = root / name
        text = path.read_text()
        for source in re.findall(r"`((?:Sources|Tests)/[\w+/-]+\.\w+)`", text):
            expect((root / source).exists(), f"{name}: there is no file {source}")
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"\w+:", link):
                continue
            place, _, anchor = link.partition("#")
            target = path.parent / place if place else path
            expect(target.exists(), f"{name}: the link {link} leads to no file")
            if anchor and target.suffix == ".md" and target.exists():
                expect(anchor in anchors(target.read_text()), f"{name}: the link {link} leads to no heading")


def commands(root):
    """The options of each command of the program, by its words, and those that all commands have."""
    text = (root / "Deploy/COMMANDS.md").read_text()
    options = {
        section.split("\n", 1)[0]: set(re.findall(r"^\| `(--[\w-]+)", section, re.MULTILINE))
        for section in re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    }
    common = set(re.findall(r"^\| `(--[\w-]+)", text.split("## Options of all commands")[1], re.MULTILINE))
    return options, common


def shown_commands(text):
    """What stands behind `token-broker` in the code of a document, as words: up to a pipe, a semicolon, a comment
    or the command line of another program."""
    text = re.sub(r"\\\n +", "", text)
    lines = re.findall(r"^ {4,}\S.*$", text, re.MULTILINE)
    lines += "\n".join(re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL)).split("\n")
    lines += re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    for line in lines:
        for rest in re.findall(r"(?<![\w./=-])token-broker\s+([a-z][^|;)]*)", line):
            yield re.split(r"\s#|\s*&&|\s*[<>]|\s--\s", rest)[0].split()


def check_pages(root):
    contents = "Deploy/OPERATIONS.md"
    linked = set(re.findall(r"\]\((operations/[\w-]+\.md)\)", (root / contents).read_text()))
    for name in pages(root) + [contents]:
        lines = (root / name).read_text().count("\n")
        expect(lines <= LONGEST_PAGE, f"{name} has {lines} lines, and {LONGEST_PAGE} is the most for a page")
        expect(name == contents or name.removeprefix("Deploy/") in linked, f"{contents} does not link to {name}")


def check_commands(root):
    options, common = commands(root)
    for name in DOCUMENTS + pages(root):
        for words in shown_commands((root / name).read_text()):
            command = next((" ".join(words[:n]) for n in [2, 1] if " ".join(words[:n]) in options), None)
            expect(command, f"{name}: there is no command token-broker {' '.join(words[:2])}")
            for option in {word.split("=")[0] for word in words if command and word.startswith("--")}:
                expect(option in options[command] | common, f"{name}: token-broker {command} has no {option}")


def check_clients(root):
    for name, limit in CLIENTS.items():
        lines = (root / "Deploy/clients" / name).read_text().splitlines()
        expect(len(lines) <= limit, f"Deploy/clients/{name}: {len(lines)} lines, and not {limit} at most")
        for number, line in enumerate(lines, 1):
            expect(len(line) <= 130, f"Deploy/clients/{name}:{number}: {len(line)} characters")
    others = {path.name for path in (root / "Deploy/clients").iterdir()} - {*CLIENTS, "README.md"}
    expect(not others, f"Deploy/clients: nothing says how long {', '.join(sorted(others))} may be")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    options = parser.parse_args()
    root = options.root
    if options.program:
        variables = table_of_variables(options.program)
        check_table(root, "Deploy/VARIABLES.md", variables, "the program's help", options.update)
    check_table(root, "Deploy/PERFORMANCE.md", table_of_bounds(root), "thresholds.json", options.update)
    check_names(root)
    check_clients(root)
    check_links(root)
    check_pages(root)
    check_commands(root)
    for fault in faults:
        print(fault)
    if faults:
        sys.exit(1)
    print("names exist, tables are as their sources, links lead somewhere, commands are the program's, clients are short")


if __name__ == "__main__":
    main()
