import BrokerTesting
import ExternalText
import FoundationEssentials
import JSON
import Testing

/// `token-broker` with a certificate, seen by curl, openssl and testssl.
struct `The program over TLS` {
    private let directory = StoreFixtureDirectory()

    /// An authority, and two certificates for localhost with the names `first` and `second`.
    private static let script = #"""
        set -eu
        mkdir -p "$1" && cd "$1"
        exec 2> log
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.crt -days 30 \
            -subj '/CN=Test Root' -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign
        for name in first second; do
            openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout $name.key -out $name.csr \
                -subj /CN=$name
            printf '%s\n' basicConstraints=critical,CA:FALSE keyUsage=critical,digitalSignature \
                extendedKeyUsage=serverAuth subjectAltName=DNS:localhost,IP:127.0.0.1 \
                crlDistributionPoints=URI:http://crl.example/ca.crl > $name.ext
            openssl x509 -req -in $name.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 90 -sha256 \
                -extfile $name.ext -out $name.crt
        done
        cp first.crt tls.crt
        cp first.key tls.key
        echo done
        """#

    private func shell(
        _ command: String, _ arguments: [String], within limit: Duration = .seconds(60)
    ) async throws -> [String] {
        try await DialogueProcess.blocking {
            let process = try DialogueProcess(["sh", "-c", command, "sh"] + arguments)
            var lines: [String] = []
            while let line = try process.readLine(within: limit) { lines.append(line) }
            return lines
        }
    }

    /// Starts the program with the certificate `first`, and a plain listener for probes and metrics.
    private func start() async throws -> (process: TestProcess, port: UInt16, operations: UInt16) {
        #expect(try await shell(Self.script, [directory.path]) == ["done"])
        let (port, operations) = (try PostgresServer.freePort(), try PostgresServer.freePort())
        let process = try await BrokerProcess.start(
            port: port,
            [
                "DATA_DIR": directory.path + "/data", "TLS_CERTIFICATE": directory.path + "/tls.crt",
                "TLS_KEY": directory.path + "/tls.key", "OPERATIONS_LISTEN": "127.0.0.1:\(operations)",
            ])
        return (process, port, operations)
    }

    /// What curl gets of the API, and the status on a line of its own.
    private func curl(_ url: String, _ options: [String] = []) async throws -> [String] {
        try await shell(
            #"curl --silent --show-error --max-time 20 --write-out '\n%{http_code}\n' "$@" 2>&1"#,
            ["--cacert", directory.path + "/ca.crt", url] + options)
    }

    private func expiry(_ operations: UInt16) async throws -> Int64? {
        let prefix = "token_broker_tls_certificate_expiry_seconds "
        return try await curl("http://127.0.0.1:\(operations)/metrics").first { $0.hasPrefix(prefix) }
            .flatMap { Int64($0.dropFirst(prefix.count)) }
    }

    @Test(.timeLimit(.minutes(3)))
    func `serves the API by TLS only, and probes and metrics without it`() async throws {
        let (process, port, operations) = try await start()
        #expect(try await curl("https://localhost:\(port)/credentials").last == "401")
        #expect(
            try await curl(
                "https://localhost:\(port)/tenants", ["--header", "Authorization: Bearer \(BrokerHarness.adminKey)"]
            ).last == "200")
        #expect(try await curl("http://localhost:\(port)/credentials").last == "000")
        #expect(try await curl("http://127.0.0.1:\(operations)/livez").last == "200")
        let now = Int64(Date().timeIntervalSince1970)
        let expires = try #require(try await expiry(operations))
        #expect((89 * 86_400...90 * 86_400).contains(expires - now))
        #expect(await process.terminate() == 0)
    }

    @Test(.timeLimit(.minutes(3)))
    func `uses a renewed certificate, and keeps it when the files are spoilt`() async throws {
        let (process, port, operations) = try await start()
        let subject = "openssl s_client -connect localhost:$1 </dev/null 2>/dev/null | openssl x509 -noout -subject"
        #expect(try await shell(subject, ["\(port)"]) == ["subject=CN = first"])
        let renew = #"cd "$1" && cp second.key tls.key.new && mv tls.key.new tls.key && cp second.crt tls.crt"#
        #expect(try await shell(renew, [directory.path]) == [])
        // The comparison may fall between the two files, so only the end is certain.
        var shown: [String] = []
        repeat {
            shown = try await shell(subject, ["\(port)"])
        } while shown == ["subject=CN = first"]
        #expect(shown == ["subject=CN = second"])
        let expires = try await expiry(operations)

        #expect(try await shell(#"echo spoilt > "$1/tls.crt""#, [directory.path]) == [])
        _ = try await process.line {
            $0.contains(#""event":"tls_certificate_refused","variable":"TOKEN_BROKER_TLS_CERTIFICATE""#)
        }
        #expect(try await shell(subject, ["\(port)"]) == ["subject=CN = second"])
        #expect(try await curl("https://localhost:\(port)/credentials").last == "401")
        #expect(try await expiry(operations) == expires)
        #expect(await process.terminate() == 0)
    }

    @Test(
        .timeLimit(.minutes(2)),
        arguments: [
            ("first.crt", "first.key", 0, "valid"), ("first.crt", "second.key", 78, "TOKEN_BROKER_TLS_KEY"),
            ("first.key", "first.key", 78, "TOKEN_BROKER_TLS_CERTIFICATE"),
            ("first.crt", "first.crt", 78, "TOKEN_BROKER_TLS_KEY"),
            ("first.crt", "nowhere", 78, "TOKEN_BROKER_TLS_KEY"),
            ("first.crt", "", 78, "TOKEN_BROKER_TLS_KEY"), ("", "first.key", 78, "TOKEN_BROKER_TLS_CERTIFICATE"),
        ] as [(String, String, Int32, String)])
    func `checks the files before it starts`(
        certificate: String, key: String, status: Int32, text: String
    ) async throws {
        #expect(try await shell(Self.script, [directory.path]) == ["done"])
        let checked = try await BrokerProcess.run(
            ["config", "check"],
            [
                "TLS_CERTIFICATE": certificate.isEmpty ? "" : directory.path + "/" + certificate,
                "TLS_KEY": key.isEmpty ? "" : directory.path + "/" + key,
            ])
        #expect(checked.status == status)
        #expect(checked.output.contains(text), "\(checked.output)")
    }

    /// testssl makes hundreds of handshakes, most of them by programs of its own, so it takes a minute or more. It runs behind
    /// other tests, which have deadlines.
    @Test(.timeLimit(.minutes(15)))
    func `has nothing that testssl rates above LOW`() async throws {
        let (process, port, _) = try await start()
        // The authority is in no store of a system, and curl is not asked: all of TLS, the certificate and the fields.
        _ = try await shell(
            """
            nice -n 10 testssl --quiet --warnings off --color 0 --nodns none --ip 127.0.0.1 --add-ca "$1/ca.crt" \
                --jsonfile "$1/testssl.json" -p -s -f -P -S -h -U "https://localhost:$2/" > "$1/testssl.txt" 2>&1
            """, [directory.path, "\(port)"], within: .seconds(840))
        let bytes = Array(try Data(contentsOf: URL(filePath: directory.path + "/testssl.json")))
        let findings = try #require(try JSONValue(parsing: bytes).array)
        let rated = findings.map { finding in
            ["severity", "id", "finding"].map { finding[$0]?.string?.text ?? "" }
        }
        #expect(rated.filter { ["MEDIUM", "HIGH", "CRITICAL", "FATAL"].contains($0[0]) } == [])
        // That it has examined the listener and not only failed to reach it.
        for (id, severity) in [
            ("TLS1", "INFO"), ("TLS1_1", "INFO"), ("TLS1_2", "OK"), ("TLS1_3", "OK"), ("PFS", "OK"),
            ("heartbleed", "OK"), ("ROBOT", "OK"), ("secure_client_renego", "OK"), ("BREACH", "OK"),
        ] {
            #expect(rated.contains { $0[1] == id && $0[0] == severity }, "\(id): \(rated.filter { $0[1] == id })")
        }
        #expect(await process.terminate() == 0)
    }
}
