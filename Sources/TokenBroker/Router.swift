import BrokerCore
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import OAuth

/// Finds the route of a path. A parameter is a whole segment of the path, percent-decoded once.
struct Router: Sendable {
    /// The parameters of a path, by name.
    typealias PathParameters = [WireText: WireText]

    struct Match: Sendable {
        let route: Route
        let parameters: PathParameters
    }

    private enum Segment: Sendable {
        case literal(WireText)
        case parameter(WireText)
    }

    private let patterns: [(path: String, segments: [Segment], routes: [Route])]
    /// The patterns without parameters, by their paths.
    private let literals: [WireText: Int]
    /// How many segments the longest pattern has.
    private let mostSegments: Int

    init(_ routes: [Route]) {
        var patterns: [(path: String, segments: [Segment], routes: [Route])] = []
        for route in routes {
            if let index = patterns.firstIndex(where: { $0.path == route.path.description }) {
                patterns[index].routes.append(route)
            } else {
                patterns.append((route.path.description, Self.segments(route.path.description), [route]))
            }
        }
        self.patterns = patterns
        mostSegments = patterns.map(\.segments.count).max() ?? 0
        var literals: [WireText: Int] = [:]
        for (index, pattern) in patterns.enumerated() where !WireText(pattern.path).contains("{") {
            let pieces = Self.pieces(WireText(pattern.path), atMost: mostSegments)
            // A path that an earlier pattern also matches is left out here. `match` then tries the patterns in order.
            let first = patterns.firstIndex { Self.match($0.segments, pieces) != nil }
            if first == index { literals[WireText(pattern.path)] = index }
        }
        self.literals = literals
    }

    /// - Throws: `not_found`, or `method_not_allowed` with the allowed methods.
    func match(_ method: Method, _ path: String) throws(BrokerError) -> Match {
        let path = WireText(path)
        if let index = literals[path] { return try match(method, patterns[index].routes, [:]) }
        let pieces = Self.pieces(path, atMost: mostSegments)
        for pattern in patterns {
            guard let parameters = Self.match(pattern.segments, pieces) else { continue }
            return try match(method, pattern.routes, parameters)
        }
        throw BrokerError(.notFound, "There is nothing at this path.")
    }

    private func match(
        _ method: Method, _ routes: [Route], _ parameters: PathParameters
    ) throws(BrokerError) -> Match {
        if let route = routes.first(where: { $0.accepts(method) }) {
            return Match(route: route, parameters: parameters)
        }
        throw BrokerError(
            .methodNotAllowed, "This path does not take that method.", allowedMethods: routes.flatMap(\.methods))
    }

    /// The segments of a path. A path with more than `count` segments returns `count + 1` of them.
    private static func pieces(_ path: WireText, atMost count: Int) -> ArraySlice<WireText> {
        path.split(at: "/", limit: count + 2).dropFirst()
    }

    private static func segments(_ path: String) -> [Segment] {
        WireText(path).split(at: "/").dropFirst().map { piece in
            guard piece.starts(with: "{") else { return .literal(piece) }
            return .parameter(WireText(piece.utf8.dropFirst().dropLast()))
        }
    }

    private static func match(_ segments: [Segment], _ pieces: ArraySlice<WireText>) -> PathParameters? {
        guard segments.count == pieces.count else { return nil }
        var parameters: PathParameters = [:]
        for (segment, piece) in zip(segments, pieces) {
            switch segment {
            case .literal(let text):
                if text != piece { return nil }
            case .parameter(let name):
                guard !piece.isEmpty, let text = try? FormEncoding.percentDecode(piece.utf8.span) else { return nil }
                parameters[name] = text
            }
        }
        return parameters
    }
}

/// One operation of the API.
struct Route: Sendable {
    /// Who may call it.
    enum Access: Sendable, Equatable {
        /// No key is needed, because a browser or a probe calls.
        case open
        /// An admin key, whose role must be one of those that `AdminRoutes` names for the route.
        case admin
        /// An API key with this permission, or such an admin key with `X-Tenant`.
        case tenant(Permission)
        /// Any API key, or such an admin key.
        case anyKey
    }

