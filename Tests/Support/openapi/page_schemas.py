"""Texts and schemas of openapi.yaml as HTML, for the page that `page` writes."""
import html
import json
import re

from markdown_it import MarkdownIt

ANCHORS = {"schemas": "schema", "responses": "answer", "headers": "field", "securitySchemes": "key"}
# A table of more rows than this is folded away.
LONG = 12

TOLD_OF_SCHEMAS = set(
    "type description $ref properties pattern items required enum format minimum maximum maxLength minLength allOf maxItems "
    "minItems additionalProperties const default examples uniqueItems minProperties maxProperties writeOnly readOnly propertyNames "
    "oneOf anyOf not patternProperties title".split())


class Unshown(Exception):
    """openapi.yaml has something that the page would not show, or would not show well."""


def expect_known(members, known, place):
    if unknown := sorted(set(members) - known):
        raise Unshown(f"{place}: this page shows no {', '.join(unknown)}")


def text(value):
    return html.escape(str(value), quote=False)


def code(value):
    return f"<code>{text(value)}</code>"


def slug(words):
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def listed(items, last="or"):
    items = list(items)
    return f" {last} ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def data(value):
    """A value of an example or a limit as JSON, on one line."""
    return json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value


def rows_of(kind, name, rows):
    """A table of two columns, of which the first has the names of things."""
    heads = {"members": "Meaning", "statuses": "Answer"}
    return (f'<table class="{kind}"><thead><tr><th>{name}<th>{heads[kind]}</thead>\n<tbody>\n' + "\n".join(rows)
            + "\n</tbody></table>")


