import GroundTesting
import Reactor
import Synchronization
import Testing

@Suite struct `Name resolver` {
    /// Resolves a name on a loop of its own.
    private static func find(
        _ host: String, port: UInt16 = 443, by resolver: NameResolver
    ) async throws -> Result<[SocketAddress], ResolutionError> {
        try await withLoop { actor in
            try await actor.run { loop in
                try await resolver.addresses(of: host, port: port, on: loop, until: .after(.seconds(30)))
            }
        }
    }

    @Test func `finds localhost at a loopback address`() async throws {
        let addresses = try await Self.find("localhost", port: 8080, by: NameResolver()).get()
        #expect(!addresses.isEmpty)
        #expect(addresses.allSatisfy { !$0.isGloballyRoutable && $0.port == 8080 })
        #expect(addresses.contains { $0.host == "127.0.0.1" || $0.host == "::1" })
        #expect(Set(addresses).count == addresses.count)
    }

    @Test(arguments: ["127.0.0.1", "::1", "192.0.2.7", "2001:db8::7"])
    func `takes a numeric host as it is`(host: String) async throws {
        let resolver = try NameResolver { _ throws(ResolutionError) in throw .temporary }
        #expect(try await Self.find(host, by: resolver) == .success([SocketAddress(numericHost: host, port: 443)!]))
    }

    @Test(arguments: ["", "a b", "a..b", String(repeating: "a", count: 64) + ".example"])
    func `a text that cannot be a name is not found`(host: String) async throws {
        #expect(try await Self.find(host, by: NameResolver()) == .failure(.notFound))
    }

    @Test func `finds nothing under a name that never exists`() async throws {
        // RFC 6761 §6.4. Without a reachable name server the failure is a temporary one.
        let answer = try await Self.find("token-broker.invalid", by: NameResolver())
        #expect(throws: ResolutionError.self) { try answer.get() }
    }

    @Test func `four zones whose servers do not answer do not delay another name`() async throws {
        let lookUp = HangingLookUp { $0 == "alive.example" }
        defer { lookUp.release() }
        let resolver = try NameResolver(lookUp: lookUp.addresses)
        try await withLoop { actor in
            try await withThrowingTaskGroup(of: Void.self) { group in
                for index in 0..<4 {
                    group.addTask {
                        _ = try? await actor.run { loop in
                            try await resolver.addresses(
                                of: "dead\(index).example", port: 443, on: loop, until: .distantFuture)
                        }
                    }
                }
                while lookUp.begun.count < 4 { await Task.yield() }
                let answer = try await actor.run { loop in
                    try await resolver.addresses(
                        of: "alive.example", port: 443, on: loop, until: .after(.seconds(20)))
                }
                #expect(answer == .success([SocketAddress(numericHost: "127.0.0.1", port: 443)!]))
                lookUp.release()
            }
        }
    }

    @Test func `callers of one name share its look-up, each with its own port`() async throws {
        let lookUp = HangingLookUp()
        let resolver = try NameResolver(lookUp: lookUp.addresses)
        try await withLoop { actor in
            await withTaskGroup(of: Result<[SocketAddress], ResolutionError>?.self) { group in
                for port in 1...50 {
                    group.addTask {
                        try? await actor.run { loop in
                            try await resolver.addresses(
                                of: "one.example", port: UInt16(port), on: loop, until: .distantFuture)
                        }
                    }
                }
                // The loop has run the earlier queued tasks by now.
                while lookUp.begun.isEmpty { await Task.yield() }
                lookUp.release()
                for await answer in group { #expect(answer == .failure(.temporary)) }
            }
        }
        // The callers that came after the look-up got the remembered failure.
        #expect(lookUp.begun == ["one.example"])
    }

    @Test func `a wait ends at its deadline and the look-up is joined by the next caller`() async throws {
        let lookUp = HangingLookUp()
        defer { lookUp.release() }
        let resolver = try NameResolver(lookUp: lookUp.addresses)
        try await withLoop { actor in
            for _ in 0..<3 {
                let failure = await actor.failure { loop in
                    _ = try await resolver.addresses(
                        of: "dead.example", port: 443, on: loop, until: .after(.milliseconds(20)))
                }
                #expect(failure as? WaitInterrupted == .deadlineExceeded)
            }
        }
        #expect(lookUp.begun == ["dead.example"])
    }

    @Test func `cancelling a caller ends its wait`() async throws {
        let lookUp = HangingLookUp()
        defer { lookUp.release() }
        let resolver = try NameResolver(lookUp: lookUp.addresses)
        try await withLoop { actor in
            let waiting = Task {
                await actor.failure { loop in
                    _ = try await resolver.addresses(of: "dead.example", port: 443, on: loop, until: .distantFuture)
                }
            }
            while lookUp.begun.isEmpty { await Task.yield() }
            waiting.cancel()
            #expect(await waiting.value as? WaitInterrupted == .cancelled)
        }
    }

    @Test func `a name whose callers all stopped waiting before its turn is not looked up`() async throws {
        var limits = NameResolver.Limits()
        (limits.threads, limits.unprovenThreads, limits.slowThreads) = (1, 1, 1)
        let lookUp = HangingLookUp { $0 != "dead.example" }
        let resolver = try NameResolver(limits: limits, lookUp: lookUp.addresses)
        try await withLoop { actor in
            let first = Task {
                try await actor.run { loop in
                    try await resolver.addresses(of: "dead.example", port: 443, on: loop, until: .distantFuture)
                }
            }
            while lookUp.begun.isEmpty { await Task.yield() }
            let failure = await actor.failure { loop in
                _ = try await resolver.addresses(
                    of: "given-up.example", port: 443, on: loop, until: .after(.milliseconds(20)))
            }
            #expect(failure as? WaitInterrupted == .deadlineExceeded)
            lookUp.release()
            _ = try await first.value
            _ = try await actor.run { loop in
                try await resolver.addresses(of: "last.example", port: 443, on: loop, until: .distantFuture)
            }
        }
        #expect(lookUp.begun == ["dead.example", "last.example"])
    }

    @Test func `a failure is remembered for three seconds, and an address is looked up each time`() async throws {
        let now = Mutex(MonotonicInstant.now)
        let answers = Mutex<[String]>([])
        let lookUp: NameResolver.LookUp = { (host) throws(ResolutionError) in
            answers.withLock { $0.append(host) }
            if host == "absent.example" { throw .notFound }
            return [.v4([127, 0, 0, 1])]
        }
        let resolver = try NameResolver(lookUp: lookUp, now: { now.withLock { $0 } })
        func advance(by duration: Duration) { now.withLock { $0 = $0.advanced(by: duration) } }
        for _ in 0..<2 { #expect(try await Self.find("absent.example", by: resolver) == .failure(.notFound)) }
        advance(by: .milliseconds(2999))
        #expect(try await Self.find("absent.example", by: resolver) == .failure(.notFound))
        #expect(answers.withLock { $0 } == ["absent.example"])
        advance(by: .milliseconds(1))
        #expect(try await Self.find("absent.example", by: resolver) == .failure(.notFound))
        for _ in 0..<2 { _ = try await Self.find("present.example", by: resolver).get() }
        #expect(answers.withLock { $0 } == ["absent.example", "absent.example", "present.example", "present.example"])
    }
}