    let method: Method
    /// The path as openapi.yaml writes it, such as `/tenants/{tenant}`.
    let path: StaticString
    let access: Access
    /// Whether HEAD is answered like GET. False if the GET has side effects: see `isChangedByGet`.
    let allowsHead: Bool
    /// The content that the route reads; nil if it reads none, or checks it itself.
    private let contentType: ContentType?
    let handle: @Sendable (Call) async throws(BrokerError) -> Response
    /// The roles of operators' keys that may use it.
    private let roles: [AdminRole]

    /// Whether the route reads its content while it comes, of any length.
    var isStreamed: Bool { contentType == .lines }

    /// - Parameters:
    ///   - readsLines: whether it reads NDJSON, by `Call.content`.
    ///   - checksContent: whether the type of the content is checked before the route reads it: a form on open routes, else
    ///     JSON.
    init(
        _ method: Method, _ path: StaticString, _ access: Access, allowsHead: Bool = true, checksContent: Bool = true,
        readsLines: Bool = false,
        _ handle: @escaping @Sendable (Call) async throws(BrokerError) -> Response
    ) {
        self.method = method
        self.path = path
        self.access = access
        self.allowsHead = allowsHead
        self.handle = handle
        roles = AdminRoutes.roles(method, path)
        let readsContent = checksContent && (method == .post || method == .put || method == .patch)
        contentType =
            !readsContent ? nil : readsLines ? .lines : access == .open ? .form : method == .patch ? .mergePatch : .json
    }

    /// The longest content of a request, in bytes; nil for the server's limit.
    var contentLimit: Int? {
        access == .open && !Self.isForApps(path.description) ? Self.browserContentBytes : nil
    }

    /// Forms of browsers, and responses of login services, have a few hundred bytes.
    private static let browserContentBytes = 65_536

    /// Whether errors at this path have the form of RFC 6749.
    static func isForApps(_ path: String) -> Bool { WireText(path).starts(with: "/oauth2/") }

    /// Whether a GET at this path changes something.
    static func isChangedByGet(_ path: String) -> Bool {
        let path = WireText(path)
        return (["/login/callback", "/login/start/", "/login/reconnect/", "/oauth2/authorize"] as [WireText]).contains {
            path.starts(with: $0)
        }
    }

    var methods: [Method] { method == .get && allowsHead ? [.get, .head] : [method] }

    func accepts(_ other: Method) -> Bool { other == method || methods.contains(other) }

    /// - Parameter caller: nil on open routes.
    /// - Throws: `forbidden`.
    func authorize(_ caller: Caller?) throws(BrokerError) {
        switch caller {
        case .key(let key)?: try authorize(key)
        case .admin(let name, let role)?: try authorize(name, role)
        case nil: return
        }
    }

    /// - Throws: `forbidden`, with the roles that may use the route.
    private func authorize(_ name: AdminName, _ role: AdminRole) throws(BrokerError) {
        if access == .open || roles.contains(role) { return }
        let sufficient = roles.map(\.rawValue).joined(separator: " or ")
        throw BrokerError(
            .forbidden,
            "The admin key '\(name)' has the role \(role.rawValue), which may not use \(method.name) \(path). That needs the "
                + "role \(sufficient).")
    }

    /// - Throws: `forbidden`.
    func authorize(_ key: CallerKey) throws(BrokerError) {
        switch access {
        case .open, .anyKey: return
        case .admin: throw BrokerError(.forbidden, "Only an admin key may do this.")
        case .tenant(let permission):
            if key.permissions.contains(permission) { return }
            throw BrokerError(.forbidden, "The API key lacks the permission \(permission.rawValue).")
        }
    }

    /// Checks the fields that describe the request's content.
    /// - Throws: `payload_too_large` and `unsupported_media_type`.
    func checkContent(_ fields: Fields) throws(BrokerError) {
        if method == .get { return }
        if !isStreamed, let length = (fields["Content-Length"]?.text).flatMap(Int.init), length > Service.longestContent
        {
            throw BrokerError(.payloadTooLarge, "The content is too large.")
        }
        for coding in fields.list("Content-Encoding") where !coding.equalsIgnoringCase("identity") {
            var error = BrokerError(.unsupportedMediaType, "Send the body without a Content-Encoding.")
            error.isAboutContentCoding = true
            throw error
        }
        // Empty content needs no type. Whether chunked content is empty is only known when it has arrived.
        if fields.contains("Content-Type") || fields.contains("Content-Length") { try contentType?.check(fields) }
    }
}

