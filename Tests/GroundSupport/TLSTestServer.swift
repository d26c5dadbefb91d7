/// A real server on the loopback that does, connection by connection, what a script says: in order or out of order, in
/// pieces, too much or too little. With TLS or without.
package final class TLSTestServer: Sendable {
    package enum Step: Sendable {
        /// Leaves out the TLS handshake, which otherwise comes before the first step.
        case withoutHandshake
        /// Makes the TLS handshake now, after `withoutHandshake`: for protocols that begin in clear.
        case handshake
        /// Reads one request, head and body.
        case read
        /// Reads whatever comes first.
        case readSome
        /// Reads whatever comes next and adds it to the report's requests.
        case hear
        case send(String)
        case sendBytes([UInt8])
        /// Sends the text byte by byte, so many milliseconds apart.
        case drip(String, milliseconds: Int)
        /// Sends the text again and again until the client has gone.
        case flood(String)
        /// Answers every request with the text until the client has gone.
        case serve(String)
        /// Answers every request with its own body until the client has gone.
        case echo
        /// Adds the text to the report's requests, to show that the steps before are done.
        case note(String)
        /// Reads until the client has gone, and says nothing.
        case hold
        /// Closes, with close_notify where there is TLS.
        case close
        /// Closes the TCP connection without close_notify.
        case cut
        /// Closes with a reset.
        case reset
        /// Waits for `proceed`.
        case await
    }

    /// How TLS is spoken.
    package struct TLS: Sendable {
        package var certificate: TLSTestCertificates.Name
        /// `TLSv1_1`, `TLSv1_2` or `TLSv1_3`; nil for all that the library offers.
        package var onlyVersion: String?
        /// In OpenSSL's notation.
        package var ciphers: String?
        package var applicationProtocols: [String]
        /// The file with the authority of the certificates that clients may show, but need not; nil for not asking.
        package var clientAuthority: String?

        package init(
            _ certificate: TLSTestCertificates.Name = .good, onlyVersion: String? = nil, ciphers: String? = nil,
            applicationProtocols: [String] = [], clientAuthority: String? = nil
        ) {
            self.clientAuthority = clientAuthority
            self.certificate = certificate
            self.onlyVersion = onlyVersion
            self.ciphers = ciphers
            self.applicationProtocols = applicationProtocols
        }
    }

    package struct Report: Sendable, Equatable {
        package var connections: Int
        package var handshakes: Int
        package var resumed: Int
        /// Bytes received inside TLS, or at all without TLS.
        package var bytes: Int
        /// Whole requests, in the order they were completed.
        package var requests: [String]
        /// The names asked for by server name indication; "-" for none.
        package var serverNames: [String]
        /// The common names of the certificates that clients have shown, one for each handshake; "-" for none.
        package var clients: [String]
    }

    package let port: UInt16
    private let process: DialogueProcess

    /// - Parameter scripts: one for each connection in order of arrival; the last one serves all further ones.
    package init(tls: TLS? = TLS(), _ scripts: [Step]...) async throws {
        let scripts = scripts.map { $0.map(Self.encode).joined(separator: ";") }
        (process, port) = try await DialogueProcess.blocking {
            var settings = ["", "", "", "", "", ""]
            if let tls {
                let certificates = TLSTestCertificates.shared
                settings = [
                    certificates.chain(tls.certificate), certificates.key(tls.certificate), tls.onlyVersion ?? "",
                    tls.ciphers ?? "", tls.applicationProtocols.joined(separator: ","),
                    tls.clientAuthority ?? "",
                ]
            }
            let process = try DialogueProcess(
                [DialogueProcess.python, "-W", "ignore", "-c", Self.script] + settings + scripts)
            guard let line = try process.readLine(), let port = UInt16(line) else {
                throw DialogueProcess.Failure(description: "the server did not start")
            }
            return (process, port)
        }
    }

    package func url(host: String = "localhost", _ path: String = "/token") -> String {
        "https://\(host):\(port)\(path)"
    }

    /// Lets the next `await` step go on.
    package func proceed() throws {
        try process.write("proceed")
    }

    /// What the server has seen once so many connections have ended.
    package func report(afterEnds count: Int) async throws -> Report { try await report("ends \(count)") }

    /// What the server has seen once it has read so many requests.
    package func report(afterRequests count: Int) async throws -> Report { try await report("requests \(count)") }

    /// What the server has seen once so many connections were accepted.
    package func report(afterConnections count: Int) async throws -> Report { try await report("connections \(count)") }

    private func report(_ command: String) async throws -> Report {
        let process = process
        let line = try await DialogueProcess.blocking {
            try process.write(command)
            return try process.readLine()
        }
        let parts = (line ?? "").split(separator: " ", omittingEmptySubsequences: false).map(String.init)
        let numbers = parts.prefix(4).compactMap(Int.init)
        guard parts.count == 7, numbers.count == 4 else {
            throw DialogueProcess.Failure(description: "no report: \(line ?? "")")
        }
        return Report(
            connections: numbers[0], handshakes: numbers[1], resumed: numbers[2], bytes: numbers[3],
            requests: parts[4].split(separator: ",").map { Self.decodeHexadecimal($0) },
            serverNames: parts[5].split(separator: ",").map(String.init),
            clients: parts[6].split(separator: ",").map(String.init))
    }

    private static func encode(_ step: Step) -> String {
        switch step {
        case .withoutHandshake: "plain"
        case .handshake: "handshake"
        case .read: "read"
        case .readSome: "more"
        case .hear: "hear"
        case .send(let text): "send " + hexadecimal(Array(text.utf8))
        case .sendBytes(let bytes): "send " + hexadecimal(bytes)
        case .drip(let text, let milliseconds): "drip \(hexadecimal(Array(text.utf8))) \(milliseconds)"
        case .flood(let text): "flood " + hexadecimal(Array(text.utf8))
        case .serve(let text): "serve " + hexadecimal(Array(text.utf8))
        case .echo: "echo"
        case .note(let text): "note " + hexadecimal(Array(text.utf8))
        case .hold: "hold"
        case .close: "close"
        case .cut: "cut"
        case .reset: "reset"
        case .await: "await"
        }
    }

    private static func hexadecimal(_ bytes: [UInt8]) -> String {
        bytes.map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }.joined()
    }

    private static func decodeHexadecimal(_ text: Substring) -> String {
        let digits = text.utf8.map { UInt8($0 > 0x39 ? $0 - 0x57 : $0 - 0x30) }
        let bytes = stride(from: 0, to: digits.count - 1, by: 2).map { digits[$0] << 4 | digits[$0 + 1] }
        return String(decoding: bytes, as: UTF8.self)
    }

    /// Arguments: chain, key, version, ciphers, application protocols, authority of clients, then one script for each connection.
    private static let script = #"""
        import os, socket, ssl, struct, sys, threading

        chain, key, version, ciphers, protocols, authority = sys.argv[1:7]
        scripts = [[step.split(" ") for step in script.split(";")] for script in sys.argv[7:]]
        changed = threading.Condition()
        connections = handshakes = resumed = received = ended = 0
        requests, names, clients = [], [], []
        turns = threading.Semaphore(0)

        context = None
        if chain:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            if version:
                # A version that is too old has to be let in by the security level first.
                context.set_ciphers(ciphers or "ALL:@SECLEVEL=0")
                context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
            elif ciphers:
                context.set_ciphers(ciphers)
            if "SECLEVEL" not in ciphers:
                context.set_ciphers((ciphers or "DEFAULT") + ":@SECLEVEL=0")
            context.load_cert_chain(chain, key)
            if protocols:
                context.set_alpn_protocols(protocols.split(","))
            if authority:
                context.load_verify_locations(authority)
                context.verify_mode = ssl.CERT_OPTIONAL
            context.sni_callback = lambda connection, name, _: names.append(name or "-")

        class Gone(Exception):
            pass

        class Peer:
            def __init__(self, connection):
                self.connection = connection
                self.buffer = b""

            def handshake(self):
                global handshakes, resumed
                self.connection = context.wrap_socket(self.connection, server_side=True)
                shown = self.connection.getpeercert() or {"subject": [[("commonName", "-")]]}
                with changed:
                    clients.append(dict(part[0] for part in shown["subject"])["commonName"])
                    handshakes += 1
                    resumed += self.connection.session_reused
                    changed.notify_all()

            def more(self):
                global received
                data = self.connection.recv(65536)
                if not data:
                    raise Gone()
                with changed:
                    received += len(data)
                    changed.notify_all()
                self.buffer += data

            def read(self):
                while b"\r\n\r\n" not in self.buffer:
                    self.more()
                head, _, rest = self.buffer.partition(b"\r\n\r\n")
                length = 0
                for line in head.split(b"\r\n")[1:]:
                    name, _, value = line.partition(b":")
                    if name.lower() == b"content-length":
                        length = int(value)
                end = len(head) + 4 + length
                while len(self.buffer) < end:
                    self.more()
                request, self.buffer = self.buffer[:end], self.buffer[end:]
                with changed:
                    requests.append(request)
                    changed.notify_all()
                return request

            def step(self, name, *arguments):
                data = bytes.fromhex(arguments[0]) if arguments else b""
                if name == "read":
                    self.read()
                elif name == "more":
                    self.more()
                elif name == "handshake":
                    self.handshake()
                elif name == "hear":
                    self.more()
                    with changed:
                        requests.append(self.buffer)
                        self.buffer = b""
                        changed.notify_all()
                elif name == "send":
                    self.connection.sendall(data)
                elif name == "drip":
                    for byte in data:
                        self.connection.sendall(bytes([byte]))
                        threading.Event().wait(int(arguments[1]) / 1000)
                elif name == "flood":
                    while True:
                        self.connection.sendall(data)
                elif name == "serve":
                    while True:
                        self.read()
                        self.connection.sendall(data)
                elif name == "echo":
                    while True:
                        body = self.read().partition(b"\r\n\r\n")[2]
                        self.connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                elif name == "note":
                    with changed:
                        requests.append(data)
                        changed.notify_all()
                elif name == "hold":
                    while True:
                        self.more()
                elif name == "close":
                    if context:
                        # Sends close_notify and does not wait for the client's.
                        self.connection.setblocking(False)
                        self.connection.unwrap()
                    raise Gone()
                elif name == "cut":
                    raise Gone()
                elif name == "reset":
                    option = struct.pack("ii", 1, 0)
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)
                    raise Gone()
                elif name == "await":
                    turns.acquire()

            def run(self, script):
                global ended
                try:
                    if context and script[0] != ["plain"]:
                        self.handshake()
                    for step in script:
                        self.step(*step)
                except (Gone, OSError, ValueError):
                    pass
                finally:
                    self.connection.close()
                    with changed:
                        ended += 1
                        changed.notify_all()

        listener = socket.create_server(("127.0.0.1", 0), backlog=64)

        def accept():
            global connections
            while True:
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with changed:
                    script = scripts[min(connections, len(scripts) - 1)]
                    connections += 1
                    changed.notify_all()
                threading.Thread(target=Peer(connection).run, args=(script,), daemon=True).start()

        def report():
            texts = ",".join(request.hex() for request in requests)
            return f"{connections} {handshakes} {resumed} {received} {texts} {','.join(names)} {','.join(clients)}"

        threading.Thread(target=accept, daemon=True).start()
        print(listener.getsockname()[1], flush=True)
        for line in sys.stdin:
            command = line.split()
            with changed:
                if command[0] == "ends":
                    changed.wait_for(lambda: ended >= int(command[1]), 20)
                elif command[0] == "requests":
                    changed.wait_for(lambda: len(requests) >= int(command[1]), 20)
                elif command[0] == "connections":
                    changed.wait_for(lambda: connections >= int(command[1]), 20)
            if command[0] == "proceed":
                turns.release()
            else:
                print(report(), flush=True)
        os._exit(0)
        """#
}
