"""Reads openapi.yaml for the tests, and holds examples and answers against it.

    contract.py facts openapi.yaml                what the tests compare with the code
    contract.py validate openapi.yaml             whether the file is OpenAPI and its examples fit their schemas
    contract.py answers openapi.yaml exchanges    whether recorded answers, one JSON object per line, are as described

Prints one line, a JSON object. Whatever is wrong is in its "faults".
"""

import copy
import json
import re
import sys
import urllib.parse

import yaml
from jsonschema import FormatChecker
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

BASE = "urn:openapi"
METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
# Added to every answer by the server, which recorded exchanges did not pass through.
SERVER_HEADERS = {"x-request-id", "x-content-type-options"}
# Described by the media type of the content, not as headers (OpenAPI 3.1 §4.8.17.1).
CONTENT_HEADERS = {"content-type"}


class Loader(yaml.SafeLoader):
    """Leaves times as the texts that they are in JSON."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load(path):
    with open(path, encoding="utf-8") as file:
        return yaml.load(file, Loader)


def pointer(*tokens):
    return "#/" + "/".join(str(token).replace("~", "~0").replace("/", "~1") for token in tokens)


class Description:
    def __init__(self, document):
        self.document = document
        self.registry = Registry().with_resource(BASE, Resource(document, DRAFT202012))

    def resolve(self, value):
        """The object that a reference names, with what stands beside the reference; any other as it is."""
        while isinstance(value, dict) and isinstance(value.get("$ref"), str):
            beside = {key: member for key, member in value.items() if key != "$ref"}
            target = self.document
            for token in value["$ref"].removeprefix("#/").split("/"):
                target = target[token.replace("~1", "/").replace("~0", "~")]
            value = {**target, **beside}
        return value

    def errors(self, schema, instance):
        """What is wrong with the instance, in words."""
        validator = OAS31Validator(
            self.absolute(schema), registry=self.registry, format_checker=FormatChecker())
        return [f"/{'/'.join(map(str, error.absolute_path))}: {error.message[:400]}"
                for error in validator.iter_errors(instance)]

    def absolute(self, schema):
        """The schema with references that do not depend on where it stands, since it is passed on by itself."""
        if isinstance(schema, list):
            return [self.absolute(member) for member in schema]
        if not isinstance(schema, dict):
            return schema
        return {
            key: BASE + member if key == "$ref" and isinstance(member, str) else self.absolute(member)
            for key, member in schema.items()
        }

    def operations(self):
        for path, item in self.document["paths"].items():
            for method in METHODS:
                if method in item:
                    yield method.upper(), path, item[method]

    def parameters(self, path, operation):
        shared = self.document["paths"][path].get("parameters", [])
        return [self.resolve(parameter) for parameter in shared + operation.get("parameters", [])]


# --- facts ----------------------------------------------------------------------------------------------------------


def facts(description):
    schemas = description.document["components"]["schemas"]
    code = schemas["Code"]
    rows = re.findall(r"^\| `([a-z_]+)` \| (\d{3}) \|", code["description"], re.MULTILINE)
    return {
        "version": description.document["info"]["version"],
        "operations": [f"{method} {path}" for method, path, _ in description.operations()],
        "codes": code["enum"],
        "statuses": {name: int(status) for name, status in rows},
        "tenant_given": list(schemas["TenantConfiguration"]["properties"]),
        "tenant_shown": list(schemas["Tenant"]["properties"]),
        "faults": [],
    }


# --- validate -------------------------------------------------------------------------------------------------------


def validate(description):
    faults = [f"{'/'.join(map(str, error.absolute_path))}: {error.message}"
              for error in OpenAPIV31SpecValidator(description.document).iter_errors()]
    if not faults:
        counted = 0
        for place, schema, example in examples(description, description.document, []):
            counted += 1
            faults += [f"{place}: {error}" for error in description.errors(schema, example)]
        if counted == 0:
            faults.append("there is not one example")
        faults += without_examples(description)
    return {"faults": faults}


def examples(description, value, path):
    """Every example of the document with its place and the schema that it should fit."""
    if isinstance(value, list):
        for index, member in enumerate(value):
            yield from examples(description, member, path + [index])
    if not isinstance(value, dict):
        return
    place = pointer(*path)
    # Media types, parameters and headers: the schema stands beside its examples.
    if isinstance(value.get("schema"), dict):
        if "example" in value:
            yield place + "/example", value["schema"], value["example"]
        for name, example in value.get("examples", {}).items():
            yield f"{place}/examples/{name}", value["schema"], description.resolve(example)["value"]
    elif is_schema(value):
        for name in ("default", "example"):
            if name in value:
                yield f"{place}/{name}", value, value[name]
        for index, example in enumerate(value.get("examples", [])):
            yield f"{place}/examples/{index}", value, example
    for key, member in value.items():
        # What stands in an example is data, however much it looks like a description.
        if key not in ("example", "examples", "default", "enum", "const"):
            yield from examples(description, member, path + [key])


def is_schema(value):
    """A schema that stands beside a reference holds it in allOf."""
    is_reference = "$ref" in value and "/schemas/" in str(value["$ref"])
    return isinstance(value.get("type"), (str, list)) or is_reference or isinstance(value.get("allOf"), list)


def without_examples(description):
    """JSON contents of requests and successful answers that have no example."""
    for method, path, operation in description.operations():
        contents = [("request", description.resolve(operation.get("requestBody", {})).get("content", {}))]
        for status, response in operation["responses"].items():
            if status.startswith("2"):
                contents.append((status, description.resolve(response).get("content", {})))
        for place, content in contents:
            for media_type, media in content.items():
                if media_type == "application/json" and not media.get("examples"):
                    yield f"{method} {path}: {place} has no example"


# --- answers --------------------------------------------------------------------------------------------------------


def closed(document):
    """The document with every object closed: a caller may meet members that are not described, a test may not."""
    document = copy.deepcopy(document)

    def close(value):
        if isinstance(value, list):
            for member in value:
                close(member)
        elif isinstance(value, dict):
            for key, member in value.items():
                if key not in ("example", "examples"):
                    close(member)
            if "properties" in value and value.get("type") == "object":
                value.setdefault("additionalProperties", False)

    close(document)
    return document


class Answers:
    """Recorded exchanges against their description."""

    def __init__(self, description):
        self.description = description
        self.faults = []
        self.seen = {(method, path): set() for method, path, _ in description.operations()}
        self.operations = {(method, path): operation for method, path, operation in description.operations()}
        self.codes = set()
        # A path with fewer parameters is the more specific one.
        self.patterns = sorted(
            ((re.compile(re.sub(r"\\\{[^}]*\\\}", "([^/]+)", re.escape(path)) + "$"), path)
             for path in description.document["paths"]), key=lambda pattern: pattern[1].count("{"))

    def check(self, exchange):
        method = exchange["method"]
        target = urllib.parse.urlsplit(exchange["target"])
        path = next((path for pattern, path in self.patterns if pattern.match(target.path)), None)
        operation = self.operations.get((method, path))
        name = f"{method} {exchange['target']} -> {exchange['status']}"
        status = str(exchange["status"])
        components = self.description.document["components"]["responses"]
        if operation and (status in operation["responses"] or not exchange["refused"]):
            self.seen[method, path].add(status)
            response = self.description.resolve(operation["responses"].get(status, {}))
            if status.startswith("2"):
                self.check_request(name, path, operation, target.query, exchange)
        elif exchange["refused"]:
            response = components["Refused"]
        else:
            response = components["MethodNotAllowed" if path else "UnknownPath"]
        if not response:
            self.faults.append(f"{name}: the status is not described")
            return
        self.check_headers(name, response, exchange["fields"])
        self.check_body(name, response, exchange)

    def check_request(self, name, path, operation, query, exchange):
        """What the broker took must be allowed."""
        parameters = {parameter["name"]: parameter
                      for parameter in self.description.parameters(path, operation) if parameter["in"] == "query"}
        for key, text in urllib.parse.parse_qsl(query, keep_blank_values=True):
            if key not in parameters:
                self.faults.append(f"{name}: the query parameter {key} was taken and is not described")
                continue
            schema = parameters[key]["schema"]
            self.note(f"{name}: query parameter {key}", self.description.errors(schema, read(schema, text)))
        content = self.description.resolve(operation.get("requestBody", {})).get("content", {})
        if exchange["body"] and "application/json" in content:
            self.note(f"{name}: body that was taken", self.description.errors(
                content["application/json"]["schema"], json.loads(exchange["body"])))

    def check_headers(self, name, response, fields):
        described = {key.lower(): self.description.resolve(header)
                     for key, header in response.get("headers", {}).items()}
        sent = {}
        for field in fields:
            key = field["name"].lower()
            # RFC 9110, section 5.3: only Set-Cookie is a field of its own for each value.
            if key in sent and key != "set-cookie":
                self.faults.append(f"{name}: {key} is sent twice")
            sent.setdefault(key, []).append(field["value"])
        for key, header in described.items():
            if key in sent:
                schema = header["schema"]
                for value in sent[key]:
                    self.note(f"{name}: header {key}", self.description.errors(schema, read(schema, value)))
            elif header.get("required") and key not in SERVER_HEADERS:
                self.faults.append(f"{name}: the header {key} is missing")
        for key in sent.keys() - described.keys() - CONTENT_HEADERS:
            self.faults.append(f"{name}: the header {key} is not described")

    def check_body(self, name, response, exchange):
        text = exchange["answer"]
        types = [field["value"] for field in exchange["fields"] if field["name"].lower() == "content-type"]
        content = response.get("content")
        if content is None:
            if text or types:
                self.faults.append(f"{name}: a body that is not described")
            return
        media_type = types[0].split(";")[0].strip().lower() if types else None
        if media_type not in content:
            self.faults.append(f"{name}: the media type {media_type} is not described")
            return
        instance = text
        if media_type == "application/x-ndjson":
            pass  # Lines, which stay the text that they are.
        elif media_type.endswith("yaml"):
            instance = yaml.load(text, Loader)
        elif media_type.endswith("json"):
            instance = json.loads(text)
            if isinstance(instance, dict) and media_type == "application/problem+json":
                self.codes.add(instance.get("code"))
                if instance.get("status") != exchange["status"]:
                    self.faults.append(f"{name}: the problem's status is {instance.get('status')}")
        self.note(name, self.description.errors(content[media_type]["schema"], instance))

    def note(self, name, errors):
        self.faults += [f"{name}: {error}" for error in errors]

    def finish(self):
        """What is described and never happened."""
        for (method, path), operation in self.operations.items():
            for status in sorted(operation["responses"].keys() - self.seen[method, path]):
                self.faults.append(f"{method} {path}: {status} is described and was not seen")
        codes = self.description.document["components"]["schemas"]["Code"]["enum"]
        for code in sorted(set(codes) - self.codes):
            self.faults.append(f"{code} is described and was not seen")


def read(schema, text):
    """The value that a text in a header or a query stands for."""
    if schema.get("type") == "integer" and re.fullmatch("-?[0-9]+", text):
        return int(text)
    if schema.get("type") == "boolean" and text in ("true", "false"):
        return text == "true"
    return text


def answers(description, path):
    checker = Answers(Description(closed(description.document)))
    count = 0
    with open(path, encoding="utf-8") as file:
        for line in file:
            checker.check(json.loads(line))
            count += 1
    checker.finish()
    return {"count": count, "faults": checker.faults}


def main():
    command, path, *rest = sys.argv[1:]
    description = Description(load(path))
    if command == "facts":
        result = facts(description)
    elif command == "validate":
        result = validate(description)
    elif command == "answers":
        result = answers(description, rest[0])
    else:
        sys.exit(f"contract.py: unknown command {command}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