/// A request with its path parameters and, unless the route is open, its caller.
struct Call: Sendable {
    let request: Request
    let parameters: Router.PathParameters
    /// Nil on open routes.
    let caller: Caller?

    /// The longest name of a JSON member, in bytes.
    private static let longestName = 128

    /// Reads the members of the JSON body with `read`. A large body is read on Swift's global thread pool, so that the
    /// loop is not held up.
    /// - Throws: `unsupported_media_type`, or `invalid_request` with all faults. A member that `read` does not read is
    ///   a fault.
    func body<Value: Sendable>(
        _ read: @Sendable (inout ObjectReader) -> Value
    ) async throws(BrokerError) -> Value {
        try await json { (json) throws(BrokerError) in
            var reader = ObjectReader(json)
            let value = read(&reader)
            try reader.finish()
            return value
        }
    }

    /// Reads the JSON body with `read`. An empty body counts as an empty object. A large body is read on Swift's global
    /// thread pool, so that the loop is not held up.
    /// - Throws: `unsupported_media_type`, `invalid_request`, and the errors of `read`.
    func json<Value: Sendable>(
        _ read: @Sendable (JSONValue) throws(BrokerError) -> Value
    ) async throws(BrokerError) -> Value {
        if request.body.isEmpty { return try read(.object([:])) }
        try (request.method == .patch ? ContentType.mergePatch : .json).check(request.fields)
        let body = request.body
        return try await InputReading.run(bytes: body.count) { () throws(BrokerError) in
            try read(try Self.parse(body))
        }
    }

    static func parse(_ body: [UInt8]) throws(BrokerError) -> JSONValue {
        do {
            return try JSONValue(parsing: body, longestName: longestName)
        } catch {
            let fault: BrokerError.Fault =
                switch error {
                case .malformed: .init("", "must be one well-formed JSON value in UTF-8")
                case .tooDeep: .init("", "must not be nested deeper than \(JSONValue.maximumDepth) levels")
                case .repeatedMember(let pointer): .init(pointer, "occurs more than once")
                case .nameTooLong(let pointer, let limit):
                    .init(pointer, "must not have a name of more than \(limit) bytes")
                }
            throw BrokerError(.invalidRequest, error.description, faults: [fault])
        }
    }

    func query() throws(BrokerError) -> QueryReader { try QueryReader(request.query) }
}

/// The media type of the content that a route reads.
enum ContentType: Sendable {
    case json
    /// JSON, or a merge patch (RFC 7396).
    case mergePatch
    case form
    /// One JSON value in each line.
    case lines

    /// - Throws: `unsupported_media_type`.
    func check(_ fields: Fields) throws(BrokerError) {
        switch self {
        case .json, .mergePatch:
            let types = fields.values("Content-Type")
            guard types.count == 1, isJSON(types[0]) else {
                throw BrokerError(.unsupportedMediaType, "Send the body as Content-Type: application/json.")
            }
        case .lines:
            let types = fields.values("Content-Type")
            guard types.count == 1, Self.linesTypes.contains(MediaType(types[0]).name) else {
                throw BrokerError(.unsupportedMediaType, "Send the lines as Content-Type: application/x-ndjson.")
            }
        case .form:
            guard MediaType(fields["Content-Type"] ?? "").name == "application/x-www-form-urlencoded" else {
                throw Self.noForm
            }
        }
    }

    private static let linesTypes: [WireText] = [
        "application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines",
    ]

    static let noForm = BrokerError(
        .unsupportedMediaType, "Send the response as Content-Type: application/x-www-form-urlencoded.")

    /// `application/json`, with `charset=utf-8` or no parameter at all.
    private func isJSON(_ value: WireText) -> Bool {
        if value == "application/json" { return true }
        let type = MediaType(value)
        let isNamed =
            type.name == "application/json" || self == .mergePatch && type.name == "application/merge-patch+json"
        return isNamed && type.parameters.allSatisfy { $0 == "charset=utf-8" }
    }
}
