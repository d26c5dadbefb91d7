// A client of token-broker for Swift 6, with Foundation only. See README.md beside it.
import Foundation
#if canImport(FoundationNetworking)
import FoundationNetworking
#endif

private let logIn = "level_not_available missing_token_container invalid_token_request unknown_account unauthenticated"
private typealias Parts = AsyncThrowingStream<(HTTPURLResponse?, Data), any Error>

/// Why there is no token. `status` is 0 where no answer came; `code` and `detail` are the broker's.
public struct BrokerError: Error, Sendable {
    private struct Problem: Decodable { let code: String?, detail: String? }
    public let status: Int, code: String, detail: String, retryAfter: Double?  // retryAfter: in seconds
    public let requestID: String?, body: Data  // body: mostly JSON, such as `error_code`, what the provider said

    init(_ answer: HTTPURLResponse?, _ body: Data = Data(), _ fault: any Error = URLError(.badServerResponse)) {
        let problem = try? JSONDecoder().decode(Problem.self, from: body)
        (status, code) = (answer?.statusCode ?? 0, problem?.code ?? (answer == nil ? "network_error" : ""))
        detail = problem?.detail ?? "The broker answered \(status): \(fault)"
        retryAfter = answer?.value(forHTTPHeaderField: "Retry-After").flatMap { UInt32($0) }.map(Double.init)
        (requestID, self.body) = (answer?.value(forHTTPHeaderField: "X-Request-ID"), body)
    }
    /// Only a login of the user helps.
    public var mustLogIn: Bool { logIn.split(separator: " ").contains { $0 == code } }
    var isPassing: Bool { [0, 429, 503].contains(status) || status >= 500 && code.isEmpty }
}

/// A token and what belongs to it. `secondsLeft` is counted from the moment before the token was asked for.
public struct Credentials: Decodable, Sendable {
    public let token: String, token_type: String, level: String, user_id: String?, expires_in: Double?
    public fileprivate(set) var etag = ""
    fileprivate var asked = ContinuousClock.now, checked = ContinuousClock.now
    private enum CodingKeys: CodingKey { case token, token_type, level, user_id, expires_in }
    public var secondsLeft: Double { expires_in.map { $0 - age(of: asked) } ?? .infinity }
}

/// In seconds, of which this clock counts those of a machine that sleeps as well.
private func age(of then: ContinuousClock.Instant) -> Double { (ContinuousClock.now - then) / .seconds(1) }

/// An event. `data` is its JSON.
public struct BrokerEvent: Decodable, Sendable {
    public let storage_key: String?, version: Int64?
    public fileprivate(set) var id = "", name = "", data = ""
    private enum CodingKeys: CodingKey { case storage_key, version }
}

