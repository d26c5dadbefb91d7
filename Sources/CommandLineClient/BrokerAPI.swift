import ExternalText
package import HTTPCodec
import HTTPSClient
package import JSON
import Reactor
import Synchronization

/// The broker's HTTP interface as one caller uses it.
package final class BrokerAPI: Sendable {
    /// An answer of the broker.
    package struct Answer: Sendable {
        package let status: Status
        package let fields: Fields
        package let body: [UInt8]

        /// The body as JSON.
        /// - Throws: `failed` where it is none: what answers is no broker.
        package func json() throws(CommandError) -> JSONValue {
            do throws(JSONValue.Fault) {
                return try JSONValue(parsing: body)
            } catch {
                throw CommandError.stranger("what comes is no JSON (\(error))")
            }
        }
    }

    package struct Request: Sendable {
        package var method: Method
        /// Without the broker's own path, with percent-encoded segments: `/tenants/music`.
        package var path: String
        package var query: [(name: String, value: String)]
        package var fields: Fields
        package var body: [UInt8]
        /// Statuses of refusals that the caller handles itself.
        package var expected: Set<Int>
        /// How long the answer may take.
        package var limit: Duration
        /// What a good answer looks like.
        package var form: AnswerForm

        /// - Parameter form: nil for that of the method: 204 of DELETE, 200 or 201 of PUT, 200 of others, with JSON.
        package init(
            _ method: Method, _ path: String, query: [(name: String, value: String)] = [], fields: Fields = [:],
            body: [UInt8] = [], expected: Set<Int> = [], limit: Duration = .seconds(60), form: AnswerForm? = nil
        ) {
            self.form = form ?? AnswerForm(method)
            self.method = method
            self.path = path
            self.query = query
            self.fields = fields
            self.body = body
            self.expected = expected
            self.limit = limit
        }

        /// With a JSON document as its body.
        package init(
            _ method: Method, _ path: String, json body: [UInt8], fields: Fields = [:], expected: Set<Int> = [],
            limit: Duration = .seconds(60), form: AnswerForm? = nil
        ) {
            var fields = fields
            fields.set("Content-Type", "application/json")
            self.init(method, path, fields: fields, body: body, expected: expected, limit: limit, form: form)
        }
    }

    /// The broker's address without a slash at its end.
    package let url: String
    /// How what is to be run next speaks to the same broker.
    let next: NextCommand
    let apiKey: String
    /// The only broker that may get the key; nil for a key that goes to whatever is at the address.
    private let local: LocalBroker?
    private let whenUnreachable: String
    private let client: HTTPSClient
    private let named: String?
    private let only = Mutex<String?>(nil)
    /// Told once of a tenant that was taken because it is the only one.
    private let assumed: @Sendable (String) -> Void

    /// The tenant that requests name in `X-Tenant`; nil where the key has one only, or nothing has asked for it.
    package var tenant: String? { named ?? only.withLock { $0 } }

    /// - Parameters:
    ///   - next: how what is to be run next speaks to the same broker.
    ///   - assumed: told once of a tenant that was taken because it is the only one.
    /// - Throws: `configuration` for an address that is none, and for a file without a certificate.
    init(
        _ choice: BrokerChoice, tenant: String?, next: NextCommand = NextCommand(context: nil), caFile: String? = nil,
        assumed: @escaping @Sendable (String) -> Void = { _ in }
    ) throws(CommandError) {
        let url = choice.url.trimmingSlash
        try GivenWords.checkAddress(url, .configuration)
        self.url = url
        self.next = next
        self.assumed = assumed
        named = tenant
        apiKey = choice.apiKey
        local = choice.local
        whenUnreachable = choice.whenUnreachable
        do {
            var configuration = HTTPSClientConfiguration()
            configuration.targets = .everything
            configuration.trustedCAFile = caFile
            configuration.exchangeTimeout = .seconds(600)
            configuration.firstByteTimeout = .seconds(600)
            configuration.maximumBodyBytes = 64 << 20
            client = try HTTPSClient(
                configuration: configuration, loop: try EventLoop(name: "client"), resolver: try NameResolver())
        } catch let error as HTTPSClientConfigurationError {
            throw CommandError(.configuration, "TOKEN_BROKER_CA_FILE: \(error)")
        } catch {
            throw CommandError(.failed, "the client cannot start: \(error)")
        }
    }

    /// Sends a request once.
    /// - Throws: what the broker's answer means for the person who asked: `forbidden`, `notFound`, `refused`, `notLoggedIn`,
    ///   `tryLater`; `failed`, also for an answer that no broker gives; `unreachable` where none has come.
    package func send(_ request: Request) async throws(CommandError) -> Answer {
        let answer = try await answer(to: request)
        guard let refusal = try refusal(answer, of: request) else { return answer }
        guard tenant == nil, refusal.needsTenant else { throw try await error(of: refusal, request) }
        _ = try await assumeTenant()
        let second = try await self.answer(to: request)
        if let refusal = try self.refusal(second, of: request) { throw try await error(of: refusal, request) }
        return second
    }

    private func answer(to request: Request) async throws(CommandError) -> Answer {
        let sent = try clientRequest(request)
        let response: ClientResponse
        do throws(TransportError) {
            response = try await client.send(sent)
        } catch {
            throw unreachable(error)
        }
        return Answer(status: response.status, fields: response.fields, body: response.body)
    }

    /// Nil for the answer that was asked for.
    /// - Throws: `failed` for one that no broker gives.
    private func refusal(_ answer: Answer, of request: Request) throws(CommandError) -> Refusal? {
        if request.form.fits(answer.status, answer.fields) { return nil }
        let isExpected = request.expected.contains(answer.status.code)
        if isExpected, AnswerForm.isProblem(answer.fields) { return nil }
        let refusal = Refusal(answer)
        if isExpected || answer.status.code < 400 { throw stranger(refusal.words) }
        return refusal
    }

    /// Something else than a broker has answered.
    func stranger(_ detail: String) -> CommandError { .stranger(detail, at: url) }

    /// What a refusal means. Where something was not found, also whether that is the tenant.
    private func error(of refusal: Refusal, _ request: Request) async throws(CommandError) -> CommandError {
        let tenant = tenant(of: request)
        guard refusal.isNotFound, let tenant else { return refusal.error(tenant: tenant, url: url, next) }
        let path = "/tenants/" + Self.segment(tenant)
        let isMissing = if request.path == path { true } else { await isMissing(path) }
        guard isMissing else { return refusal.error(tenant: tenant, url: url, next) }
        return CommandError(
            .notFound, "there is no tenant \(TextTable.shown(tenant)) at \(url)", next: next.typed("tenants", "list"))
    }

    /// The tenant that a request is about.
    private func tenant(of request: Request) -> String? {
        let segments = request.path.split(separator: "/")
        guard segments.count > 1, segments[0] == "tenants" else { return tenant }
        return (try? FormEncoding.percentDecode(Array(segments[1].utf8).span))?.text
    }

    private func isMissing(_ path: String) async -> Bool {
        guard let answer = try? await answer(to: Request(.get, path)) else { return false }
        return Refusal(answer).isNotFound
    }

    /// Takes the only tenant that there is, where nothing names one.
    /// - Throws: `usage` where there is none or several, and lists them.
    func assumeTenant() async throws(CommandError) -> String {
        if let tenant { return tenant }
        let request = Request(.get, "/tenants", query: [(name: "limit", value: "\(Self.mostListed)")])
        let answer = try await answer(to: request)
        let list = try refusal(answer, of: request) == nil ? try answer.json()["tenants"]?.array : nil
        let tenants = (list ?? []).compactMap { $0["tenant"]?.string?.text }
        guard tenants.count == 1 else {
            let list = tenants.isEmpty ? "" : ": there are " + tenants.map(TextTable.shown).joined(separator: ", ")
            let isShortened = tenants.count == Self.mostListed ? " and others" : ""
            throw CommandError(
                .usage, "which tenant? Name it with --tenant\(list)\(isShortened)", next: next.typed("tenants", "list"))
        }
        only.withLock { $0 = tenants[0] }
        assumed(tenants[0])
        return tenants[0]
    }

    /// How many tenants an error lists.
    private static let mostListed = 20

    /// Why an answer that was read as it came is over.
    package enum StreamEnd: Sendable, Equatable {
        /// The broker has ended it.
        case ended
        /// The reader wanted no more.
        case left
        /// Nothing came for the idle limit.
        case silent
        /// The connection ended in the middle of it.
        case broken
    }

    /// Sends a request once and passes the body of a good answer on as it comes, of any size. The broker must wait while the reader
    /// works. Cancelling the task closes the connection.
    /// - Parameters:
    ///   - idleLimit: the longest time without a byte of the body.
    ///   - reader: called with what has come; whether it wants more.
    /// - Throws: as `send`, for everything that happens before the broker has accepted the request; `interrupted` where the task is
    ///   cancelled.
    package func stream(
        _ request: Request, idleLimit: Duration, to reader: @escaping @Sendable ([UInt8]) async -> Bool
    ) async throws(CommandError) -> StreamEnd {
        let sent = try clientRequest(request)
        let body = StreamedBody(request.form, reader)
        let response: ClientResponse
        do throws(TransportError) {
            response = try await client.stream(
                sent,
                to: ResponseReceiver(
                    idleLimit: idleLimit, onHead: { status, fields in await body.begin(status, fields) },
                    onBody: { piece in await body.take(piece) }))
        } catch {
            if error == .cancelled { throw CommandError(.interrupted, "") }
            guard await body.isAccepted else { throw unreachable(error) }
            if case .timedOut = error { return .silent }
            return .broken
        }
        guard await body.isAccepted else {
            let answer = await Answer(status: response.status, fields: response.fields, body: body.refusal)
            let refusal = try refusal(answer, of: request) ?? Refusal(answer)
            guard tenant == nil, refusal.needsTenant else { throw try await error(of: refusal, request) }
            _ = try await assumeTenant()
            return try await stream(request, idleLimit: idleLimit, to: reader)
        }
        return await body.isLeft ? .left : .ended
    }

    private func clientRequest(_ request: Request) throws(CommandError) -> ClientRequest {
        // Asked each time: something else may listen at the address once the broker has ended.
        if let local, !local.isServing {
            throw CommandError(
                .unreachable, "the broker in \(local.directory) serves at \(url) no more", next: whenUnreachable)
        }
        var text = url + request.path
        for (index, pair) in request.query.enumerated() {
            text +=
                (index == 0 ? "?" : "&") + FormEncoding.percentEncode(pair.name) + "="
                + FormEncoding.percentEncode(pair.value)
        }
        guard let target = URLTarget(text) else {
            throw CommandError(.usage, "a name is too long or has characters that an address cannot have")
        }
        var fields = request.fields
        fields.set("Authorization", "Bearer " + apiKey)
        if let tenant { fields.set("X-Tenant", tenant) }
        return ClientRequest(
            method: request.method, url: target, fields: fields, body: request.body, timeLimit: request.limit)
    }

    private func unreachable(_ error: TransportError) -> CommandError {
        CommandError(
            .unreachable,
            "the broker at \(url) cannot be reached: \(error.clause(roots: "TOKEN_BROKER_CA_FILE"))",
            next: whenUnreachable)
    }

    /// A segment of a path.
    package static func segment(_ text: String) -> String { FormEncoding.percentEncode(text) }
}

