import BrokerTesting
import HTTPCodec
import Reactor
import Testing

@testable import HTTPSClient

@Suite(.serialized) struct `Responses` {
    // H066
    @Test(arguments: [301, 302, 303, 307, 308])
    func `a redirect is returned and not followed`(status: Int) async throws {
        let elsewhere = try await TLSTestServer([.serve(answer("elsewhere"))])
        let redirect = answer("", status: "\(status) Moved", fields: "Location: \(elsewhere.url())\r\n")
        let server = try await TLSTestServer([.serve(redirect)])
        try await withClient { client in
            let response = try await client.post(server.url())
            #expect(response.status.code == status)
            #expect(response.fields["Location"] == elsewhere.url())
            _ = try await client.post(elsewhere.url(), "marker")
        }
        let report = try await elsewhere.report(afterEnds: 1)
        #expect(report.connections == 1)
        #expect(report.requests.count == 1)
    }

    @Test(arguments: [
        ("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody", true),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n", true),
        ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody", true),
        ("HTTP/1.1 200 OK\r\nContent-Encoding: identity\r\nContent-Length: 4\r\n\r\nbody", true),
        ("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbody", false),
        ("HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\nbody", false),
    ])
    func `a response is read whole, and its connection is kept when both sides allow it`(text: String, isKept: Bool)
        async throws
    {
        let script: [TLSTestServer.Step] = isKept ? [.serve(text)] : [.read, .send(text), .close]
        for isTLS in [true, false] {
            let server = try await TLSTestServer(tls: isTLS ? .init() : nil, script)
            try await withClient { client in
                for _ in 0..<3 {
                    let url = isTLS ? server.url() : "http://localhost:\(server.port)/"
                    let response = try await client.post(url)
                    #expect(response.status.code == 200)
                    #expect(response.text == "body")
                }
                let counters = await client.counters
                #expect(counters.connectionsOpened == (isKept ? 1 : 3))
                #expect(counters.connectionsReused == (isKept ? 2 : 0))
            }
        }
    }

    @Test(arguments: [true, false])
    func `received bytes do not stay in memory while the connection is idle`(isTLS: Bool) async throws {
        let server = try await TLSTestServer(tls: isTLS ? .init() : nil, [.serve(answer("a token"))])
        try await withClient { client in
            for _ in 0..<2 {
                let response = try await client.post(isTLS ? server.url() : "http://localhost:\(server.port)/")
                #expect(response.text == "a token")
                #expect(await client.pool.idleBufferSize == 0)
            }
            #expect(await client.counters.connectionsReused == 1)
        }
    }

    // H094
    @Test func `a body of the maximum size is accepted and one byte more is refused`() async throws {
        let server = try await TLSTestServer(
            [.read, .send(answer(String(repeating: "x", count: 1000))), .hold],
            [.read, .send(answer(String(repeating: "x", count: 1001))), .hold])
        try await withClient([set(\.maximumBodyBytes, 1000), set(\.maximumIdleConnections, 0)]) { client in
            let response = try await client.post(server.url())
            #expect(response.body.count == 1000)
            #expect(await client.failure(server.url()) == .responseTooLarge)
        }
    }

    // H094
    @Test(
        arguments: [
            [.read, .send("HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n"), .flood("xxxxxxxxxxxxxxxx")],
            [
                .read, .send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
                .flood("400\r\n" + String(repeating: "x", count: 1024) + "\r\n"),
            ],
            [.read, .send("HTTP/1.1 200 OK\r\n\r\n"), .flood(String(repeating: "x", count: 4096))],
            [.read, .send("HTTP/1.1 200 OK\r\n"), .flood("X-Filler: \(String(repeating: "x", count: 1000))\r\n")],
            [.read, .send("HTTP/1.1 200 OK\r\nX-Filler: "), .flood(String(repeating: "x", count: 4096))],
        ] as [[TLSTestServer.Step]])
    func `a response without end is refused at its limit`(script: [TLSTestServer.Step]) async throws {
        let server = try await TLSTestServer(script)
        let failure = try await withClient { client in await client.failure(server.url()) }
        #expect(failure == .responseTooLarge)
        #expect(try await server.report(afterEnds: 1).connections == 1)
    }

    // H094 H095
    @Test(arguments: [
        "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nbody",
        "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\u{1f}\u{0b}",
        "HTTP/1.1 200 OK\r\nContent-Encoding: identity, br\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX : y\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        "HTTP/2 200\r\n\r\n",
        "SSH-2.0-OpenSSH_9.6\r\n",
        String(repeating: "HTTP/1.1 103 Early Hints\r\n\r\n", count: 50),
    ])
    func `an ambiguous response is refused and its connection closed`(text: String) async throws {
        let server = try await TLSTestServer([.read, .send(text), .hold], [.serve(answer("good"))])
        try await withClient { client in
            let failure = await client.failure(server.url())
            #expect(failure == .malformedResponse)
            #expect(failure?.requestMayHaveBeenProcessed == true)
            let response = try await client.post(server.url())
            #expect(response.text == "good")
            #expect(await client.counters.connectionsOpened == 2)
        }
    }

