#!/usr/bin/env python3
"""Counts the organs of the service, and refuses more of them than there are.

    Tests/Rooms/counts.py [--root FOLDER]

Each count stands for something that a reader has to know. A number may fall: then lower its bound here. It may not rise without
a change of this file that says why.

* kinds of record: the cases of `RecordKind`. Each is a format that later versions have to read.
* background jobs: the types that are a `BackgroundJob`.
* loops of their own: the other types with a task that goes on by itself. They are found as functions `run`, `follow` or `work` that
  are async, return nothing, throw nothing and have a loop; what writes the answer to a request is none.
* memories: the tables that a process keeps by identity, as properties: `BoundedTable`, `ExpiringTable`, a dictionary in a `Mutex`
  or one by an identity in the state behind a `Mutex`. Each is in one list of MEMORIES, by the file and its name:
      withheld      says "do not ask the provider now"
      stored again  says "store this again", if the store has lost it
      other         says something else
* places of a variable of the service: the literals in Sources that are its name and nothing else, which code treats as a name. A
  sentence for an operator that has the name in it is no place. One place is the row of `Variable.all`.
* files and lines of renewals: of Sources/BrokerCore/Renewals and Sources/Renewal, which a reader of one renewal has to know.
* lines of Sources: of all Swift files there.

Prints the numbers, and ends with 1 if one is above its bound, or a memory is in no list or in a list and gone.
"""
import argparse
import pathlib
import re
import sys

BOUNDS = {
    "kinds of record": 34,
    "background jobs": 11,
    "loops of their own": 6,
    "memories that withhold a call": 12,
    "memories that store again": 1,
    "other memories": 43,
    "places of a variable": 2,
    "files of renewals": 31,
    "lines of renewals": 6_776,
    "lines of Sources": 110_885,
}

# Variables that have more places, and why.
MORE_PLACES = {
    "TOKEN_BROKER_DATA_DIR": 6,  # `token-broker up` and commands on a store set it where it is not set
    "TOKEN_BROKER_DATABASE_URL": 4,  # they look whether it is set
    "TOKEN_BROKER_LISTEN": 3,  # `token-broker up` sets it, and commands look there for the broker
    "TOKEN_BROKER_TLS_KEY": 4,  # its file's access is checked, and two lines of the log name it
    "TOKEN_BROKER_TRUSTED_CA_FILE": 3,  # texts of failed calls name it
}

MEMORIES = {
    "withheld": """
        ClientTrials.findings MovedEndpoints.last ProviderHealths.circuits ProviderHealths.faults ProviderHealths.pauses
        ProviderHealths.users RecentFailures.recoveries RecentFailures.rows ResourceDiscovery.searched
        RevocationPauses.pauses TokenEndpoint+Pushing.ends Waves.held
    """,
    "stored again": "RecentCommits.entries",
    "other": """
        AppLinkCheck.kept AuditLog.own AuditLog.witnessed CacheShard.lastChange ClientFaults.tenants
        ClientRegistrations.seen ClientTrials.standing CredentialsPublisher.journalTasks
        CredentialsRecords.unpublished DataKeys.keys DatabaseReports.kinds DeferredTokens.arrivals
        DeferredTokens.presented DeviceFlow.tasks EventFeedState.pieces EventFeedState.unreadable ExpiryJob.attempts
        FileLog.places GrantVerification.endings Metrics.shown PendingLoginQuota.counts ProviderBudget.providers
        ProviderBudget.tenants ProviderHealths.watched ProviderKeys.known ProviderServers.known RecentCommits.leaving
        RefusedRequests.spans RenewalCounts.tenants StrangersLogins.ofSource StrangersLogins.open StrangersLogins.tenants
        TenantDirectory.changed TokenBuckets.fullAt TokenEndpoint+Authentication.accepted TokenEndpoint+Proofs.newest
        TokenEndpointLimits.counts UnansweredGrants.answers WaveJob.tasks WaveTallies.proven Waves.waves
        WorkloadTokens.known WorkloadTokens.places
    """,
}

# The modules in which a process of the service keeps what it knows.
MODULES = ["BrokerCore", "TokenBroker", "CredentialStore"]
IDENTITIES = r"(?:\w*ID|\w*Name|Key|User|NetworkSource|WaitingVerification\.Origin|\[UInt8\]|WireText|String)"
MEMORY = re.compile(
    r"^ +(?:(?:private|fileprivate|package|static|nonisolated) )*(?:let|var) (\w+)"
    r"(?:: [^=\n]*| = (?:Mutex\()?)(?:BoundedTable<|ExpiringTable<|Mutex<(?=\[[^\n=]*: ))", re.MULTILINE)