/// What comes of an answer that is read as it comes: a good one goes to its reader, a refusal is kept.
private actor StreamedBody {
    private static let longestRefusal = 1 << 20

    private let form: AnswerForm
    private let reader: @Sendable ([UInt8]) async -> Bool
    private(set) var isAccepted = false
    /// Whether the reader wanted no more.
    private(set) var isLeft = false
    private(set) var refusal: [UInt8] = []

    init(_ form: AnswerForm, _ reader: @escaping @Sendable ([UInt8]) async -> Bool) {
        self.form = form
        self.reader = reader
    }

    func begin(_ status: Status, _ fields: Fields) -> Bool {
        isAccepted = form.fits(status, fields)
        // What no broker says may have no end.
        return isAccepted || status.code >= 400
    }

    func take(_ piece: [UInt8]) async -> Bool {
        if isAccepted {
            isLeft = await !reader(piece)
            return !isLeft
        }
        refusal += piece
        return refusal.count <= Self.longestRefusal
    }
}

/// A refusal of the broker, RFC 9457.
final class Refusal: Sendable {
    private let answer: BrokerAPI.Answer
    private let problem: JSONValue?

    init(_ answer: BrokerAPI.Answer) {
        self.answer = answer
        problem = try? JSONValue(parsing: answer.body)
    }

