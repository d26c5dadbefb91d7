#!/usr/bin/env python3
"""Refuses String semantics for text from outside, in the modules that read input.

    Tests/TextWall/check.py [SOURCES]     SOURCES: the folder of the modules, `Sources` unless given

String's equality, order, hashing and searching normalise or walk characters, which takes quadratic time over text made
for it. Text from outside is a `WireText`, and the compiler refuses to compare one with a String. This looks for what
the compiler cannot refuse: a String made of such text and then compared, looked up, split or searched.

Each exception stands in ALLOWED with its reason. An exception that no line needs is an error, too.
"""

import pathlib
import re
import sys

MODULES = ["JSON", "HTTPCodec", "HTTPServer", "HTTPSClient", "OAuth", "JOSE", "BrokerCore", "TokenBroker", "Auth",
           "DevelopmentProvider", "CredentialStore", "Postgres"]

RULES = [
    (r"\[String\s*:", "a dictionary with String keys"),
    (r"\b(Set|Dictionary|BoundedTable|OrderedSet)<(String|Substring)\b", "a table of Strings"),
    (r"\.(lowercased|uppercased|capitalized)\(\)", "a change of case by Unicode's rules"),
    (r"\bhas(Prefix|Suffix)\b", "a beginning or an end compared by Unicode's rules"),
    (r"\.replacing\(\s*\"|\.replacing\(\w+,\s*with:|\.firstRange\(|\.ranges\(of:|\.range\(of:", "a search in a String"),
    (r"\.split\(separator: \"|\.split\(separator: Character", "a split at characters"),
    (r"[=!]= \"", "a comparison with a String literal"),
    (r"\.(text|revealedText)\s*(==|!=|<|>|<=|>=)\s|(==|!=)\s+[\w.?()]+\.(text|revealedText)\b",
     "a comparison of a String made of text from outside"),
    (r"\.(text|revealedText)\.(contains|split|prefix|suffix|drop|filter|sorted|count|reversed|firstIndex|hash)\b",
     "a walk over the characters of a String made of text from outside"),
    (r"\bswitch [\w.?()\[\]\"]*\.text\b", "a choice by a String made of text from outside"),
    (r"rawValue: [\w.?]*\.text\b|flatMap\(\w+\.init\(rawValue:\)\)", "a case found by comparing Strings"),
]

