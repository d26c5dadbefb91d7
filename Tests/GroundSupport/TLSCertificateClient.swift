import ExternalText
import JSON

/// A client that can show a certificate in the handshake of TLS, and resume its sessions: Python's. It trusts the test root.
package final class TLSCertificateClient: Sendable {
    /// What the server answered.
    package struct Answer: Sendable {
        package let status: Int
        package let body: String
        /// Whether the server says that it closes the connection.
        package let closes: Bool
    }

    /// Versions of TLS.
    package enum Version: String, Sendable, CaseIterable {
        case tls12 = "TLSv1_2"
        case tls13 = "TLSv1_3"
    }

    private let process: DialogueProcess

    /// - Parameter port: on 127.0.0.1.
    package init(port: UInt16) async throws {
        process = try await DialogueProcess.blocking {
            try DialogueProcess([
                DialogueProcess.python, "-W", "ignore", "-c", Self.script, "\(port)", TLSTestCertificates.shared.root,
            ])
        }
    }

    /// Connects, and makes the handshake.
    /// - Parameters:
    ///   - name: of the new connection.
    ///   - certificate: which the client shows; nil for none.
    ///   - earlier: the connection whose session is to be resumed, with the same certificate.
    /// - Returns: whether a session was resumed; nil where the handshake failed.
    package func connect(
        _ name: String, _ certificate: ClientCertificates.Name?, _ version: Version = .tls13,
        resuming earlier: String? = nil
    ) async throws -> Bool? {
        let files = certificate.map { (ClientCertificates.shared.chain($0), ClientCertificates.shared.key($0)) }
        return try await ask([
            "connect", name, files?.0 ?? "", files?.1 ?? "", version.rawValue, earlier ?? "",
        ])["resumed"]?.bool
    }

    /// Sends a request without content on a connection.
    /// - Parameter fields: without their line ends.
    /// - Returns: nil where the connection has ended. With TLS 1.3 a client learns in this way that its certificate is refused.
    package func get(_ name: String, _ target: String, _ fields: String...) async throws -> Answer? {
        let answer = try await ask(["get", name, target] + fields)
        guard let status = answer["status"]?.integer else { return nil }
        return Answer(
            status: Int(status), body: answer["body"]?.string?.text ?? "", closes: answer["closes"]?.bool ?? false)
    }

    private func ask(_ words: [String]) async throws -> JSONValue {
        let process = process
        let request = JSONWriter.object { $0.member("words", words) }
        let line = try await DialogueProcess.blocking {
            try process.write(String(decoding: request, as: UTF8.self))
            return try process.readLine()
        }
        return try JSONValue(parsing: Array((line ?? "").utf8))
    }

    private static let script = #"""
        import json, socket, ssl, sys

        port, root = int(sys.argv[1]), sys.argv[2]
        contexts, connections = {}, {}

        def context(chain, key, version):
            # Sessions belong to a context.
            if (chain, version) not in contexts:
                made = ssl.create_default_context(cafile=root)
                made.minimum_version = made.maximum_version = ssl.TLSVersion[version]
                if chain:
                    made.load_cert_chain(chain, key)
                contexts[chain, version] = made
            return contexts[chain, version]

        def connect(name, chain, key, version, earlier):
            plain = socket.create_connection(("127.0.0.1", port), timeout=20)
            session = connections[earlier].session if earlier else None
            connection = context(chain, key, version).wrap_socket(
                plain, server_hostname="localhost", session=session)
            connections[name] = connection
            return {"resumed": connection.session_reused}

        def get(name, target, *fields):
            connection = connections[name]
            lines = [f"GET {target} HTTP/1.1", "Host: localhost", *fields, "", ""]
            connection.sendall("\r\n".join(lines).encode())
            received = b""
            def more():
                data = connection.recv(65536)
                if not data:
                    raise OSError("closed")
                return data
            while b"\r\n\r\n" not in received:
                received += more()
            head, _, body = received.partition(b"\r\n\r\n")
            lines = head.decode().lower().split("\r\n")
            length = sum(int(line.split(":")[1]) for line in lines if line.startswith("content-length:"))
            while len(body) < length:
                body += more()
            return {"status": int(lines[0].split()[1]), "body": body.decode(), "closes": "connection: close" in lines}

        for line in sys.stdin:
            name, *arguments = json.loads(line)["words"]
            try:
                answer = {"connect": connect, "get": get}[name](*arguments)
            except (OSError, KeyError) as error:
                answer = {"failure": str(error)}
            print(json.dumps(answer), flush=True)
        """#
}
