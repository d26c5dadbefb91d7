"""What has been found, as text and as data, and whether it meets its thresholds."""

import json
import os
import platform
import subprocess

import pictures

HERE = os.path.dirname(os.path.abspath(__file__))


class Findings:
    """Figures by name, tables for people, and whatever else is worth keeping."""

    def __init__(self):
        self.figures = {}
        self.tables = []
        self.data = {}

    def figure(self, name, value):
        self.figures[name] = value

    def table(self, title, header, rows):
        self.tables.append((title, header, rows))

    def everything(self):
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
        machine = {"kernel": platform.release(), "processor": _processor(), "processors": os.cpu_count()}
        return {"commit": commit, "machine": machine, "figures": self.figures, "data": self.data}

    def text(self, thresholds):
        parts = [_table("Figures", ["figure", "value", "threshold", ""], thresholds.rows(self))]
        parts += [_table(*table) for table in self.tables]
        return "\n".join(parts)


PAGE = "Deploy/PERFORMANCE.md"
# What stands between these lines is written by `publish`, and nothing else.
BEGIN, END = "<!-- begin of what Tests/Benchmarks/run --publish writes -->", "<!-- end -->"


def publish(findings, thresholds):
    """Writes the figures into the page, and its pictures beside it. Says what it leaves out."""
    with open(PAGE, encoding="utf-8") as file:
        before, rest = file.read().split(BEGIN)
        after = rest.split(END)[1]
    facts = findings.everything()
    machine = facts["machine"]
    lines = [
        f"Measured at commit {facts['commit'][:12]} on {machine['processors']} × {machine['processor']}, Linux "
        f"{machine['kernel']}.", "", *_markdown(["figure", "value", "threshold", ""], thresholds.rows(findings))]
    for title, header, rows in findings.tables:
        lines += ["", f"**{title}**", "", *_markdown(header, [[_number(cell) for cell in row] for row in rows])]
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write("\n".join([before + BEGIN, *lines, END + after]))
    if "connections" in findings.data:
        counts, costs = findings.data["connections"]
        pictures.draw("Deploy/performance-connections.png", "keep-alive connections", counts, costs)
    if "keys" in findings.data:
        keys = findings.data["keys"]
        pictures.draw("Deploy/performance-keys.png", "storage keys in memory", keys["counts"], keys["cpu_us"])


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


def _processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()