STATE = re.compile(r"^ +(?:(?:private|fileprivate|package) )*var (\w+): \[" + IDENTITIES + r": [^\n]*\] = \[:\]", re.MULTILINE)
JOB = re.compile(r"(?:class|struct|actor) \w+: (?:[\w, ]*\b)?BackgroundJob\b")
LOOP = re.compile(
    r"^( +)(?:(?:package|private|nonisolated) )*func (?:run|follow|work)\([^)]*\) async \{\n(.*?)^\1\}",
    re.MULTILINE | re.DOTALL)

faults = []


def swift(folder):
    """The texts of the Swift files below a folder, by their paths."""
    return {path: path.read_text() for path in sorted(folder.rglob("*.swift"))}


def owner(text, start):
    """The kind and the name of the declaration that an indented line stands in."""
    before = text[:start].split("\n")
    depth = len(re.match(r" *", text[start:])[0])
    for line in reversed(before):
        if line.strip() and len(line) - len(line.lstrip()) < depth:
            found = re.search(r"\b(struct|class|enum|actor|extension|protocol|func|init|var|subscript)\b[ (]?([\w.]*)", line)
            return found.groups() if found else ("", "")
    return "", ""


def memories(sources):
    found = set()
    for module in MODULES:
        for path, text in swift(sources / module).items():
            if path.stem == "ExpiringTable":
                continue
            matches = list(MEMORY.finditer(text)) + [match for match in STATE.finditer(text) if "Mutex" in text]
            for match in matches:
                kind, _ = owner(text, match.start())
                if kind in {"struct", "class", "enum", "actor", "extension"}:
                    found.add(f"{path.stem}.{match[1]}")
    return found


def places(root):
    """How often each variable's name is a literal of its own."""
    text = "\n".join(swift(root / "Sources").values())
    rows = (root / "Sources/token-broker/Variable+All.swift").read_text()
    names = re.findall(r'Variable\(\s*"(\w+)"', rows)
    return {name: len(re.findall(rf'"{name}"', text)) for name in names}


def count(root):
    sources = root / "Sources"
    kinds = re.search(r"enum RecordKind.*?\n\}", (sources / "CredentialStore/RecordID.swift").read_text(), re.DOTALL)[0]
    everything = swift(sources)
    jobs = sum(len(JOB.findall(text)) for text in everything.values())
    loops = {
        path.stem for module in MODULES for path, text in swift(sources / module).items()
        if not JOB.search(text) and path.stem != "BackgroundJob"
        and any(re.search(r"\bwhile\b", match[2]) and "ResponseStream" not in match[0] for match in LOOP.finditer(text))
    }
    found, listed = memories(sources), {kind: names.split() for kind, names in MEMORIES.items()}
    everyone = [name for names in listed.values() for name in names]
    faults.extend(f"{name} is a memory in no list of MEMORIES" for name in sorted(found - set(everyone)))
    faults.extend(f"{name} is in a list of MEMORIES, and gone" for name in sorted(set(everyone) - found))
    used = places(root)
    for name, number in used.items():
        if number > (most := MORE_PLACES.get(name, BOUNDS["places of a variable"])):
            faults.append(f"{name} is a literal in {number} places, and {most} is the most")
    renewals = swift(sources / "BrokerCore/Renewals") | swift(sources / "Renewal")
    return {
        "kinds of record": len(re.findall(r"^    case ", kinds, re.MULTILINE)),
        "background jobs": jobs,
        "loops of their own": len(loops),
        "memories that withhold a call": len(listed["withheld"]),
        "memories that store again": len(listed["stored again"]),
        "other memories": len(listed["other"]),
        "places of a variable": max(number for name, number in used.items() if name not in MORE_PLACES),
        "files of renewals": len(renewals),
        "lines of renewals": sum(text.count("\n") for text in renewals.values()),
        "lines of Sources": sum(text.count("\n") for text in everything.values()),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    for name, number in count(parser.parse_args().root).items():
        bound = BOUNDS[name]
        print(f"{number:7,} {name}" + (f", at most {bound:,}" if number != bound else ""))
        if number > bound:
            faults.append(f"{number:,} {name}, and {bound:,} is the most: see the head of Tests/Rooms/counts.py")
    print("\n".join(faults), end="\n" if faults else "")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