    /// The broker's code; nil for an answer of another server.
    var code: String? { problem?["code"]?.string?.text ?? problem?["error"]?.string?.text }

    /// Whether the request has to name a tenant, and does not.
    var needsTenant: Bool {
        answer.status.code == 400 && problem?["errors"]?.array?.contains { $0["pointer"]?.string == "X-Tenant" } == true
    }

    /// Whether the broker says that something does not exist.
    var isNotFound: Bool { answer.status.code == 404 && code == "not_found" }

    /// What it means for the person who asked.
    func error(tenant: String?, url: String, _ next: NextCommand) -> CommandError {
        guard let code else { return foreign(url) }
        switch answer.status.code {
        case 401:
            return CommandError(
                .forbidden, text, next: "token-broker context add NAME --url " + ShellWord.quoted(url))
        case 403: return CommandError(.forbidden, text)
        case 404, 410: return CommandError(.notFound, text)
        case 424 where code == "illegal_configuration":
            return CommandError(
                .failed, text, next: next.typed(["tenants", "show"] + (tenant.map { [$0] } ?? [])))
        case 424: return CommandError(.notLoggedIn, text, next: next.typed("login", tenant: tenant))
        case 408, 429, 503: return CommandError(.tryLater, text + wait)
        case 400..<500: return CommandError(.refused, text)
        default: return CommandError(.failed, text)
        }
    }

