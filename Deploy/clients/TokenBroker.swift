// A client of token-broker for Swift 6, with Foundation only. See README.md beside it.
import Foundation
#if canImport(FoundationNetworking)
import FoundationNetworking
#endif

/// Why there is no token. `status` is 0 where no answer came; `code` and `detail` are the broker's.
public struct BrokerError: Error, Sendable, CustomStringConvertible {
    private struct Problem: Decodable {
        struct Session: Decodable { var reconnect_uri: String? }
        var code: String?, detail: String?, error_code: String?, session: Session?
    }
    public let status: Int, code: String, detail: String
    /// What the provider said.
    public let errorCode: String?
    /// In seconds.
    public let retryAfter: Double?
    public let requestID: String?
    /// Where the user can log in again.
    public let reconnectURI: String?

    init(_ status: Int, _ fields: [String: String] = [:], _ body: Data = Data(), detail: String? = nil) {
        let problem = try? JSONDecoder().decode(Problem.self, from: body)
        (self.status, code) = (status, problem?.code ?? (status == 0 ? "network_error" : ""))
        self.detail = detail ?? problem?.detail ?? "The broker answered \(status)."
        (errorCode, reconnectURI) = (problem?.error_code, problem?.session?.reconnect_uri)
        (retryAfter, requestID) = (fields["retry-after"].flatMap { UInt32($0) }.map(Double.init), fields["x-request-id"])
    }

    public var description: String { "\(status) \(code): \(detail)" }
    /// Only a login of the user helps.
    public var mustLogIn: Bool {
        ["level_not_available", "missing_token_container", "invalid_token_request", "unknown_account", "unauthenticated"]
            .contains(code)
    }
    /// A 502 without a code is a proxy's.
    var isPassing: Bool { [0, 429, 503].contains(status) || status >= 500 && code.isEmpty }
}

/// A token and what belongs to it.
public struct Credentials: Sendable {
    struct Body: Decodable { var token: String, token_type: String, level: String, user_id: String?, expires_in: Double? }
    public let etag: String
    let body: Body, asked: ContinuousClock.Instant
    var checked: ContinuousClock.Instant
    public var token: String { body.token }
    public var tokenType: String { body.token_type }
    public var level: String { body.level }
    public var userID: String? { body.user_id }
    /// How long the token is valid, counted from the moment before it was asked for.
    public var secondsLeft: Double { body.expires_in.map { $0 - age(of: asked) } ?? .infinity }
}

/// In seconds, of which this clock counts those of a machine that sleeps as well.
private func age(of then: ContinuousClock.Instant) -> Double { (ContinuousClock.now - then) / .seconds(1) }

/// An event. `data` is its JSON.
public struct BrokerEvent: Sendable {
    struct Members: Decodable { var tenant: String?, storage_key: String?, version: Int64? }
    public let id: String, name: String, data: String
    let members: Members
    public var storageKey: String? { members.storage_key }
}