# The file, what its line has, why that may stand there.
ALLOWED = [
    ("Auth/AuthConfiguration.swift", r"scopes: Set<String>|(customParameters|requestHeaders|providerParameters): \[String: String\]",
     "the library's public interface; its values come from the program and become WireText before they are compared"),
    ("Auth/AuthProvider.swift", r"scopes: Set<String>|parameters: \[String: String\]",
     "the library's public interface; its values become those of AuthConfiguration"),
    ("Auth/InterceptingTransport.swift", r"\[String: String\]",
     "header fields from the program and for it; names are compared as WireTexts"),
    ("Auth/ProviderRequest.swift", r"\[String: String\]",
     "the library's public interface; header fields from the program and for it"),
    ("Auth/DeviceKeys.swift", r"deviceInfo: \[String: String\]",
     "the library's public interface; its values come from the program and are only written out"),
    ("Auth/Credentials.swift", r"[sS]copes: Set<String>",
     "the library's public interface; scopes are checked to be ASCII before"),
    ("BrokerCore/Telemetry/DatabaseReports.swift", r"BoundedTable<String, LineBound>", "keys are the names of error cases, our own"),
    ("BrokerCore/Telemetry/Metrics.swift", r"answer\.error == \"", "at most 64 characters of ASCII (ErrorText.presentable)"),
    ("BrokerCore/Providers/ProviderBudget.swift", r"providers = Mutex<\[String: Provider\]>",
     "keys are origins and issuers, which URLTarget has checked to be ASCII"),
    ("BrokerCore/Providers/ProviderServers.swift", r"pathAndQuery == \"/\"", "ASCII: URLTarget has checked it"),
    ("OAuth/ClientMaterial.swift", r"left\.text == right\.text", "SecretBytes, which are compared by their bytes"),
    ("CredentialStore/File/FileWriter.swift", r"[kK]nownDirectories|unsynchronized|path == \"\.\"",
     "paths that the store makes itself, of checked names"),
    ("CredentialStore/File/StoreFormat.swift", r"text\.last == ", "one character of a text of a few bytes"),
    ("CredentialStore/File/StoreFormat.swift", r"ownNames: Set<String>", "file names, 255 bytes at most"),
    ("CredentialStore/File/StoreView.swift", r"changed: \[String:|names: Set<String>", "file names, 255 bytes at most"),
    ("CredentialStore/File/StoreExamination+Repair.swift", r"made: Set<String>", "paths of our own making"),
    ("CredentialStore/File/StoreFormat.swift", r"hasPrefix\(prefix\)", "the format file is 64 bytes at most"),
    ("CredentialStore/File/StoreDirectory.swift", r"== \"/\"|!= \"/\"", "the configured data directory"),
    ("CredentialStore/File/StoreDirectory.swift", r"name != \"\.\"", "a file name, 255 bytes at most"),
    ("CredentialStore/Keyring.swift", r"Set<String>", "names of keys from the environment"),
    ("CredentialStore/Postgres/StoreDatabase.swift", r"transientStates: Set<String>|sqlstate\.hasPrefix",
     "an SQLSTATE is five characters of ASCII (PostgresResult)"),
    ("CredentialStore/Postgres/PostgresRecordStore.swift", r"isReadOnly == \"off\"",
     "one short answer of the configured database"),
    ("CredentialStore/Postgres/Statements.swift", r"\.replacing\(", "SQL of our own, at start"),
    ("CredentialStore/Vault+Unlocking.swift", r"key\.split\(separator: \"\.\"", "keys of our own records, 200 bytes"),
    ("DevelopmentProvider/TokenIssuer.swift", r"BoundedTable<String, ", "keys are digests that the provider made"),
    ("DevelopmentProvider/DeviceAuthorizations.swift", r"BoundedTable<String, |\.text\.uppercased\(\)",
     "keys are digests and codes that the provider made; a user code is checked to be short ASCII before"),
    ("DevelopmentProvider/BaseURL.swift", r"[=!]= \"/\"", "a configured URL, checked to be ASCII before"),
    ("DevelopmentProvider/ProviderOptions.swift", r"", "the command line"),
    ("DevelopmentProvider/TokenIssuer.swift", r"WireText\(\$0\) == \"openid\"", "a WireText"),
    ("DevelopmentProvider/AccountDirectory.swift", r"BoundedTable<String, ",
     "keys are digests, and code challenges, which are checked to be 43 characters of ASCII"),
    ("DevelopmentProvider/AccountEndpoints.swift", r"== \"(code|S256|application/json)\"", "a WireText"),
    ("DevelopmentProvider/AuthgearEndpoints.swift", r"== \"application/json\"", "a WireText"),
    ("DevelopmentProvider/TokenIssuer+Apps.swift", r"!= \"S256\"", "a WireText"),
    ("DevelopmentProvider/AccountEndpoints.swift", r"baseURL\.scheme == \"https\"", "the configured base URL's"),
    ("DevelopmentProvider/ClientEndpoints.swift", r"base\.scheme == \"https\"", "the configured base URL's"),
    ("OAuth/DevicePolling.swift", r"answer\.(error|subStatus) == \"", "at most 64 characters of ASCII (ErrorText)"),
    ("OAuth/HeldCredentials.swift", r"\berror == \"", "at most 64 characters of ASCII (ErrorText)"),
    ("OAuth/RetryAfter.swift", r"parts\[5\] == \"GMT\"", "a WireText"),
    ("Postgres/PostgresLink.swift", r"", "the settings of the configured database's link"),
    ("Postgres/PostgresConfiguration.swift", r"", "the configured database's address"),
    ("Postgres/PostgresConnection+Connecting.swift", r"otherHostStates: Set<String>", "SQLSTATEs"),
    ("Postgres/PostgresConnection.swift", r"Set<String>", "names of our own statements, and SQLSTATEs"),
    ("Postgres/PostgresError.swift", r"sqlstate", "an SQLSTATE is five characters of ASCII (PostgresResult)"),
    ("Postgres/PostgresResult.swift", r"PostgresType\.text \|\|", "a number"),
    ("Postgres/PostgresHandle.swift", r"split\(separator: \"\\n\"\)", "a message of libpq's, for the log"),
    ("TokenBroker/Accept.swift", r"type == \"", "a WireText"),
    ("TokenBroker/Router.swift", r"== \"(application/json|charset=utf-8|application/x-www-form-urlencoded)\"",
     "a WireText"),
    ("TokenBroker/Service.swift", r"route\.description == \"/credentials\"", "a StaticString of our own"),
    ("DevelopmentProvider/ReceivedAuthorizationRequest.swift", r"\"code_challenge_method\"\] == ", "a WireText"),
    ("DevelopmentProvider/ControlInterface.swift", r"segments\[\d\] == |\.name == \"application/json\"", "a WireText"),
    ("DevelopmentProvider/Parameters.swift", r"\.name == \"application/x-www-form-urlencoded\"", "a WireText"),
]


def code_lines(path):
    """The lines of a file with what stands behind `//` left out."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        stripped = re.sub(r"(^|\s)//.*$", "", line)
        if stripped.strip():
            yield number, stripped


def main():
    sources = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "Sources")
    faults, used, files = [], set(), 0
    for module in MODULES:
        for path in sorted((sources / module).rglob("*.swift")):
            files += 1
            name = str(path.relative_to(sources))
            exceptions = [(index, re.compile(what)) for index, (file, what, _) in enumerate(ALLOWED) if file == name]
            for number, line in code_lines(path):
                for rule, meaning in RULES:
                    if not re.search(rule, line):
                        continue
                    allowed = [index for index, what in exceptions if what.search(line)]
                    used.update(allowed)
                    if not allowed:
                        faults.append(f"{path}:{number}: {meaning}: {line.strip()}")
    if files == 0:
        faults.append(f"no Swift files under {sources}")
    if len(sys.argv) == 1:
        faults += [f"the exception for {ALLOWED[index][0]} ({ALLOWED[index][1]}) is not needed"
                   for index in range(len(ALLOWED)) if index not in used]
    for fault in faults:
        print(fault)
    if faults:
        print("Text from outside is a WireText: see Sources/ExternalText/WireText.swift and Tests/TextWall/check.py.")
        return 1
    print(f"{files} files compare text from outside by its bytes")
    return 0


sys.exit(main())
