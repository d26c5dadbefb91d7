#!/usr/bin/env bash
# OpenAPI Generator 7.26.0 (PyPI) makes Java that does not compile of a boolean with `enum`, and of one with `const`: the values of
# the enum are texts, and the enum's constructor takes a Boolean. JSON Schema allows any type's values in `enum` and `const`, and
# the generator reads the description without a warning. Of an enum of texts it makes Java that compiles, and of a boolean that
# must `not` be the other value a Boolean.
#
# Wants a JDK (17) and Python with pip. The library of Jackson, of which only names are used, is stood in for.
#
# Output seen:
#   Word: compiles
#   Enumerated: incompatible types: String cannot be converted to Boolean, TRUE("true");
#   Constant: incompatible types: String cannot be converted to Boolean, TRUE("true");
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check openapi-generator-cli==7.26.0
cat >openapi.yaml <<'YAML'
openapi: 3.1.0
info: { title: finding, version: '1' }
paths: {}
components:
  schemas:
    Word: { type: string, enum: [left, right] }
    Enumerated: { type: boolean, enum: [true] }
    Constant: { type: boolean, const: true }
YAML
venv/bin/openapi-generator-cli generate --generator-name java --library native --input-spec openapi.yaml --output made \
    --global-property models,modelTests=false,modelDocs=false >log 2>&1 || { cat log >&2; exit 1; }
mkdir -p com/fasterxml/jackson/annotation
for name in JsonCreator JsonPropertyOrder JsonValue; do
    echo "package com.fasterxml.jackson.annotation; public @interface $name {}" >"com/fasterxml/jackson/annotation/$name.java"
done
for name in Word Enumerated Constant; do
    source=$(find made -name "$name.java")
    javac -proc:none -d classes -sourcepath . "$source" 2>errors && echo "$name: compiles" && continue
    echo "$name: $(sed -n 's/.*error: //p' errors | head -n 1), $(sed -n 's/^ *\(TRUE(.*\)/\1/p' errors | head -n 1)"
done | tee output
diff output - <<'SEEN'
Word: compiles
Enumerated: incompatible types: String cannot be converted to Boolean, TRUE("true");
Constant: incompatible types: String cannot be converted to Boolean, TRUE("true");
SEEN
