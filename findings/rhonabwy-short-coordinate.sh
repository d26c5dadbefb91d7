#!/usr/bin/env bash
# rnbyc 1.1.11-1 with librhonabwy1.1 1.1.11-1 (Debian 12): Rhonabwy, the library of Glewlwyd for keys and tokens, writes an
# elliptic curve's public key whose x begins with a zero octet as a JWK with an x of 31 octets. PyJWT 2.15.1 (PyPI) does not
# take that JWK.
#
# RFC 7518, section 6.2.1.2, has the coordinate at the full size of the curve's field, 32 octets for P-256. One key in 128 or so
# has such an x or y. With it, clients that hold to the RFC cannot read the server's JWKS, and with the next key they can.
#
# Output seen:
#   of the key: x 32 octets, y 32 octets
#   of the JWK: x 31 octets, y 32 octets
#   PyJWT: Coords should be 32 bytes for curve P-256
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
mkdir "$directory/packages" "$directory/root"
cd "$directory/packages"
wanted=(rnbyc=1.1.11-1 librhonabwy1.1=1.1.11-1)
apt-get -s --no-install-recommends install "${wanted[@]}" 2>/dev/null |
    awk -v wanted=" ${wanted[*]%%=*} " '$1 == "Inst" && $3 !~ /^\[/ && !index(wanted, " " $2 " ") {print $2}' |
    xargs apt-get -qq -o APT::Sandbox::User=root download "${wanted[@]}"
for package in *.deb; do dpkg-deb -x "$package" "$directory/root"; done
cd "$directory"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check PyJWT==2.15.1 cryptography==50.0.2
cat >key.py <<'PYTHON'
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

number = 1
while True:
    key = ec.derive_private_key(number, ec.SECP256R1()).public_key()
    if key.public_numbers().x < 1 << 248 and key.public_numbers().y >= 1 << 248:
        break
    number += 1
point = key.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
print(f"of the key: x {len(point[1:33])} octets, y {len(point[33:])} octets")
with open("key.pem", "wb") as file:
    file.write(key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
PYTHON
cat >finding.py <<'PYTHON'
import base64, json, sys
import jwt

key = json.load(sys.stdin)["keys"][0]
x, y = (len(base64.urlsafe_b64decode(key[name] + "=" * (-len(key[name]) % 4))) for name in "xy")
print(f"of the JWK: x {x} octets, y {y} octets")
try:
    jwt.PyJWK({**key, "alg": "ES256"})
    refused = False
except jwt.InvalidKeyError as error:
    refused = True
    print("PyJWT:", error)
sys.exit(0 if (x, y) == (31, 32) and refused else 1)
PYTHON
venv/bin/python key.py
LD_LIBRARY_PATH=$(printf '%s:' root/usr/lib/*-linux-gnu) root/usr/bin/rnbyc -j -f key.pem -n 0 | venv/bin/python finding.py
