import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

/// How long a caller is held while the provider asks for patience again and again.
@Suite(.timeLimit(.minutes(1))) struct `A provider that asks for patience` {
    /// A request that asks the provider, and the tenant that makes it.
    enum Work: String, Sendable, CaseIterable {
        case device, push, callback, refresh, rotatingRefresh

        fileprivate var tenant: String {
            let endpoints = #"""
                {"provider": "oidc", "client_id": "c1", "endpoints": {"authorization": "https://id.example/a",
                 "token": "https://id.example/t", "device_authorization": "https://id.example/d",
                 "pushed_authorization_request": "https://id.example/par"}
                """#
            return switch self {
            case .device: endpoints + "}"
            case .push: endpoints + #", "pushed_authorization_requests": "required"}"#
            case .callback, .refresh: #"{"client_id": "c1"}"#
            case .rotatingRefresh: #"{"client_id": "c1", "rotation": "always", "reuse_grace": 600}"#
            }
        }

        fileprivate func run(_ broker: BrokerHarness, _ step: ScriptedTransport.Step) async
            -> BrokerHarness.Answer
        {
            await broker.makeTenant("t1", tenant)
            switch self {
            case .device:
                broker.transport.always(step)
                return await broker.call(.post, "/device", tenant: "t1")
            case .push:
                broker.transport.always(step)
                return await broker.call(.post, "/login/initialize", tenant: "t1", body: "{}")
            case .callback:
                let login = await broker.beginLogin()
                broker.time.forgetSleeps()
                broker.transport.always(step)
                return await broker.callback("code=c-1&state=\(login.state)", accept: "application/json")
            case .refresh, .rotatingRefresh:
                await broker.set("a1", refresh: "r1", lifetime: .zero)
                broker.transport.always(step)
                return await broker.get()
            }
        }
    }

    @Test(
        arguments: Work.allCases,
        [
            ("5", 6, 28), ("6", 5, 24), ("10", 4, 30), ("11", 3, 22), ("15", 3, 30), ("16", 2, 16), ("30", 2, 30),
            ("31", 1, 0),
        ] as [(String, Int, Int)])
    func `holds a caller for half a minute in all`(
        work: Work, row: (retryAfter: String, calls: Int, seconds: Int)
    ) async throws {
        let broker = try await BrokerHarness()
        let answer = await work.run(broker, .json(503, "{}", fields: ["Retry-After": .init(row.retryAfter)]))
        #expect((answer.status, answer.code) == (503, "retryable_error"))
        #expect(answer.retryAfter.map(String.init) == row.retryAfter)
        #expect(broker.transport.seen.count == row.calls)
        #expect(broker.time.slept.reduce(.zero, +) == .seconds(row.seconds))
    }

    @Test(arguments: [Work.device, .push, .callback])
    func `holds a caller no longer where it limits the rate`(work: Work) async throws {
        let broker = try await BrokerHarness()
        let answer = await work.run(broker, .json(429, "{}", fields: ["Retry-After": "10"]))
        #expect((answer.status, answer.code, answer.retryAfter) == (503, "retryable_error", 10))
        #expect(broker.transport.seen.count == 4)
        #expect(broker.time.slept.reduce(.zero, +) == .seconds(30))
    }

    @Test func `is asked again after the waits before, which count with those of the schedule`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Work.push.tenant)
        let patience = ScriptedTransport.Step.json(503, "{}", fields: ["Retry-After": "20"])
        broker.transport.enqueue(.json(503, "{}"), .failure(.connectFailed), patience)
        broker.transport.enqueue(
            .json(201, #"{"request_uri": "urn:ietf:params:oauth:request_uri:r-1", "expires_in": 90}"#))
        let answer = await broker.call(.post, "/login/initialize", tenant: "t1", body: "{}")
        #expect(answer.status == 201, "\(answer.text)")
        #expect(broker.time.slept == [.milliseconds(500), .seconds(1), .seconds(20)])
    }
}
