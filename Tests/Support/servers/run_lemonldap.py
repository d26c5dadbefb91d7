"""The portal of LemonLDAP::NG, unpacked from Debian's packages (lemonldap/install), as an OpenID Connect provider."""

import base64
import json
import os
import pathlib
import subprocess

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

import child

INI = """
[all]
logLevel = error
[configuration]
type = File
dirName = {directory}/conf
[portal]
staticPrefix = /static
templateDir = {root}/usr/share/lemonldap-ng/portal/templates
languages = en
[handler]
status = 0
useRedirectOnError = 1
"""

NO_CAPTCHA = """
package Lemonldap::NG::Portal::Captcha::None;
use Mouse;
extends 'Lemonldap::NG::Portal::Main::Plugin';
sub init { 1 }
$INC{'Lemonldap/NG/Portal/Captcha/None.pm'} = __FILE__;
1;
"""


class Server:
    # The users of its demonstration back end have their names as passwords.
    answers = {"user": "dwho", "password": "dwho", "confirm": "1"}
    protected = "/oauth2/userinfo"

    def __init__(self, base_url, port, directory, options):
        tools = pathlib.Path(options["tools"]) / "lemonldap"
        subprocess.run([str(pathlib.Path(__file__).with_name("lemonldap") / "install"), str(tools)], check=True)
        root = tools / "root"
        self.client_id, self.client_secret = "the-client", options.get("secret", "s+cret/with=reserved%&:chars")
        self.issuer = base_url + "/"
        self.token_endpoint = base_url + "/oauth2/token"
        self.authorization_endpoint = base_url + "/oauth2/authorize"
        self.revocation_endpoint = base_url + "/oauth2/none"
        self.directory = directory
        for name in ("conf", "sessions/lock", "psessions/lock", "cache"):
            (directory / name).mkdir(parents=True)
        (directory / "lemonldap-ng.ini").write_text(INI.format(directory=directory, root=root))
        (directory / "conf" / "lmConf-1.json").write_text(
            json.dumps(self.configuration(root, base_url, options))
        )
        (directory / "None.pm").write_text(NO_CAPTCHA)
        (directory / "portal.psgi").write_text(
            f"use Lemonldap::NG::Portal::Main; require '{directory}/None.pm'; Lemonldap::NG::Portal::Main->run({{}});\n"
        )
        perl = [str(root / "usr/share/perl5"), *(str(path) for path in root.glob("usr/lib/*/perl5/5.*"))]
        environment = {
            **os.environ,
            "PERL5LIB": ":".join(perl),
            "LLNG_DEFAULTCONFFILE": str(directory / "lemonldap-ng.ini"),
            "LD_LIBRARY_PATH": ":".join(str(path) for path in root.glob("usr/lib/*-linux-gnu")),
            "PLACK_ENV": "deployment",
        }
        self.process = child.start(
            [
                "/usr/bin/perl",
                str(root / "usr/bin/plackup"),
                *("-s", "HTTP::Server::PSGI", "--host", "127.0.0.1", "--port", str(port)),
                str(directory / "portal.psgi"),
            ],
            environment,
        )
        child.wait(self.process, port)

    def configuration(self, root, base_url, options):
        configuration = json.loads((root / "var/lib/lemonldap-ng/conf/lmConf-1.json").read_text())
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        storage = {
            "generateModule": "Lemonldap::NG::Common::Apache::Session::Generate::SHA256",
        }
        client = {
            "oidcRPMetaDataOptionsClientID": self.client_id,
            "oidcRPMetaDataOptionsClientSecret": self.client_secret,
            "oidcRPMetaDataOptionsRedirectUris": options["redirect_uri"],
            "oidcRPMetaDataOptionsAccessTokenExpiration": options.get("access_token_lifetime", 3600),
            "oidcRPMetaDataOptionsIDTokenSignAlg": "RS256",
            "oidcRPMetaDataOptionsRefreshToken": 1,
            "oidcRPMetaDataOptionsBypassConsent": 0,
            "oidcRPMetaDataOptionsUserIDAttr": "uid",
        }
        configuration.update(
            {
                "domain": "127.0.0.1",
                "portal": base_url + "/",
                "authentication": "Demo",
                "userDB": "Same",
                "passwordDB": "Null",
                "requireToken": 0,
                # Its own one wants a library for pictures, whether or not a page shows a picture.
                "captcha": "::Captcha::None",
                "captcha_mail_enabled": 0,
                "captcha_register_enabled": 0,
                "checkXSS": 0,
                "loginHistoryEnabled": 0,
                # What sends mail.
                "registerDB": "Null",
                "portalDisplayRegister": 0,
                "portalDisplayResetPassword": 0,
                "portalDisplayCertificateResetByMail": 0,
                "globalStorageOptions": {
                    **storage,
                    "Directory": str(self.directory / "sessions"),
                    "LockDirectory": str(self.directory / "sessions/lock"),
                },
                "persistentStorageOptions": {
                    **storage,
                    "Directory": str(self.directory / "psessions"),
                    "LockDirectory": str(self.directory / "psessions/lock"),
                },
                "localSessionStorage": "",
                "localSessionStorageOptions": {},
                "issuerDBOpenIDConnectActivation": 1,
                "oidcServiceMetaDataIssuer": self.issuer,
                "oidcServiceAllowAuthorizationCodeFlow": 1,
                "oidcServiceKeyIdSig": "the-key",
                "oidcServicePrivateKeySig": key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.TraditionalOpenSSL,
                    serialization.NoEncryption(),
                ).decode(),
                "oidcServicePublicKeySig": key.public_key()
                .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
                .decode(),
                "oidcRPMetaDataOptions": {"client": client},
                "oidcRPMetaDataExportedVars": {"client": {"name": "cn"}},
                "oidcRPMetaDataOptionsExtraClaims": {},
            }
        )
        return configuration

    def end_sessions(self):
        for path in self.session_files():
            path.unlink()

    def count_sessions(self):
        return sum(json.loads(path.read_text()).get("_type") == "refresh_token" for path in self.session_files())

    def session_files(self):
        return [
            path
            for path in (self.directory / "sessions").rglob("*")
            if path.is_file() and path.parent.name != "lock"
        ]

    def stop(self):
        child.stop(self.process)
