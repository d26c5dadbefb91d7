#!/usr/bin/env python3
"""Holds the Swift files, and the comments and documents, to three rules of style that a script can check.

    Tests/Style/check.py [--root FOLDER]

* No Swift file has more than 600 lines.
* No type in Sources has more than 500 lines. An extension counts for itself.
* No comment and no document says "nobody", "somebody", "whoever", "everybody" or "anybody": a sentence names the thing that
  acts, such as a caller, a replica or a lease holder. A document may quote the name of a test.

Prints every fault, and ends with 1 if there is one.
"""
import argparse
import pathlib
import re
import sys

LONGEST_FILE, LONGEST_TYPE = 600, 500
WORDS = re.compile(r"\b(nobody|somebody|whoever|everybody|anybody)\b", re.IGNORECASE)
TYPE = re.compile(
    r"( *)(?:@\w+(?:\([^)]*\))? +)*(?:(?:package|public|private|fileprivate|internal|final|indirect) +)*"
    r"(?:struct|class|enum|actor|protocol|extension) +(`[^`]+`|[\w.]+)[^{]*(\{.*)?$")
SKIPPED = {".build", ".build-tools", ".build-artefacts", ".git"}


def files(root):
    for top in ["Sources", "Tests", "Deploy"]:
        yield from sorted(path for path in (root / top).rglob("*") if path.is_file())
    yield from sorted(path for path in root.iterdir() if path.is_file())


def types(lines):
    """The name and the first and last line of each type and extension, by the indentation that swift format gives."""
    for start, line in enumerate(lines):
        found = TYPE.match(line)
        if not found or line.rstrip().endswith("}"):
            continue
        closing = found[1] + "}"
        for end in range(start + 1, len(lines)):
            if lines[end].startswith(closing):
                yield found[2], start + 1, end + 1
                break


def prose(path, line):
    """The part of a line that is prose: the whole line of a document, and the comment in a line of a program."""
    if path.suffix == ".md":
        return re.sub(r'"[^"]*"', "", line)
    if path.suffix in {".yaml", ".yml"}:
        return line
    if path.suffix in {".swift", ".c", ".h"}:
        found = re.search(r"(?:^|\s)(//.*|/?\*.*)$", line)
        return found[1] if found else ""
    if path.suffix == ".py":
        # One line does not show whether it belongs to a docstring, so strings count as well.
        return line
    if path.suffix in {"", ".sh"}:
        return line if line.lstrip().startswith("#") else ""
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    root = parser.parse_args().root
    faults, count = [], 0
    for path in files(root):
        name = str(path.relative_to(root))
        if path.suffix not in {".swift", ".c", ".h", ".md", ".yaml", ".yml", ".py", ".sh", ""} or name == "Tests/Style/check.py":
            continue
        try:
            lines = path.read_text().split("\n")
        except UnicodeDecodeError:
            continue
        count += 1
        if path.suffix == ".swift":
            length = len(lines) - 1
            if length > LONGEST_FILE:
                faults.append(f"{name}: {length} lines, more than {LONGEST_FILE}: split the file by subject")
            if name.startswith("Sources/"):
                for kind, start, end in types(lines):
                    if end - start + 1 > LONGEST_TYPE:
                        faults.append(f"{name}:{start}: {kind} has {end - start + 1} lines, more than {LONGEST_TYPE}")
        for number, line in enumerate(lines, 1):
            if found := WORDS.search(prose(path, line)):
                faults.append(f"{name}:{number}: name the thing that acts, not \"{found[0]}\": {line.strip()[:100]}")
    if count == 0:
        faults.append(f"no files under {root}")
    for fault in faults:
        print(fault)
    if faults:
        return 1
    print(f"{count} files: short enough, and their comments name the thing that acts")
    return 0


sys.exit(main())
