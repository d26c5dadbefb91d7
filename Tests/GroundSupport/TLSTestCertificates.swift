import Glibc

/// Certificates good and bad, made by the `openssl` command once for each run of the tests.
///
/// Every server certificate has a P-256 key and names `localhost`, `good.example.test` and 127.0.0.1, is valid now, and
/// is issued by an intermediate under `root`, except in what its name says.
package struct TLSTestCertificates: Sendable {
    package enum Name: String, Sendable, CaseIterable {
        case good
        /// As good as `good`, with another key.
        case backup
        case wrongHost
        case expired
        case notYetValid
        case selfSigned
        /// Issued under a root that no client trusts.
        case unknownRoot
        /// `localhost` as common name, and no subjectAltName.
        case commonNameOnly
        /// `*.example.test`
        case wildcard
        /// `a*.example.test`
        case partialWildcard
        /// `*.*.example.test`
        case doubleWildcard
        /// The text `127.0.0.1` as a DNS name.
        case addressAsName
        /// `localhost`, a NUL, and `.evil.test` as one DNS name.
        case nulInName
        /// For TLS clients only.
        case clientPurpose
        /// Issued by `good`, which is no certification authority.
        case issuedByLeaf
        /// Under an intermediate that has expired.
        case expiredIssuer
        /// Under an authority that its own issuer does not permit (path length).
        case pathTooLong
        /// Presented without the intermediate.
        case missingIntermediate
        /// With a 2048-bit RSA key.
        case rsa
        /// With a 1024-bit RSA key.
        case weakKey
    }

    package let directory: String

    /// Made on first use. A process that cannot make them cannot test TLS, so it ends.
    package static let shared: TLSTestCertificates = {
        do {
            return try TLSTestCertificates()
        } catch {
            fatalError("no test certificates: \(error)")
        }
    }()

    private init() throws {
        var template = Array("/tmp/token-broker-certificates.XXXXXX".utf8CString)
        guard unsafe mkdtemp(&template) != nil else { throw DialogueProcess.Failure(description: "mkdtemp") }
        directory = String(decoding: template.dropLast().map { UInt8(bitPattern: $0) }, as: UTF8.self)
        unsafe setenv("TOKEN_BROKER_TEST_CERTIFICATES", directory, 1)
        atexit {
            guard let directory = unsafe getenv("TOKEN_BROKER_TEST_CERTIFICATES").map({ unsafe String(cString: $0) }),
                let removal = try? DialogueProcess(["rm", "-rf", directory])
            else { return }
            _ = try? removal.readLine()
        }
        let process = try DialogueProcess(["sh", "-c", Self.script, "sh", directory])
        let last = try process.readLine()
        if last != "done" {
            throw DialogueProcess.Failure(description: "openssl: \(last ?? "no output"); see \(directory)/log")
        }
    }

    /// The root that clients are to trust.
    package var root: String { "\(directory)/root.crt" }

    /// What a server presents: its certificate and what leads to the root.
    package func chain(_ name: Name) -> String { "\(directory)/\(name.rawValue).pem" }

    package func key(_ name: Name) -> String {
        "\(directory)/\(name == .missingIntermediate ? Name.good.rawValue : name.rawValue).key"
    }

    /// The pin (`sha256/…`) of a server's key, or of the authority called `root` or `intermediate`.
    package static func pin(of name: String) async throws -> String {
        try await DialogueProcess.blocking {
            let command = """
                openssl x509 -in "$1" -pubkey -noout | openssl pkey -pubin -outform der |
                openssl dgst -sha256 -binary | openssl base64
                """
            let process = try DialogueProcess(["sh", "-c", command, "sh", "\(shared.directory)/\(name).crt"])
            guard let digest = try process.readLine() else { throw DialogueProcess.Failure(description: "no digest") }
            return "sha256/" + digest
        }
    }

    /// The beginning of a shell script that makes certificates in the directory `$1`, which it makes: `issue`, and what it needs.
    ///
    /// `openssl ca` rather than `openssl x509`, which cannot make a certificate that is not valid yet.
    static let issuing = #"""
        set -eu
        mkdir -p "$1"
        cd "$1"
        exec 2> log
        : > index.txt
        cat > ca.cnf <<END
        [ca]
        default_ca = all
        [all]
        database = index.txt
        new_certs_dir = .
        rand_serial = yes
        unique_subject = no
        default_md = sha256
        policy = any
        [any]
        commonName = optional
        [req]
        distinguished_name = name
        [name]
        END
        authority='basicConstraints=critical,CA:TRUE
        keyUsage=critical,keyCertSign'
        from=20200101000000Z
        until=20990101000000Z
        algorithm='ec -pkeyopt ec_paramgen_curve:P-256'

        # issue <name> <issuer> <common name> <extensions>; an issuer "self" signs with its own key.
        issue() {
            openssl req -config ca.cnf -new -newkey $algorithm -nodes -keyout "$1.key" -subj "/CN=$3" -out "$1.csr"
            printf '%s\n' "$4" > "$1.ext"
            if [ "$2" = self ]; then sign="-selfsign -keyfile $1.key"; else sign="-cert $2.crt -keyfile $2.key"; fi
            openssl ca -batch -config ca.cnf $sign -in "$1.csr" -extfile "$1.ext" -notext -out "$1.crt" \
                -startdate $from -enddate $until
        }

        """#

    private static let script =
        issuing + #"""
            names='subjectAltName=DNS:localhost,DNS:good.example.test,IP:127.0.0.1,IP:::1'
            server='basicConstraints=critical,CA:FALSE
            keyUsage=critical,digitalSignature,keyEncipherment
            extendedKeyUsage=serverAuth'
            intermediate='basicConstraints=critical,CA:TRUE,pathlen:0
            keyUsage=critical,keyCertSign'

            # leaf <name> <issuer> <common name> <extensions>, with the issuer in the presented chain.
            leaf() {
                issue "$@"
                cat "$1.crt" "$2.crt" > "$1.pem"
            }

            issue root self 'Test Root' "$authority"
            issue stranger self 'Unknown Root' "$authority"
            issue intermediate root 'Test Intermediate' "$intermediate"
            leaf good intermediate good "$server
            $names"
            leaf backup intermediate backup "$server
            $names"
            leaf wrongHost intermediate wrong "$server
            subjectAltName=DNS:other.example.test,IP:127.0.0.2"
            leaf unknownRoot stranger unknown "$server
            $names"
            leaf commonNameOnly intermediate localhost "$server"
            leaf wildcard intermediate wildcard "$server
            subjectAltName=DNS:*.example.test"
            leaf partialWildcard intermediate partial "$server
            subjectAltName=DNS:a*.example.test"
            leaf doubleWildcard intermediate double "$server
            subjectAltName=DNS:*.*.example.test"
            leaf addressAsName intermediate address "$server
            subjectAltName=DNS:127.0.0.1"
            leaf nulInName intermediate nul "$server
            2.5.29.17=DER:30:16:82:14:6c:6f:63:61:6c:68:6f:73:74:00:2e:65:76:69:6c:2e:74:65:73:74"
            leaf clientPurpose intermediate client "basicConstraints=critical,CA:FALSE
            extendedKeyUsage=clientAuth
            $names"
            leaf issuedByLeaf good below "$server
            $names"
            cat intermediate.crt >> issuedByLeaf.pem
            issue tooDeep intermediate 'Not Permitted' "$authority"
            leaf pathTooLong tooDeep deep "$server
            $names"
            cat intermediate.crt >> pathTooLong.pem
            cat good.crt > missingIntermediate.pem
            issue selfSigned self localhost "$server
            $names"
            cat selfSigned.crt > selfSigned.pem

            until=20200201000000Z
            leaf expired intermediate expired "$server
            $names"
            issue formerly root 'Former Intermediate' "$intermediate"
            until=20990101000000Z
            leaf expiredIssuer formerly former "$server
            $names"
            from=20980101000000Z
            leaf notYetValid intermediate future "$server
            $names"
            from=20200101000000Z
            algorithm=rsa:2048
            leaf rsa intermediate rsa "$server
            $names"
            algorithm=rsa:1024
            leaf weakKey intermediate weak "$server
            $names"
            echo done
            """#
}
