// A client of token-broker for Swift 6, with Foundation only. See README.md beside it.
import Foundation
#if canImport(FoundationNetworking)
import FoundationNetworking
#endif

private let logIn = "level_not_available missing_token_container invalid_token_request unknown_account unauthenticated"
private typealias Part = (answer: HTTPURLResponse, octets: Data)

/// Why there is no token. `status` is 0 where no answer came; `code` and `detail` are the broker's.
public struct BrokerError: Error, Sendable {
    private struct Problem: Decodable {
        struct Session: Decodable { let reconnect_uri: String? }
        let code: String?, detail: String?, error_code: String?, session: Session?
    }
    public let status: Int, code: String, detail: String, errorCode: String?  // errorCode: what the provider said
    public let retryAfter: Double?, requestID: String?, reconnectURI: String?  // retryAfter: in seconds

    init(_ answer: HTTPURLResponse?, _ body: Data, _ detail: String) {
        let problem = try? JSONDecoder().decode(Problem.self, from: body)
        (status, code) = (answer?.statusCode ?? 0, problem?.code ?? (answer == nil ? "network_error" : ""))
        (self.detail, errorCode) = (problem?.detail ?? detail, problem?.error_code)
        retryAfter = answer?.value(forHTTPHeaderField: "Retry-After").flatMap { UInt32($0) }.map(Double.init)
        (requestID, reconnectURI) = (answer?.value(forHTTPHeaderField: "X-Request-ID"), problem?.session?.reconnect_uri)
    }
    /// Only a login of the user helps.
    public var mustLogIn: Bool { logIn.split(separator: " ").contains { $0 == code } }
    var isPassing: Bool { [0, 429, 503].contains(status) || status >= 500 && code.isEmpty }
}

/// A token and what belongs to it. `secondsLeft` is counted from the moment before it was asked for.
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
public struct BrokerEvent: Sendable {
    struct Members: Decodable { let storage_key: String?, version: Int64? }
    public let id: String, name: String, data: String
    var members: Members? { try? JSONDecoder().decode(Members.self, from: Data(data.utf8)) }
    public var storageKey: String? { members?.storage_key }
}

/// A call takes `timeout` seconds at most. For `maxAge` seconds a token is given from memory before the broker is asked
/// whether it is still current. `capacity`: the most tokens in memory. `tenant`: for API keys of several.
public actor TokenBroker {
    private let base: String, apiKey: String, tenant: String?, timeout: Double, maxAge: Double, capacity: Int
    private var memory: [[String]: Credentials] = [:]

    public init(
        _ base: String, apiKey: String, tenant: String? = nil, timeout: Double = 30, maxAge: Double = 30, capacity: Int = 10_000
    ) {
        self.base = base.hasSuffix("/") ? String(base.dropLast()) : base
        (self.apiKey, self.tenant, self.timeout, self.maxAge, self.capacity) = (apiKey, tenant, timeout, maxAge, capacity)
    }

    /// Credentials that are valid for `minTTL` seconds. `refused`: those that the provider's API answered with 401; all
    /// callers that name the same ones cause one renewal. `subStatus`: the API's, where it says one (TIDAL).
    public func token(
        _ storageKey: String = "default", level: String = "user", minTTL: Int = 60, refused: Credentials? = nil,
        subStatus: String = "11003"
    ) async throws -> Credentials {
        let key = [storageKey, level], known = memory[key].flatMap { $0.etag == refused?.etag ? nil : $0 }
        if let known, age(of: known.checked) < maxAge, known.secondsLeft > Double(minTTL) { return known }
        let spare = refused == nil && known?.secondsLeft ?? 0 > 0 ? known : nil  // if no answer comes
        let path = "/credentials?storage_key=\(storageKey.addingPercentEncoding(withAllowedCharacters: .alphanumerics) ?? "")"
            + "&level=\(level)&min_ttl=\(minTTL)" + (refused == nil ? "" : "&api_error_sub_status=\(subStatus)")
        let began = ContinuousClock.now, budget = spare == nil ? timeout : min(5, timeout)
        for pause in sequence(first: 0.2, next: { min(2 * $0, 5) }) {
            let asked = ContinuousClock.now, left = max(1, budget - age(of: began))
            var fields = ["Prefer": "wait=\(Int(left))"], failure = BrokerError(nil, Data(), "The broker does not answer.")
            fields["If-None-Match"] = (refused ?? spare)?.etag
            do {
                let (answer, body) = try await whole(path, fields, left + 2)
                if answer.statusCode == 304, var same = refused ?? spare, same.secondsLeft > 0 {
                    same.checked = asked
                    if refused == nil { memory[key] = same }
                    return same
                }
                if answer.statusCode == 200 {
                    var found = try JSONDecoder().decode(Credentials.self, from: body)
                    (found.etag, found.asked, found.checked) = (answer.value(forHTTPHeaderField: "ETag") ?? "", asked, asked)
                    memory = memory.count < capacity ? memory : [:]
                    memory[key] = found
                    return found
                }
                failure = BrokerError(answer, body, "The broker answered \(answer.statusCode).")
            } catch {
                failure = BrokerError(nil, Data(), "The broker does not answer: \(error)")
            }
            if failure.isPassing, let spare, spare.secondsLeft > 0 { return spare }
            let wait = failure.retryAfter ?? pause
            if !failure.isPassing || age(of: began) + wait > budget { memory[key] = nil; throw failure }
            try await Task.sleep(for: .seconds(wait * .random(in: 1...1.1)))
        }
        fatalError
    }

    /// Events without end. It connects again after a fault, and goes on after `lastEventID`. Tokens that an event replaces
    /// are forgotten.
    public nonisolated func events(after lastEventID: String = "") -> AsyncThrowingStream<BrokerEvent, any Error> {
        AsyncThrowingStream { events in
            let listener = Task {
                do { try await listen(lastEventID, events) } catch { events.finish(throwing: error) }
            }
            events.onTermination = { _ in listener.cancel() }
        }
    }

    private func listen(_ after: String, _ events: AsyncThrowingStream<BrokerEvent, any Error>.Continuation) async throws {
        var last = after, pause = 1.0
        while true {
            var status = 0, head: [String: String] = [:], rest = Data()
            do {
                for try await part in open("/events", ["Last-Event-ID": last], 45) {  // A comment comes after 15 seconds.
                    rest += part.octets
                    guard part.answer.statusCode == 200 else {
                    }
                    while status == 200, let end = rest.range(of: Data("\n\n".utf8)) {
                        let block = String(decoding: rest[..<end.lowerBound], as: UTF8.self)
                        rest = rest[end.upperBound...]
                        
                    }
                }
            } catch is BrokerError
        }
    }
