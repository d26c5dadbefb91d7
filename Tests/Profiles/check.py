#!/usr/bin/env python3
"""Holds the provider profiles in Sources/CResources/profiles to their schema, and to what a schema cannot say.

    Tests/Profiles/check.py [FOLDER]

* The names are those of NAMES, and each file bears its profile's name.
* Every {placeholder} of an address is a declared parameter or one of the tenant's base URIs, and every declared parameter
  stands in an address. A parameter without a default, and no other, is required as `parameters.NAME`.
* Changes stand in the order of their dates, and set only members that the schema has.
* `refresh_token_scope` is there exactly where refresh tokens come with a scope.
* A file ends with one newline, and its lines have 120 characters at most, texts for people and the address of the documentation not counted. A note
  has 400 characters at most.

Prints every fault, and ends with 1 if there is one. What checks the schema is in .build-tools/python.
"""
import argparse
import json
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".build-tools" / "python" / "bin" / "python"
try:
    import jsonschema
except ModuleNotFoundError:
    if not PYTHON.exists() or os.environ.get("PROFILES_PYTHON"):
        sys.exit(f"no module jsonschema, neither here nor for {PYTHON}: Deploy/test installs it")
    os.environ["PROFILES_PYTHON"] = "1"
    os.execv(PYTHON, [str(PYTHON), *sys.argv])

NAMES = """
tidal duckduckgo authgear spotify oidc oauth2 google microsoft github github-app gitlab bitbucket salesforce slack dropbox
notion atlassian quickbooks xero hubspot shopify zoom linkedin x reddit discord twitch figma linear airtable asana box
docusign facebook instagram threads tiktok stripe square paypal zendesk zoho okta auth0 keycloak cognito amazon-seller monday
strava fitbit snowflake pipedrive clickup intercom calendly canva miro webflow openai mcp static
""".split()
BASE_URIS = {"login_service_base_uri", "auth_service_base_uri"}
LONGEST_LINE, LONGEST_NOTE = 120, 400
PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"')


def once(pairs):
    """An object of JSON whose members have different names."""
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the member {max(names, key=names.count)!r} stands there twice")
    return members


def addresses(profile):
    """The addresses of a profile that may have placeholders, by their names."""
    if "issuer" in profile:
        yield "issuer", profile["issuer"]
    for name, address in profile.get("endpoints", {}).items():
        yield f"endpoints.{name}", address
    for name in ("refresh", "exchange_for_long_lived"):
        if "endpoint" in profile.get(name, {}):
            yield f"{name}.endpoint", profile[name]["endpoint"]


def check_placeholders(profile):
    declared, used = profile.get("parameters", {}), set()
    for name, address in addresses(profile):
        found = PLACEHOLDER.findall(address)
        used.update(found)
        if re.search(r"[{}]", PLACEHOLDER.sub("", address)):
            yield f"{name} has a brace that belongs to no placeholder: {address}"
        for placeholder in found:
            if placeholder not in declared and placeholder not in BASE_URIS and placeholder != "client_id":
                yield f"{name} has {{{placeholder}}}, which is not declared in parameters"
    for name in declared:
        if name not in used:
            yield f"the parameter {name} stands in no address"
    needed = {name for name, parameter in declared.items() if "default" not in parameter}
    required = {name.removeprefix("parameters.") for name in profile["required"] if name.startswith("parameters.")}
    for name in sorted(needed - required):
        yield f"the parameter {name} has no default, so parameters.{name} must be required"
    for name in sorted(required - needed):
        yield f"parameters.{name} is required, but " + ("has a default" if name in declared else "not declared")


def check_changes(profile, schema):
    changes = profile.get("changes", [])
    for before, after in zip(changes, changes[1:]):
        if after["date"] < before["date"]:
            yield f"the change of {after['date']} stands behind that of {before['date']}"
    for change in changes:
        settings = change.get("set", {})
        for name in settings:
            if name not in schema["properties"]:
                yield f"the change of {change['date']} sets {name}, which the schema does not have"
        # A tenant's `parameters` are values by name, and not declarations.
        for name in settings.get("parameters", {}):
            if name not in profile.get("parameters", {}):
                yield f"the change of {change['date']} sets parameters.{name}, which is not declared"
        members = {name: value for name, value in settings.items() if name in schema["properties"] and name != "parameters"}
        for fault in faults_of_schema(members, {**schema, "required": []}):
            yield f"the change of {change['date']} sets what the schema refuses: {fault}"


def faults_of_schema(document, schema):
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    for error in sorted(validator.iter_errors(document), key=lambda error: error.json_path):
        yield f"{error.json_path}: {error.message}"


def check_form(text, profile):
    if not text.endswith("\n") or text.endswith("\n\n"):
        yield "the file must end with one newline"
    texts = {profile["documentation"], *profile["notes"], *(change["what"] for change in profile.get("changes", [])),
             *(parameter["description"] for parameter in profile.get("parameters", {}).values())}
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) <= LONGEST_LINE:
            continue
        rest = LITERAL.sub(lambda literal: "" if json.loads(literal[0]) in texts else literal[0], line)
        if len(rest) > LONGEST_LINE:
            yield f"line {number} has {len(line)} characters, more than {LONGEST_LINE}"
    for number, note in enumerate(profile["notes"]):
        if len(note) > LONGEST_NOTE:
            yield f"notes[{number}] has {len(note)} characters, more than {LONGEST_NOTE}: {note[:60]}…"


def check_profile(path, schema):
    try:
        text = path.read_bytes().decode()
        profile = json.loads(text, object_pairs_hook=once)
    except ValueError as error:
        yield f"no JSON in UTF-8: {error}"
        return
    refused = list(faults_of_schema(profile, schema))
    yield from refused
    if refused:
        return
    if profile["name"] != path.stem:
        yield f"the profile calls itself {profile['name']}"
    if (profile.get("refresh_tokens") == "with_scope") != ("refresh_token_scope" in profile):
        yield "refresh_token_scope must be there where refresh_tokens is with_scope, and only there"
    yield from check_placeholders(profile)
    yield from check_changes(profile, schema)
    yield from check_form(text, profile)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=ROOT / "Sources" / "CResources" / "profiles")
    folder = parser.parse_args().folder
    schema = json.loads((folder / "schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    paths = sorted(path for path in folder.glob("*.json") if path.name != "schema.json")
    faults = [f"{path.name}: {fault}" for path in paths for fault in check_profile(path, schema)]
    found = {path.stem for path in paths}
    faults += [f"{name}.json: there is no such file" for name in NAMES if name not in found]
    faults += [f"{name}.json: the list of names in {pathlib.Path(__file__).name} does not have it"
               for name in sorted(found - set(NAMES))]
    for fault in faults:
        print(fault)
    if faults:
        return 1
    print(f"{len(paths)} profiles: as the schema says, and complete")
    return 0


sys.exit(main())