    // H068
    @Test(
        arguments: [
            ("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"access_token\"", .close),
            ("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"access_token\"", .cut),
            ("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"access_token\"", .reset),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"acc", .close),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", .close),
            ("HTTP/1.1 200 OK\r\n", .close),
            ("HTTP/1.1 200 OK\r\n\r\n{}", .cut),
            ("HTTP/1.1 200 OK\r\n\r\n{}", .reset),
            ("", .close),
            ("", .cut),
            ("", .reset),
        ] as [(String, TLSTestServer.Step)])
    func `a response that was cut off is an error`(text: String, end: TLSTestServer.Step) async throws {
        let server = try await TLSTestServer([.read, .send(text), end])
        let failure = try await withClient { client in await client.failure(server.url()) }
        #expect(failure == .connectionLost(requestSent: true))
    }

    // H068
    @Test func `a response that ends with the connection is complete after close_notify`() async throws {
        let server = try await TLSTestServer([.read, .send("HTTP/1.1 200 OK\r\n\r\n{}"), .close])
        try await withClient { client in
            let response = try await client.post(server.url())
            #expect(response.text == "{}")
        }
    }

    @Test(arguments: ["Host", "content-length", "Transfer-Encoding", "Accept-Encoding", "bad name", ""])
    func `a field that the client writes itself is refused`(name: String) async throws {
        try await withClient { client in
            let url = try #require(URLTarget("https://localhost:9999/"))
            await #expect(throws: TransportError.invalidRequest) {
                _ = try await client.send(ClientRequest(method: .get, url: url, fields: [name: "x"]))
            }
        }
    }

    @Test func `the descriptions of request and response show no secrets`() throws {
        let url = try #require(URLTarget("https://localhost:9999/canary?canary"))
        let request = ClientRequest(
            method: .post, url: url, fields: ["Authorization": "canary"], body: Array("canary".utf8))
        let response = ClientResponse(status: .ok, fields: ["Set-Cookie": "canary"], body: Array("canary".utf8))
        #expect(
            "\(request) \(String(reflecting: request))" == "POST https://localhost:9999 POST https://localhost:9999")
        #expect("\(response) \(String(reflecting: response))" == "200, 6 bytes 200, 6 bytes")
    }

    @Test func `a field value cannot inject a header line`() async throws {
        try await withClient { client in
            let url = try #require(URLTarget("https://localhost:9999/"))
            await #expect(throws: TransportError.invalidRequest) {
                _ = try await client.send(ClientRequest(method: .get, url: url, fields: ["X": "a\r\nHost: b"]))
            }
        }
    }

    @Test(arguments: [true, false])
    func `a large request arrives whole`(isTLS: Bool) async throws {
        let server = try await TLSTestServer(tls: isTLS ? .init() : nil, [.echo])
        try await withClient { client in
            let body = String(repeating: "0123456789abcdef", count: 60_000)
            let url = isTLS ? server.url() : "http://localhost:\(server.port)/"
            let response = try await client.post(url, body)
            #expect(response.text == body)
        }
    }

    @Test(arguments: [true, false])
    func `a reset while a request is sent ends the exchange and not the process`(isTLS: Bool) async throws {
        let server = try await TLSTestServer(tls: isTLS ? .init() : nil, [.readSome, .reset])
        try await withClient { client in
            let url = isTLS ? server.url() : "http://localhost:\(server.port)/"
            for _ in 0..<2 {
                do throws(TransportError) {
                    _ = try await client.post(url, String(repeating: "x", count: 8 << 20))
                    Issue.record("there is no answer")
                } catch .connectionLost {
                } catch {
                    Issue.record(error)
                }
            }
        }
    }
}