/// A call takes `timeout` seconds at most. For `maxAge` seconds a token is given from memory before the broker is asked whether it is still
/// current. `capacity`: the most tokens in memory.
public actor TokenBroker {
    private struct Key: Hashable { var tenant: String?, storageKey: String, level: String }
    private let base: String, apiKey: String, timeout: Double, maxAge: Double, capacity: Int
    private var memory: [Key: Credentials] = [:]

    public init(
        _ base: String, apiKey: String, timeout: Double = 30, maxAge: Double = 30, capacity: Int = 10_000
    ) {
        self.base = base.hasSuffix("/") ? String(base.dropLast()) : base
        (self.apiKey, self.timeout, self.maxAge, self.capacity) = (apiKey, timeout, maxAge, capacity)
    }

    /// Credentials that are valid for `minTTL` seconds. `refused`: those that the provider's API answered with 401; all
    /// callers that name the same ones cause one renewal. `subStatus`: the API's, where it says one (TIDAL).
    public func token(
        _ storageKey: String = "default", tenant: String? = nil, level: String = "user", minTTL: Int = 60,
        refused: Credentials? = nil, subStatus: String = "11003"
    ) async throws -> Credentials {
        let key = Key(tenant: tenant, storageKey: storageKey, level: level)
        if let refused, memory[key]?.etag == refused.etag { memory[key] = nil }
        let known = memory[key]
        if let known, age(of: known.checked) < maxAge, known.secondsLeft > Double(max(0, minTTL)) { return known }
        var query = [("storage_key", storageKey), ("level", level), ("min_ttl", "\(minTTL)")]
        if refused != nil { query.append(("api_error_sub_status", subStatus)) }
        let path = "/credentials?" + query.map { "\($0)=\(Self.encoded($1))" }.joined(separator: "&")
        // The spare one is given while the broker does not answer.
        let spare = refused == nil && known.map { $0.secondsLeft > 0 } == true ? known : nil
        let budget = spare == nil ? timeout : min(5, timeout)
        let began = ContinuousClock.now
        var pause = 0.2
        while true {
            let asked = ContinuousClock.now, left = max(1, budget - age(of: began))
            var fields = ["Prefer": "wait=\(Int(left))"]
            fields["If-None-Match"] = (refused ?? spare)?.etag
            var failure: BrokerError
            do {
                let (status, head, body) = try await whole(path, tenant, fields, timeout: left + 2)
                if status == 304, var same = refused ?? spare, same.secondsLeft > 0 {
                    same.checked = asked
                    if refused == nil { memory[key] = same }
                    return same
                }
                if status == 200 {
                    let read = try JSONDecoder().decode(Credentials.Body.self, from: body)
                    let found = Credentials(etag: head["etag"] ?? "", body: read, asked: asked, checked: asked)
                    if memory.count >= capacity, let other = memory.keys.first { memory[other] = nil }
                    memory[key] = found
                    return found
                }
                failure = BrokerError(status, head, body)
            } catch {
                failure = BrokerError(0, detail: "The broker does not answer: \(error)")
            }
            try Task.checkCancellation()
            if !failure.isPassing { memory[key] = nil } else if let spare, spare.secondsLeft > 0 { return spare }
            let wait = failure.retryAfter ?? (failure.status == 0 ? pause : max(1, pause))
            if !failure.isPassing || age(of: began) + wait > budget { throw failure }
            try await Self.sleep(wait)
            pause = min(2 * pause, 5)
        }
    }

    /// Events without end. It connects again after a fault, and goes on after `lastEventID`. Tokens that an event replaces
    /// are forgotten.
    public nonisolated func events(tenant: String? = nil, after lastEventID: String = "") -> AsyncThrowingStream<BrokerEvent, any Error> {
        AsyncThrowingStream { events in
            let listener = Task {
                do { try await listen(tenant, lastEventID, events) } catch { events.finish(throwing: error) }
            }
            events.onTermination = { _ in listener.cancel() }
        }
    }

    private func listen(
        _ tenant: String?, _ after: String, _ events: AsyncThrowingStream<BrokerEvent, any Error>.Continuation
    ) async throws {
        var last = after, pause = 1.0, retry = 1.0
        while true {
            var status = 0, head: [String: String] = [:], rest = Data()
            do {
                // The broker sends a comment after 15 seconds without an event.
                for try await part in open("/events", tenant, ["Last-Event-ID": last], timeout: 45) {
                    switch part {
                    case .head(let code, let fields): (status, head) = (code, fields)
                    case .body(let octets): rest += octets
                    }
                    if rest.count > 1 << 20 { break }
                    while status == 200, let end = rest.range(of: Data("\n\n".utf8)) {
                        let fields = Self.fields(rest[..<end.lowerBound])
                        rest = Data(rest[end.upperBound...])
                        retry = fields["retry"].flatMap(Double.init).map { $0 / 1000 } ?? retry
                        (last, pause) = (fields["id"] ?? last, retry)
                        guard let data = fields["data"] else { continue }
                        let members = try JSONDecoder().decode(BrokerEvent.Members.self, from: Data(data.utf8))
                        let event = BrokerEvent(id: last, name: fields["event"] ?? "", data: data, members: members)
                        forget(event)
                        events.yield(event)
                    }
                }
            } catch {}  // It connects again.
            if status != 0, status != 200 {
                let failure = BrokerError(status, head, rest)
                if status < 500, status != 429 { throw failure }
                pause = failure.retryAfter ?? pause
            }
            try await Self.sleep(pause)
            pause = min(2 * pause, 30)
        }
    }

    private func forget(_ event: BrokerEvent) {
        let isUpdate = event.name == "credentials.updated"
        if event.name == "stream.reset" { memory = [:] }
        guard isUpdate || event.name == "credentials.deauthorized", let storageKey = event.storageKey else { return }
        for (tenant, level) in [(nil, "client"), (nil, "user"), (event.members.tenant, "client"), (event.members.tenant, "user")] {
            let key = Key(tenant: tenant, storageKey: storageKey, level: level)
            if !isUpdate || memory[key]?.etag != event.members.version.map({ "\"\($0)\"" }) { memory[key] = nil }
        }
    }

    private static func fields(_ block: Data) -> [String: String] {
        var fields: [String: String] = [:]
        for line in String(decoding: block, as: UTF8.self).split(separator: "\n") {
            guard let colon = line.range(of: ": ") else { continue }
            fields[String(line[..<colon.lowerBound])] = String(line[colon.upperBound...])
        }
        return fields
    }

    private static func encoded(_ text: String) -> String {
        text.addingPercentEncoding(withAllowedCharacters: .alphanumerics) ?? text
    }

    private static func sleep(_ seconds: Double) async throws {
        try await Task.sleep(for: .seconds(seconds * .random(in: 1...1.1)))
    }

    private func whole(
        _ path: String, _ tenant: String?, _ fields: [String: String], timeout: Double
    ) async throws -> (Int, [String: String], Data) {
        var status = 0, head: [String: String] = [:], body = Data()
        for try await part in open(path, tenant, fields, timeout: timeout) {
            switch part {
            case .head(let code, let fields): (status, head) = (code, fields)
            case .body(let octets): body += octets
            }
            if body.count > 1 << 20 { break }
        }
        if status == 0 { throw URLError(.badServerResponse) }
        return (status, head, body)
    }

    private nonisolated func open(
        _ path: String, _ tenant: String?, _ fields: [String: String], timeout: Double
    ) -> AsyncThrowingStream<Part, any Error> {
        AsyncThrowingStream { parts in
            guard let address = URL(string: base + path) else { return parts.finish(throwing: URLError(.badURL)) }
            var request = URLRequest(url: address, cachePolicy: .reloadIgnoringLocalCacheData, timeoutInterval: timeout)
            for (name, value) in fields { request.setValue(value, forHTTPHeaderField: name) }
            request.setValue("Bearer \(apiKey)", forHTTPHeaderField: "Authorization")
            if let tenant { request.setValue(tenant, forHTTPHeaderField: "X-Tenant") }
            let exchange = Exchange(parts, timeout: timeout)
            let session = URLSession(configuration: .ephemeral, delegate: exchange, delegateQueue: nil)
            let task = session.dataTask(with: request)
            parts.onTermination = { _ in
                exchange.silence.cancel()
                task.cancel()
            }
            task.resume()
            session.finishTasksAndInvalidate()
        }
    }
}

