"""What has been found, as text and as data, and whether it meets its thresholds."""

import contextlib
import hashlib
import json
import math
import os
import platform
import subprocess

import pictures

HERE = os.path.dirname(os.path.abspath(__file__))


ARTEFACTS = ".build-artefacts/benchmarks"


class Findings:
    """Figures by name, tables for people, and whatever else is worth keeping, part by part.

    Each part is kept in a file as soon as it is complete. What an earlier run has measured of the very same program
    stands beside what this one measures.
    """

    def __init__(self, parts, program):
        self.program = _digest(program)
        self.parts = {}
        for part in parts:
            with contextlib.suppress(OSError):
                with open(self._path(part), encoding="utf-8") as file:
                    kept = json.load(file)
                if kept["program"] == self.program:
                    self.parts[part] = kept
        self._order = parts
        self._current = None

    @staticmethod
    def _path(part):
        return os.path.join(ARTEFACTS, f"{part}.json")

    def begin(self, part):
        self._current = {
            "program": self.program, "commit": _commit(), "machine": _machine(), "figures": {}, "tables": [],
            "data": {}}

    def end(self, part):
        self.parts[part] = self._current
        os.makedirs(ARTEFACTS, exist_ok=True)
        with open(self._path(part), "w", encoding="utf-8") as file:
            json.dump(self._current, file, indent=1)

    def figure(self, name, value):
        self._current["figures"][name] = value

    def table(self, title, header, rows):
        self._current["tables"].append([title, header, rows])

    def data(self, name, value):
        self._current["data"][name] = value

    @property
    def _all(self):
        return [self.parts[part] for part in self._order if part in self.parts]

    @property
    def figures(self):
        return {name: value for part in self._all for name, value in part["figures"].items()}

    @property
    def tables(self):
        return [table for part in self._all for table in part["tables"]]

    @property
    def origins(self):
        """Where and of what the figures are, each once."""
        return sorted({f"commit {part['commit'][:12]}, {part['machine']}" for part in self._all})

    def kept(self, part, name):
        return self.parts[part]["data"].get(name) if part in self.parts else None

    def text(self, thresholds):
        parts = [_table("Figures", ["figure", "value", "threshold", ""], thresholds.rows(self))]
        parts += [_table(*table) for table in self.tables]
        return "\n".join(parts)


PAGE = "Deploy/PERFORMANCE-TABLES.md"
# What stands between these lines is written by `publish`, and nothing else.
BEGIN, END = "<!-- begin of what Tests/Benchmarks/run --publish writes -->", "<!-- end -->"


def publish(findings, thresholds):
    """Writes the figures into the page, and its pictures beside it."""
    with open(PAGE, encoding="utf-8") as file:
        before, rest = file.read().split(BEGIN)
        after = rest.split(END)[1]
    lines = [
        f"Measured at {'; '.join(findings.origins)}.", "",
        *_markdown(["figure", "value", "threshold", ""], thresholds.rows(findings))]
    for title, header, rows in findings.tables:
        lines += ["", f"**{title}**", "", *_markdown(header, [[_number(cell) for cell in row] for row in rows])]
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write("\n".join([before + BEGIN, *lines, END + after]))
    for part, subject in (("connections", "keep-alive connections"), ("keys", "storage keys in memory")):
        series = findings.kept(part, part)
        if series:
            pictures.draw(f"Deploy/performance-{part}.png", subject, series["counts"], series["cpu_us"])


def _markdown(header, rows):
    """A table in which the first column is words and the others are numbers."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines]


class Thresholds:
    """thresholds.json: for each figure what it says, and the most or the least that it may be."""

    def __init__(self, entries):
        self.entries = entries

    @classmethod
    def read(cls):
        with open(os.path.join(HERE, "thresholds.json"), encoding="utf-8") as file:
            return cls(json.load(file))

    def rows(self, findings):
        rows = []
        for name, entry in self.entries.items():
            if name in findings.figures:
                value = findings.figures[name]
                rows.append([entry["text"], _number(value), _bound(entry), "" if _is_met(entry, value) else "MISSED"])
        return rows

    def missed(self, findings):
        lines = []
        for name, entry in self.entries.items():
            value = findings.figures.get(name)
            if value is not None and not _is_met(entry, value):
                lines.append(f"{entry['text']}: {_number(value)}, but {_bound(entry)} is what counts ({name})")
        unknown = sorted(set(findings.figures) - set(self.entries))
        return lines + [f"{name} has no threshold" for name in unknown]


def _is_met(entry, value):
    return value <= entry.get("most", float("inf")) and value >= entry.get("least", float("-inf"))


def _bound(entry):
    return f"at most {_number(entry['most'])}" if "most" in entry else f"at least {_number(entry['least'])}"


def _number(value):
    if isinstance(value, str):
        return value
    if value == math.inf:
        return "not to be told"
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 100 else f"{value:.3f}"


def _table(title, header, rows):
    cells = [header] + [[_number(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]

    def line(row):
        # The first column is words, the others are mostly numbers.
        first, rest = row[0].ljust(widths[0]), [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        return "  ".join([first, *rest]).rstrip()

    return "\n".join([f"\n{title}", "-" * len(title), *map(line, cells)])


def _digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _commit():
    return subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()


def _machine():
    processor = platform.machine()
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                processor = line.split(":", 1)[1].strip()
    return f"{os.cpu_count()} × {processor}, Linux {platform.release()}"