@Suite(.serialized) struct `Kept connections` {
    // H095
    @Test func `many callers get their own responses over few connections`() async throws {
        let server = try await TLSTestServer([.echo])
        try await withClient([set(\.maximumConnectionsPerOrigin, 3)]) { client in
            try await withThrowingTaskGroup(of: Bool.self) { group in
                for index in 0..<60 {
                    group.addTask { try await client.post(server.url(), "token-\(index)").text == "token-\(index)" }
                }
                for try await isOwn in group { #expect(isOwn) }
            }
            let counters = await client.counters
            #expect(counters.connectionsOpened <= 3)
            #expect(counters.connectionsOpened + counters.connectionsReused == 60)
        }
    }

    // H095
    @Test func `bytes after a response end the connection`() async throws {
        let stolen = answer("stolen")
        let server = try await TLSTestServer(
            [.read, .send(answer("first") + stolen), .hold], [.serve(answer("own"))])
        try await withClient { client in
            let first = try await client.post(server.url())
            let second = try await client.post(server.url())
            #expect(first.text == "first")
            #expect(second.text == "own")
            #expect(await client.counters.connectionsOpened == 2)
        }
    }

    // H095
    @Test(
        arguments: [
            [.send(answer("stolen"))], [.close], [.cut], [.reset],
        ] as [[TLSTestServer.Step]], [true, false])
    func `data on an idle connection, or its end, is detected before the next request`(
        event: [TLSTestServer.Step], isTLS: Bool
    ) async throws {
        var first: [TLSTestServer.Step] = [.read, .send(answer("first")), .await] + event
        first += [.note("said"), .hold]
        let server = try await TLSTestServer(tls: isTLS ? .init() : nil, first, [.serve(answer("own"))])
        let url = isTLS ? server.url() : "http://localhost:\(server.port)/"
        try await withClient { client in
            _ = try await client.post(url)
            try server.proceed()
            // The bytes that the server has written, or the end of its stream, have reached the client's socket by now.
            if case .send = event[0] {
                _ = try await server.report(afterRequests: 2)
            } else {
                _ = try await server.report(afterEnds: 1)
            }
            let second = try await client.post(url)
            #expect(second.text == "own")
        }
        let report = try await server.report(afterEnds: 2)
        #expect(report.connections == 2)
        #expect(report.requests.filter { $0.hasPrefix("POST") }.count == 2)
    }

    // H097
    @Test func `a request that was sent on a connection that then ends is not sent again`() async throws {
        let server = try await TLSTestServer([.read, .send(answer("first")), .read, .cut], [.serve(answer("again"))])
        try await withClient { client in
            _ = try await client.post(server.url())
            #expect(await client.failure(server.url()) == .connectionLost(requestSent: true))
            #expect(await client.counters == .init(connectionsOpened: 1, connectionsReused: 1))
        }
        let report = try await server.report(afterEnds: 1)
        #expect(report.connections == 1)
        #expect(report.requests.count == 2)
    }

    /// The connection that was kept ends when the next request comes, which is lost on it.
    @Test(arguments: [1, 8])
    func `a request that must not be repeated goes on a new connection`(most: Int) async throws {
        let server = try await TLSTestServer([.read, .send(answer("first")), .read, .cut], [.serve(answer("second"))])
        try await withClient([set(\.maximumConnectionsPerOrigin, most)]) { client in
            _ = try await client.post(server.url())
            let url = try #require(URLTarget(server.url()))
            var request = ClientRequest(method: .post, url: url, body: Array("code=c-1".utf8))
            request.needsNewConnection = true
            #expect(try await client.send(request).text == "second")
            #expect(await client.counters.connectionsOpened == 2)
            // It is kept in its turn, beside or in place of the first one.
            #expect(try await client.post(server.url()).text == "second")
            #expect(await client.counters.connectionsOpened == 2)
        }
    }

    @Test func `an idle connection is closed after the idle timeout`() async throws {
        let server = try await TLSTestServer([.serve(answer("{}"))])
        try await withClient([set(\.idleTimeout, .milliseconds(50))]) { client in
            _ = try await client.post(server.url())
            let report = try await server.report(afterEnds: 1)
            #expect(report.connections == 1)
            _ = try await client.post(server.url())
            #expect(await client.counters == .init(connectionsOpened: 2, connectionsReused: 0, sessionsResumed: 1))
        }
    }

    @Test func `the connection that has been idle longest is closed at the limit`() async throws {
        let (first, second) = (
            try await TLSTestServer([.serve(answer("1"))]), try await TLSTestServer([.serve(answer("2"))])
        )
        try await withClient([set(\.maximumIdleConnections, 1)]) { client in
            _ = try await client.post(first.url())
            _ = try await client.post(second.url())
            _ = try await first.report(afterEnds: 1)
            _ = try await client.post(second.url())
            #expect(await client.counters == .init(connectionsOpened: 2, connectionsReused: 1))
        }
    }

    @Test func `origins do not share connections`() async throws {
        let server = try await TLSTestServer([.serve(answer("{}"))])
        try await withClient { client in
            _ = try await client.post(server.url(host: "localhost"))
            _ = try await client.post(server.url(host: "good.example.test"))
            #expect(await client.counters == .init(connectionsOpened: 2))
        }
    }

    @Test func `closing the client closes its idle connections`() async throws {
        let server = try await TLSTestServer([.serve(answer("{}"))])
        try await withClient { client in
            _ = try await client.post(server.url())
            await client.close()
            let report = try await server.report(afterEnds: 1)
            #expect(report.connections == 1)
        }
    }
}