private enum Part: Sendable {
    /// Status and header fields, with small letters.
    case head(Int, [String: String])
    case body(Data)
}

/// Hands the parts of an answer on. It ends by itself when nothing comes for `timeout` seconds: on Linux, a request of
/// URLSession with a delegate may wait longer.
private final class Exchange: NSObject, URLSessionDataDelegate {
    private let parts: AsyncThrowingStream<Part, any Error>.Continuation
    private let timeout: Double
    nonisolated(unsafe) let silence = DispatchSource.makeTimerSource()

    init(_ parts: AsyncThrowingStream<Part, any Error>.Continuation, timeout: Double) {
        (self.parts, self.timeout) = (parts, timeout)
        super.init()
        silence.setEventHandler { parts.finish(throwing: URLError(.timedOut)) }
        silence.schedule(deadline: .now() + timeout)
        silence.activate()
    }

    private func hear(_ part: Part) {
        silence.schedule(deadline: .now() + timeout)
        parts.yield(part)
    }

    func urlSession(
        _: URLSession, dataTask: URLSessionDataTask, didReceive response: URLResponse,
        completionHandler: @escaping @Sendable (URLSession.ResponseDisposition) -> Void
    ) {
        guard let answer = response as? HTTPURLResponse else { return completionHandler(.cancel) }
        var fields: [String: String] = [:]
        for case (let name as String, let value as String) in answer.allHeaderFields { fields[name.lowercased()] = value }
        hear(.head(answer.statusCode, fields))
        completionHandler(.allow)
    }

    func urlSession(_: URLSession, dataTask: URLSessionDataTask, didReceive data: Data) { hear(.body(data)) }

    func urlSession(_: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) { parts.finish(throwing: error) }

    func urlSession(
        _: URLSession, task: URLSessionTask, willPerformHTTPRedirection response: HTTPURLResponse, newRequest: URLRequest,
        completionHandler: @escaping @Sendable (URLRequest?) -> Void
    ) {
        completionHandler(nil)  // The API key is for the broker only.
    }
}
