"""Signs and verifies tokens by another implementation (jwcrypto), for the tests.

Reads one JSON object a line from standard input, and answers each with one:

    {"do": "make", "alg", "kid"}              {"jwk", "pem"}       a new private key
    {"do": "sign", "jwk", "header", "payload"}  {"jws"}              a token
    {"do": "verify", "jwk", "alg", "jws"}     {"valid", "payload"}
    {"do": "thumbprint", "jwk"}               {"thumbprint"}
    {"do": "receive", "crv"}                  {"jwk"}              a new private key for encryption
    {"do": "open", "jwk", "jwe"}              {"content", "header"}
    {"do": "malformed", "jwk"}                {"tokens": [[name, token], ...]}
"""

import base64
import hashlib
import hmac
import json
import sys

from jwcrypto import jwe, jwk, jws

KINDS = {
    "ES256": {"kty": "EC", "crv": "P-256"},
    "ES384": {"kty": "EC", "crv": "P-384"},
    "EdDSA": {"kty": "OKP", "crv": "Ed25519"},
    "RS256": {"kty": "RSA", "size": 2048},
    "PS256": {"kty": "RSA", "size": 2048},
}


def encode(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def make(request):
    key = jwk.JWK.generate(kid=request["kid"], **KINDS[request["alg"]])
    return {"jwk": key.export(as_dict=True), "pem": key.export_to_pem(True, None).decode()}


def signed(key, header, payload):
    token = jws.JWS(payload)
    token.allowed_algs = list(KINDS)
    token.add_signature(key, protected=json.dumps(header))
    return token


def sign(request):
    key = jwk.JWK(**request["jwk"])
    return {"jws": signed(key, request["header"], request["payload"]).serialize(compact=True)}


def verify(request):
    token = jws.JWS()
    token.allowed_algs = [request["alg"]]
    try:
        token.deserialize(request["jws"], jwk.JWK(**request["jwk"]))
    except jws.InvalidJWSSignature:
        return {"valid": False}
    return {"valid": True, "payload": token.payload.decode()}


def thumbprint(request):
    return {"thumbprint": jwk.JWK(**request["jwk"]).thumbprint()}


def malformed(request):
    """Tokens that must be refused, most of them with a good signature by the key."""
    key = jwk.JWK(**request["jwk"])
    public = json.loads(key.export_public())
    payload = '{"sub":"u"}'
    header = {"alg": "ES256", "kid": request["jwk"]["kid"]}
    good = signed(key, header, payload)
    compact = good.serialize(compact=True)
    head, body, signature = compact.split(".")

    def with_parameters(**parameters):
        # By hand, because jwcrypto refuses to write most of these.
        text = encode(json.dumps({**header, **parameters}).encode()) + "." + body
        raw = jws.JWSCore("ES256", key, json.dumps({**header, **parameters}), payload).sign()
        assert raw["protected"] == text.split(".")[0], "jwcrypto signs what stands here"
        return text + "." + raw["signature"]

    def hmac_with(secret):
        text = encode(json.dumps({**header, "alg": "HS256"}).encode()) + "." + body
        return text + "." + encode(hmac.new(secret, text.encode(), hashlib.sha256).digest())

    detached = signed(key, header, payload)
    detached.detach_payload()
    encrypted = jwe.JWE(payload, json.dumps({"alg": "ECDH-ES", "enc": "A256GCM"}), recipient=key)
    tokens = {
        "json": good.serialize(compact=False),
        "detached": detached.serialize(compact=True),
        "encrypted": encrypted.serialize(compact=True),
        "unsecured": encode(b'{"alg":"none"}') + "." + body + ".",
        "unsecured, with the signature": encode(b'{"alg":"none"}') + "." + body + "." + signature,
        "hmac with the PEM": hmac_with(key.export_to_pem()),
        "hmac with the JWK": hmac_with(json.dumps(public).encode()),
        "hmac with the coordinate": hmac_with(base64.urlsafe_b64decode(public["x"] + "==")),
        "crit": with_parameters(crit=["exp"], exp=1),
        "unencoded payload": with_parameters(crit=["b64"], b64=False),
        "jwk": with_parameters(jwk=public),
        "jku": with_parameters(jku="https://a.example/keys"),
        "x5u": with_parameters(x5u="https://a.example/chain"),
        "x5c": with_parameters(x5c=["MII"]),
        "another algorithm": encode(json.dumps({**header, "alg": "ES384"}).encode()) + "." + body + "." + signature,
        "padded": ".".join(part + "=" * (-len(part) % 4) for part in (head, body, signature)),
        "standard base64": ".".join(
            base64.b64encode(base64.urlsafe_b64decode(part + "==")).decode() for part in (head, body, signature)),
        "lines": "\n".join(compact[start:start + 64] for start in range(0, len(compact), 64)),
        "bearer": "Bearer " + compact,
        "another payload": head + "." + encode(b'{"sub":"v"}') + "." + signature,
    }
    return {"good": compact, "tokens": list(tokens.items())}


def receive(request):
    kind = "EC" if request["crv"] == "P-256" else "OKP"
    return {"jwk": jwk.JWK.generate(kty=kind, crv=request["crv"], kid="theirs").export(as_dict=True)}


def open_jwe(request):
    token = jwe.JWE()
    token.allowed_algs = ["ECDH-ES", "A256GCM"]
    token.deserialize(request["jwe"], jwk.JWK(**request["jwk"]))
    return {"content": token.payload.decode(), "header": token.jose_header}


COMMANDS = {"receive": receive, "open": open_jwe, "make": make, "sign": sign, "verify": verify, "thumbprint": thumbprint, "malformed": malformed}

for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps(COMMANDS[request["do"]](request)), flush=True)
