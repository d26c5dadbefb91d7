#!/usr/bin/env bash
# jwcrypto 1.6.1 (PyPI) makes a JWE of an empty content and cannot open it: its JWE.decrypt takes a plaintext of no octets for one
# that no key has opened, and raises InvalidJWEData, "No recipient matched the provided key['Success']". With one octet of content
# the same key opens the JWE. RFC 7516 allows an empty plaintext, and the tag proves it as any other.
#
# A program that sends JWEs to others that use it must send no empty ones.
#
# Output seen:
#   content b'': InvalidJWEData: No recipient matched the provided key['Success']
#   content b'x': opened, b'x'
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
cd "$directory"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check jwcrypto==1.6.1 cryptography==50.0.2
cat >finding.py <<'PYTHON'
from jwcrypto import jwe, jwk

key = jwk.JWK.generate(kty="EC", crv="P-256")
for content in (b"", b"x"):
    made = jwe.JWE(content, protected={"alg": "ECDH-ES", "enc": "A256GCM"})
    made.add_recipient(key)
    opened = jwe.JWE()
    try:
        opened.deserialize(made.serialize(compact=True), key)
        print(f"content {content}: opened, {opened.payload}")
    except jwe.InvalidJWEData as error:
        print(f"content {content}: InvalidJWEData: {error}")
PYTHON
venv/bin/python finding.py | tee output
diff output - <<'SEEN'
content b'': InvalidJWEData: No recipient matched the provided key['Success']
content b'x': opened, b'x'
SEEN