/// A call takes `timeout` seconds at most. For `maxAge` seconds a token is given from memory before the broker is asked
/// whether it is still current. `tenant`: for API keys of several tenants.
public actor TokenBroker {
    private let base: String, apiKey: String, tenant: String?, timeout: Double, maxAge: Double
    private var memory: [[String]: Credentials] = [:]

    public init(_ base: String, apiKey: String, tenant: String? = nil, timeout: Double = 30, maxAge: Double = 30) {
        self.base = base.hasSuffix("/") ? String(base.dropLast()) : base
        (self.apiKey, self.tenant, self.timeout, self.maxAge) = (apiKey, tenant, timeout, maxAge)
    }

    /// Credentials that are valid for `minTTL` seconds. `refused`: those that the provider's API answered with 401; all
    /// callers that name the same ones cause one renewal. `subStatus`: the API's, where it says one (TIDAL).
    public func token(
        _ storageKey: String = "default", level: String = "user", minTTL: Int = 60, refused: Credentials? = nil,
        subStatus: String = "11003"
    ) async throws -> Credentials {
        let key = [storageKey, level], known = memory[key].flatMap { $0.etag == refused?.etag ? nil : $0 }
        memory[key] = known
        if let known, age(of: known.checked) < maxAge, known.secondsLeft > Double(max(0, minTTL)) { return known }
        let spare = refused == nil && known?.secondsLeft ?? 0 > 0 ? known : nil  // if no answer comes
        let name = storageKey.addingPercentEncoding(withAllowedCharacters: .alphanumerics) ?? storageKey
        let path = "/credentials?storage_key=\(name)&level=\(level)&min_ttl=\(minTTL)"
            + (refused == nil ? "" : "&api_error_sub_status=\(subStatus)")
        let began = ContinuousClock.now, budget = spare == nil ? timeout : min(5, timeout)
        var pause = 0.2
        while true {
            let asked = ContinuousClock.now, left = max(1, budget - age(of: began))
            var failure: BrokerError, answer: HTTPURLResponse?, body = Data()
            do {
                let fields = ["Prefer": "wait=\(Int(left))", "If-None-Match": (refused ?? spare)?.etag]
                for try await (head, octets) in open(path, fields, timeout: left + 2) {
                    (answer, body) = (head, body + octets)
                    if body.count > 1 << 20 { break }
                }
                failure = BrokerError(answer, body)
                if failure.status == 304, var same = refused ?? spare, same.secondsLeft > 0 {
                    same.checked = asked
                    if refused == nil { memory[key] = same }
                    return same
                }
                if failure.status == 200 {
                    var found = try JSONDecoder().decode(Credentials.self, from: body)
                    (found.etag, found.asked) = (answer?.value(forHTTPHeaderField: "ETag") ?? "", asked)
                    found.checked = asked
                    if memory.count >= 10_000 { memory = [:] }  // It has a bound.
                    memory[key] = found
                    return found
                }
            } catch { failure = BrokerError(nil, Data(), error) }
            try Task.checkCancellation()
            if !failure.isPassing { memory[key] = nil } else if let spare, spare.secondsLeft > 0 { return spare }
            let wait = failure.retryAfter ?? pause
            if !failure.isPassing || age(of: began) + wait > budget { throw failure }
            try await Task.sleep(for: .seconds(wait * .random(in: 1...1.1)))
            pause = min(2 * pause, 5)
        }
    }

    /// Events after `lastEventID` without end, also after a fault. Tokens that an event replaces are forgotten.
    public nonisolated func events(after lastEventID: String = "") -> AsyncThrowingStream<BrokerEvent, any Error> {
        AsyncThrowingStream { events in
            let task = Task { do { try await listen(lastEventID, events) } catch { events.finish(throwing: error) } }
            events.onTermination = { _ in task.cancel() }
        }
    }

    private func listen(_ id: String, _ events: AsyncThrowingStream<BrokerEvent, any Error>.Continuation) async throws {
        var last = id, pause = 1.0
        while true {
            var answer: HTTPURLResponse?, rest = Data()
            do {  // The broker sends a comment after 15 seconds without an event.
                for try await (head, octets) in open("/events", ["Last-Event-ID": last], timeout: 45) {
                    (answer, rest) = (head, rest + octets)
                    while head?.statusCode == 200, let end = rest.range(of: Data("\n\n".utf8)) {
                        var fields: [String: String] = [:]
                        for line in String(decoding: rest[..<end.lowerBound], as: UTF8.self).split(separator: "\n") {
                            fields[String(line.prefix { $0 != ":" })] = String(line.drop { $0 != ":" }.dropFirst(2))
                        }
                        (last, rest) = (fields["id"] ?? last, Data(rest[end.upperBound...]))
                        pause = fields["retry"].flatMap(Double.init).map { $0 / 1000 } ?? 1
                        guard let data = fields["data"] else { continue }
                        var event = try JSONDecoder().decode(BrokerEvent.self, from: Data(data.utf8))
                        (event.id, event.name, event.data) = (last, fields["event"] ?? "", data)
                        forget(event)
                        events.yield(event)
                    }
                    if rest.count > 1 << 20 { break }
                }
            } catch {}  // It connects again.
            if let answer, answer.statusCode != 200 {
                let failure = BrokerError(answer, rest)
                if failure.status < 500, !failure.isPassing { throw failure }
                pause = failure.retryAfter ?? pause
            }
            try await Task.sleep(for: .seconds(pause * .random(in: 1...1.1)))
            pause = min(2 * pause, 30)
        }
    }

    private func forget(_ event: BrokerEvent) {
        if event.name == "stream.reset" { memory = [:] }
        guard ["credentials.updated", "credentials.deauthorized"].contains(event.name) else { return }
        let etag = "\"\(event.version ?? -1)\""
        memory = memory.filter { key, known in key[0] != event.storage_key || known.etag == etag }
    }

    /// The parts of an answer, each with its head. It ends when nothing comes for so many seconds.
    private nonisolated func open(_ path: String, _ fields: [String: String?], timeout: Double) -> Parts {
        Parts { parts in
            guard let address = URL(string: base + path) else { return parts.finish(throwing: URLError(.badURL)) }
            var request = URLRequest(url: address, cachePolicy: .reloadIgnoringLocalCacheData, timeoutInterval: timeout)
            for (name, value) in fields { request.setValue(value, forHTTPHeaderField: name) }
            request.setValue("Bearer \(apiKey)", forHTTPHeaderField: "Authorization")
            request.setValue(tenant, forHTTPHeaderField: "X-Tenant")
            let settings = URLSessionConfiguration.ephemeral
            settings.timeoutIntervalForRequest = timeout  // On Linux, that of a request has no effect.
            let session = URLSession(configuration: settings, delegate: Exchange(parts), delegateQueue: nil)
            parts.onTermination = { _ in session.invalidateAndCancel() }
            session.dataTask(with: request).resume()
        }
    }
}

/// Hands the parts of an answer on.
private final class Exchange: NSObject, URLSessionDataDelegate {
    private let parts: Parts.Continuation
    init(_ parts: Parts.Continuation) { self.parts = parts }

    func urlSession(_: URLSession, dataTask: URLSessionDataTask, didReceive data: Data) {
        parts.yield((dataTask.response as? HTTPURLResponse, data))
    }
    func urlSession(_: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
        parts.yield((task.response as? HTTPURLResponse, Data()))  // An answer may have no body.
        parts.finish(throwing: error)
    }
    func urlSession(
        _: URLSession, task: URLSessionTask, willPerformHTTPRedirection: HTTPURLResponse, newRequest: URLRequest,
        completionHandler: @escaping @Sendable (URLRequest?) -> Void
    ) { completionHandler(nil) }  // The API key is for the broker only.
}