    /// Of what stands in front of a broker, or of another server: each refusal of a broker has a code.
    private func foreign(_ url: String) -> CommandError {
        let stranger = CommandError.stranger(words, at: url)
        switch answer.status.code {
        case 401, 403: return CommandError(.forbidden, stranger.text, next: stranger.next)
        case 408, 429, 503: return CommandError(.tryLater, stranger.text + "." + wait)
        default: return stranger
        }
    }

    /// Of an answer that no broker gives: its status, and the type of its content.
    var words: String {
        let type = AnswerForm.type(answer.fields).map { " with " + TextTable.shown(String($0.text.prefix(64))) } ?? ""
        return "what answers says \(answer.status)\(type)"
    }

    /// The broker's words, and a line for each member that it refuses.
    private var text: String {
        guard let problem else { return "the broker answers \(answer.status)" }
        var text =
            problem["detail"]?.string?.text ?? problem["title"]?.string?.text ?? "the broker answers \(answer.status)"
        let faults = problem["errors"]?.array ?? []
        for fault in faults {
            guard let detail = fault["detail"]?.string?.text else { continue }
            // Of one fault alone the whole tells already.
            if faults.count == 1, text.hasSuffix(detail) || text.hasSuffix(detail + ".") { continue }
            text += "\n" + Self.line(of: fault, detail)
        }
        return TextTable.shownLines(text)
    }

    /// A fault below the refusal that it is part of: its member as that is written, without the pointer's slash (`client_id`,
    /// `wave/users`), and what is wrong with it.
    static func line(of fault: JSONValue, _ detail: String) -> String {
        let member = fault["pointer"]?.string.map { ($0.starts(with: "/") ? $0.dropping(1) : $0).text } ?? ""
        return "  " + (member.isEmpty ? "" : member + ": ") + detail
    }

    /// When to come again, as a sentence with a space before it; empty where that is not said.
    var wait: String { answer.fields["Retry-After"].map { " Try again in \($0.text) s." } ?? "" }
}
