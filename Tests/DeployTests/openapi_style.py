#!/usr/bin/env python3
"""Holds openapi.yaml to what programs that generate clients need.

    Tests/DeployTests/openapi_style.py [FILE]

* A reference stands alone: many generators ignore what stands beside `$ref`. A schema holds it in `allOf` instead.
* Each operation has an operationId in camelCase, which no other has, not even with other capitals.
* Each body of a request and each successful answer has an example, except pages, and answers that are only a text.
* The values of an enum still differ when all that a name cannot have is left out of them, and none of them is then empty or
  begins with a digit.
* No boolean has `enum` or `const`: OpenAPI Generator 7.26.0 makes Java of it that does not compile. One that has a single
  value says `not: { const: false }`, which means the same.
* The items of a list have no `enum` beside `uniqueItems`, for the same reason: they are a schema with a name.

Prints every fault, and ends with 1 if there is one.
"""
import collections
import pathlib
import re
import sys

import yaml

METHODS = {"get", "put", "post", "delete", "patch", "head", "options", "trace"}
# Of these, an example says nothing.
TEXTS = {"text/html", "application/yaml"}
# Examples and constants are data, however much they look like a description.
DATA = {"example", "examples", "default", "const"}


def name_of(value):
    """The name that a generator gives a value of an enum."""
    return re.sub(r"[^a-z0-9]", "", str(value).lower())


def nodes(value, path=()):
    """Each object of the description with its place."""
    if isinstance(value, dict):
        yield path, value
        for key, member in value.items():
            # A property may have the name of a keyword.
            if key not in DATA or path[-1:] == ("properties",):
                yield from nodes(member, (*path, str(key)))
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from nodes(member, (*path, str(index)))


def check_nodes(document):
    for path, node in nodes(document):
        place = "/".join(path)
        if isinstance(node.get("$ref"), str) and len(node) > 1:
            yield f"{place}: {', '.join(key for key in node if key != '$ref')} beside $ref"
        if node.get("type") == "boolean" and ("enum" in node or "const" in node):
            yield f"{place}: a boolean with enum or const"
        if node.get("uniqueItems") is True and "enum" in node.get("items", {}):
            yield f"{place}: items with an enum that has no name"
        if isinstance(node.get("enum"), list) and path[-1:] != ("properties",):
            values = [value for value in node["enum"] if value is not None]
            names = collections.Counter(name_of(value) for value in values)
            for value in values:
                name = name_of(value)
                if not name or (isinstance(value, str) and name[0].isdigit()):
                    yield f"{place}: there is no name for the value {value!r}"
                elif names[name] > 1:
                    yield f"{place}: the value {value!r} has the name of another value"


def check_operations(document):
    def resolved(value):
        while "$ref" in value:
            target = document
            for token in value["$ref"].removeprefix("#/").split("/"):
                target = target[token.replace("~1", "/").replace("~0", "~")]
            value = target
        return value

    seen = {}
    for path, item in document["paths"].items():
        for method in METHODS & set(item):
            operation, place = item[method], f"{method.upper()} {path}"
            name = operation.get("operationId", "")
            if not re.fullmatch(r"[a-z][A-Za-z0-9]*", name):
                yield f"{place}: the operationId {name!r} is not in camelCase"
            if name.lower() in seen:
                yield f"{place}: {seen[name.lower()]} has the operationId {name}, too"
            seen[name.lower()] = place
            contents = {"the request": resolved(operation.get("requestBody", {})).get("content", {})}
            for status, answer in operation["responses"].items():
                if status.startswith("2"):
                    contents[status] = resolved(answer).get("content", {})
            for part, content in contents.items():
                for media_type, media in content.items():
                    if media_type not in TEXTS and not media.get("examples") and "example" not in media:
                        yield f"{place}: {part} has no example of {media_type}"


def main():
    file = sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[2] / "openapi.yaml"
    with open(file) as text:
        document = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    faults = [*check_nodes(document), *check_operations(document)]
    for fault in faults:
        print(f"{file}: {fault}", file=sys.stderr)
    if faults:
        sys.exit(1)
    print("openapi.yaml: references stand alone, operations have names and examples, enums have names")


main()
