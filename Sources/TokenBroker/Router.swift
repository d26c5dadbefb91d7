internal import BrokerCore
internal import HTTPCodec
internal import HTTPServer
internal import JSON

/// Finds the route of a path. Parameters are whole segments, percent-decoded once.
struct Router: Sendable {
    /// The parameters of a path, by name.
    typealias PathParameters = [String: String]

    struct Match: Sendable {
        let route: Route
        let parameters: PathParameters
    }

    private enum Segment: Sendable {
        case literal(String)
        case parameter(String)
    }

    private let patterns: [(path: String, segments: [Segment], routes: [Route])]
    /// The patterns without parameters, by their paths.
    private let literals: [String: Int]

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
        var literals: [String: Int] = [:]
        for (index, pattern) in patterns.enumerated() where !pattern.path.contains("{") {
            let pieces = Self.pieces(pattern.path)
            // One that an earlier pattern takes as well is found by looking at them in turn.
            let first = patterns.firstIndex { Self.match($0.segments, pieces) != nil }
            if first == index { literals[pattern.path] = index }
        }
        self.literals = literals
    }

    /// - Throws: `not_found`, or `method_not_allowed` with the methods that are.
    func match(_ method: Method, _ path: String) throws(BrokerError) -> Match {
        if let index = literals[path] { return try match(method, patterns[index].routes, [:]) }
        let pieces = Self.pieces(path)
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

    private static func pieces(_ path: String) -> ArraySlice<Substring> {
        path.split(separator: "/", omittingEmptySubsequences: false).dropFirst()
    }

    private static func segments(_ path: String) -> [Segment] {
        path.split(separator: "/").map { piece in
            piece.hasPrefix("{") ? .parameter(String(piece.dropFirst().dropLast())) : .literal(String(piece))
        }
    }

    private static func match(_ segments: [Segment], _ pieces: ArraySlice<Substring>) -> PathParameters? {
        guard segments.count == pieces.count else { return nil }
        var parameters: PathParameters = [:]
        for (segment, piece) in zip(segments, pieces) {
            switch segment {
            case .literal(let text):
                if text != piece { return nil }
            case .parameter(let name):
                guard !piece.isEmpty, let text = try? FormEncoding.percentDecode(piece.utf8) else { return nil }
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
        /// No key: a browser, a probe.
        case open
        case admin
        /// A key with this permission, or the admin's for the tenant it names.
        case tenant(Permission)
    }

    let method: Method
    /// As in openapi.yaml: `/tenants/{tenant}`.
    let path: StaticString
    let access: Access
    /// Whether HEAD is answered like GET. Not where a GET changes something.
    let allowsHead: Bool
    let handle: @Sendable (Call) async throws(BrokerError) -> Response

    init(
        _ method: Method, _ path: StaticString, _ access: Access, allowsHead: Bool = true,
        _ handle: @escaping @Sendable (Call) async throws(BrokerError) -> Response
    ) {
        self.method = method
        self.path = path
        self.access = access
        self.allowsHead = allowsHead
        self.handle = handle
    }

    var methods: [Method] { method == .get && allowsHead ? [.get, .head] : [method] }

    func accepts(_ other: Method) -> Bool { other == method || methods.contains(other) }

    /// - Parameter caller: nil on open routes.
    /// - Throws: `forbidden`.
    func authorize(_ caller: Caller?) throws(BrokerError) {
        guard case .key(let key)? = caller else { return }
        switch access {
        case .open: return
        case .admin: throw BrokerError(.forbidden, "Only the admin key may do this.")
        case .tenant(let permission):
            if key.permissions.contains(permission) { return }
            throw BrokerError(.forbidden, "The API key lacks the permission \(permission.rawValue).")
        }
    }

    /// The content that the route reads; nil where it reads none.
    private var contentType: ContentType? {
        guard method == .post || method == .put else { return nil }
        return access == .open ? .form : .json
    }

    /// Checks what the fields say of a request's content.
    /// - Throws: `unsupported_media_type`.
    func checkContent(_ fields: Fields) throws(BrokerError) {
        if method == .get { return }
        for coding in fields.list("Content-Encoding") where !Fields.equal(coding, "identity") {
            var error = BrokerError(.unsupportedMediaType, "Send the body without a Content-Encoding.")
            error.isAboutContentCoding = true
            throw error
        }
        // Whether chunked content is empty, and needs no type, is not known before it has arrived.
        if fields.contains("Content-Type") || fields.contains("Content-Length") { try contentType?.check(fields) }
    }
}

/// A request that found its route and, where the route has one, its caller.
struct Call: Sendable {
    let request: Request
    let parameters: Router.PathParameters
    /// Nil on open routes.
    let caller: Caller?

    /// The members of the JSON body.
    func body() throws(BrokerError) -> ObjectReader { ObjectReader(try json()) }

    /// The JSON body; an empty object where there is none.
    /// - Throws: `unsupported_media_type`, `invalid_request`.
    func json() throws(BrokerError) -> JSONValue {
        if request.body.isEmpty { return .object([:]) }
        try ContentType.json.check(request.fields)
        do {
            return try JSONValue(parsing: request.body)
        } catch {
            let fault: BrokerError.Fault =
                switch error {
                case .malformed: .init("", "must be one well-formed JSON value in UTF-8")
                case .tooDeep: .init("", "must not be nested deeper than \(JSONValue.maximumDepth) levels")
                case .repeatedMember(let pointer): .init(pointer, "occurs more than once")
                }
            throw BrokerError(.invalidRequest, error.description, faults: [fault])
        }
    }

    func query() throws(BrokerError) -> QueryReader { try QueryReader(request.query) }
}

/// The media type of what a route reads.
enum ContentType: Sendable {
    case json
    case form

    /// - Throws: `unsupported_media_type`.
    func check(_ fields: Fields) throws(BrokerError) {
        switch self {
        case .json:
            let types = fields.values("Content-Type")
            guard types.count == 1, Self.isJSON(types[0]) else {
                throw BrokerError(.unsupportedMediaType, "Send the body as Content-Type: application/json.")
            }
        case .form:
            let type = (fields["Content-Type"] ?? "").prefix { $0 != ";" }.filter { $0 != " " && $0 != "\t" }
            guard Fields.equal(type, "application/x-www-form-urlencoded") else { throw Self.noForm }
        }
    }

    static let noForm = BrokerError(
        .unsupportedMediaType, "Send the response as Content-Type: application/x-www-form-urlencoded.")

    /// `application/json`, with `charset=utf-8` or no parameter at all.
    private static func isJSON(_ value: String) -> Bool {
        if value == "application/json" { return true }
        let parts = value.lowercased().split(separator: ";").map { $0.filter { $0 != " " && $0 != "\t" && $0 != "\"" } }
        return parts.first == "application/json" && parts.dropFirst().allSatisfy { $0 == "charset=utf-8" }
    }
}