class Schemas:
    """What makes HTML of texts and schemas; the page is a kind of it."""

    def __init__(self, components, operations):
        """`operations` has the operationId of each method and path, such as `GET /tenants`."""
        self.components = components
        self.ids = operations
        self.markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
        self.markdown.renderer.rules |= {
            "code_inline": self.code_span, "table_open": self.table_open, "table_close": lambda *_: "</table></div>\n",
        }

    # Text

    def code_span(self, tokens, index, *_):
        """Code, as a link where it names something of the page."""
        content = tokens[index].content
        target = None
        if content in self.ids:
            target = f"operation-{self.ids[content]}"
        elif content in self.components["schemas"]:
            target = f"schema-{content}"
        elif found := re.fullmatch(r"#/components/(\w+)/([\w-]+)", content):
            target, content = f"{ANCHORS[found[1]]}-{found[2]}", found[2]
        return f'<a href="#{target}">{code(content)}</a>' if target else code(content)

    def table_open(self, tokens, index, *_):
        columns = 0
        for token in tokens[index:]:
            columns += token.type == "th_open"
            if token.type == "thead_close":
                break
        # A table that does not fit is moved with the arrow keys, for which it takes the focus.
        return '<div class="wide" tabindex="0" role="group" aria-label="Table">\n<table>' if columns > 2 else "<div><table>"

    def prose(self, markdown):
        return self.markdown.render(markdown or "").strip()

    def line(self, markdown):
        return self.markdown.renderInline((markdown or "").strip())

    def resolved(self, node):
        """What a node is, or what it refers to, and the name of the latter."""
        if "$ref" not in node:
            return node, None
        kind, name = node["$ref"].removeprefix("#/components/").split("/")
        return self.components[kind][name], name

    # Schemas

    def schema_link(self, name):
        return f'<a href="#schema-{name}">{name}</a>'

    def kind(self, schema):
        """What values of a schema are, in a few words."""
        if "$ref" in schema:
            return self.schema_link(schema["$ref"].rsplit("/", 1)[1])
        for word in ("oneOf", "anyOf"):
            if word in schema and all("type" in part or "$ref" in part for part in schema[word]):
                return listed(dict.fromkeys(self.kind(part) for part in schema[word]))
        if "allOf" in schema:
            return listed((self.kind(part) for part in schema["allOf"]), "and")
        types = schema.get("type", "object" if "properties" in schema else [])
        kinds = []
        for name in [types] if isinstance(types, str) else types:
            values = schema.get("additionalProperties")
            if name == "array" and "items" in schema:
                kinds.append(f"array of {self.kind(schema['items'])}")
            elif name == "object" and isinstance(values, dict) and "properties" not in schema:
                kinds.append(f"object, each member {self.kind(values)}")
            else:
                kinds.append(name)
        if not kinds and "const" in schema:
            kinds = [{str: "string", bool: "boolean", int: "integer"}[type(schema["const"])]]
        return listed(kinds) if kinds else "any value"

    def limits(self, schema):
        """What values of a schema must be beside their kind, as texts of markup."""
        def between(least, most, unit="", units=""):
            low, high = schema.get(least), schema.get(most)
            if low is None and high is None:
                return
            number = f"{low}" if low == high else f"at least {low}" if high is None else f"at most {high}" if low is None \
                else f"{low} to {high}"
            yield f"{number} {unit if (high if high is not None else low) == 1 else units}".strip()

        if "const" in schema:
            yield f"always {code(data(schema['const']))}"
        if "enum" in schema:
            yield "one of " + ", ".join(code(data(value)) for value in schema["enum"] if value is not None)
        if "format" in schema:
            yield f"format {text(schema['format'])}"
        yield from between("minimum", "maximum", "")
        yield from between("minLength", "maxLength", "character", "characters")
        yield from between("minItems", "maxItems", "entry", "entries")
        yield from between("minProperties", "maxProperties", "member", "members")
        if schema.get("uniqueItems"):
            yield "no two alike"
        if "pattern" in schema:
            yield f"pattern {code(schema['pattern'])}"
        if "propertyNames" in schema:
            yield f"names: {listed(self.limits(schema['propertyNames']), 'and')}"
        for pattern, values in schema.get("patternProperties", {}).items():
            yield f"members whose names match {code(pattern)}: {self.kind(values)}"
        if "not" in schema:
            values = schema["not"].get("enum")
            yield "none of " + ", ".join(map(code, values)) if values else f"not {code(data(schema['not']))}"
        if schema.get("additionalProperties") is True and "properties" in schema:
            yield "further members are possible"
        if "default" in schema:
            yield f"default {code(data(schema['default']))}"
        if schema.get("writeOnly"):
            yield "in requests only"
        if schema.get("readOnly"):
            yield "in answers only"
        for name, word in [("items", "each entry"), ("additionalProperties", "each member")]:
            part = schema.get(name)
            if isinstance(part, dict) and "$ref" not in part and "properties" not in part:
                if limits := list(self.limits(part)):
                    yield f"{word}: {', '.join(limits)}"
        for part in schema.get("allOf", []) + schema.get("oneOf", []):
            if "$ref" not in part and "properties" not in part:
                yield from self.limits(part)

    def facts(self, schema):
        """The description and the limits of a schema, as blocks of markup."""
        if description := schema.get("description"):
            yield self.prose(description)
        if limits := list(self.limits(schema)):
            sentence = "; ".join(limits)
            yield f'<small>{sentence[0].upper()}{sentence[1:]}.</small>'
        for part in [schema.get("items"), schema.get("additionalProperties")]:
            if isinstance(part, dict) and "description" in part:
                yield self.prose(part["description"])
        if ways := self.alternatives(schema):
            yield "<p>One of:</p>\n<ul>" + "".join(f"<li>{way}</li>" for way in ways) + "</ul>"
        if examples := schema.get("examples"):
            yield f'<small>For example {listed(code(data(example)) for example in examples)}.</small>'

    def alternatives(self, schema):
        """The sets of members that an object may have, where there are several."""
        parts = schema.get("oneOf", []) + schema.get("anyOf", [])
        if not parts or all("type" in part or "$ref" in part for part in parts):
            return []
        ways = []
        for part in parts:
            expect_known(part, {"description", "required", "properties"}, "an alternative")
            without = [name for name, value in part.get("properties", {}).items() if "not" in value]
            words = []
            if part.get("required"):
                words.append("with " + listed(map(code, part["required"]), "and"))
            if without:
                words.append("without " + listed(map(code, without), "and"))
            told = self.line(part.get("description")).removesuffix(".")
            ways.append(": ".join(each for each in [told, ", ".join(words)] if each))
        return ways

    def members(self, schema, prefix=""):
        """The rows of the members of a schema, and of those of objects in it."""
        expect_known(schema, TOLD_OF_SCHEMAS, prefix or "a schema")
        required = schema.get("required", [])
        for name, member in schema.get("properties", {}).items():
            must = " <b>required</b>" if name in required else ""
            place = f"<i>{text(prefix)}</i>" if prefix else ""
            yield (f'<tr><th><code>{place}{text(name)}</code>{must}<br><i>{self.kind(member)}</i>'
                   f"<td>{''.join(self.facts(member))}")
            yield from self.nested(member, f"{prefix}{name}")
        for part in schema.get("allOf", []) + schema.get("oneOf", []) + schema.get("anyOf", []):
            if "$ref" not in part and not self.alternatives(schema):
                yield from self.members(part, prefix)

    def nested(self, schema, prefix):
        expect_known(schema, TOLD_OF_SCHEMAS, prefix)
        yield from self.members({key: value for key, value in schema.items() if key != "items"}, f"{prefix}.")
        if "items" in schema:
            yield from self.nested(schema["items"], f"{prefix}[]")
        if isinstance(schema.get("additionalProperties"), dict):
            yield from self.nested(schema["additionalProperties"], f"{prefix}.*")

    def table(self, schema):
        rows = list(self.members(schema)) + list(self.nested({"items": schema["items"]}, "") if "items" in schema else [])
        if not rows:
            return ""
        table = rows_of("members", "Member", rows)
        if len(rows) <= LONG:
            return table
        return f"<details><summary>{len(rows)} members</summary>\n{table}\n</details>"

    def is_of_problem(self, schema):
        """Whether a schema only says which status and code of a problem there are, which the answer's own text does."""
        return "allOf" in schema and all(
            name in {"status", "code", "error_code"} for name in schema.get("properties", {}))

    def schema_blocks(self, schema, lead=""):
        """A schema where it is used: a link, or all of it."""
        yield f"<p>{lead}<i>{self.kind(schema)}</i></p>" if lead else f"<p><i>{self.kind(schema)}</i></p>"
        if "$ref" in schema or self.is_of_problem(schema):
            return
        yield from self.facts(schema)
        if table := self.table(schema):
            yield table
