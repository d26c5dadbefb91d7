import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import OAuth

extension ProfileTranslation {
    /// How the answers of the profile are written: the members of its document by which the broker reads them.
    struct Answers: Sendable {
        struct ErrorRule: Sendable {
            /// Nil for every status.
            let status: Int?
            let path: [WireText]
            let value: WireText
            let meaning: WireText?
        }

        /// The places of the members of RFC 6749 that have another one, and likewise for the token of the other kind.
        let fields: [WireText: [WireText]]
        let userFields: [WireText: [WireText]]
        let facts: [(name: WireText, path: [WireText])]
        let tokenTypes: [WireText]
        let errorRules: [ErrorRule]
        let isForm: Bool
        let isInMilliseconds: Bool

        init(_ document: JSONValue) {
            let (form, milliseconds): (WireText, WireText) = ("form", "milliseconds")
            fields = Self.places(document["response_fields"])
            userFields = Self.places(document["user_response_fields"])
            facts = Self.places(document["token_fields"]).map { ($0.key, $0.value) }.sorted { $0.name < $1.name }
            tokenTypes = (document["token_types"]?.array ?? []).compactMap(\.string)
            errorRules = (document["error_rules"]?.array ?? []).compactMap { rule in
                guard let value = rule["equals"]?.string else { return nil }
                return ErrorRule(
                    status: rule["status"]?.integer.map { Int($0) },
                    path: Self.path(rule["pointer"]?.string ?? "/error"), value: value, meaning: rule["means"]?.string)
            }
            isForm = document["response_format"]?.string == form
            isInMilliseconds = document["expires_unit"]?.string == milliseconds
        }

        /// Of several places the first.
        private static func places(_ json: JSONValue?) -> [WireText: [WireText]] {
            (json?.object ?? [:]).compactMapValues { value in
                (value.string ?? value.array?.first?.string).map { path($0) }
            }
        }

        /// The tokens of a JSON pointer. Those of profiles have no escapes.
        private static func path(_ pointer: WireText) -> [WireText] { Array(pointer.split(at: "/").dropFirst()) }

        /// Whether errors are told by words of the provider's own, those of wrong clients among them. Such providers answer with
        /// the status 200.
        var hasOwnErrors: Bool {
            errorRules.contains {
                $0.meaning == ProfileTranslation.configuration && $0.status == nil && $0.path == ["error"]
            }
        }
    }

    /// `means` of a rule about the client.
    private static let configuration: WireText = "configuration"

    // MARK: Tokens

    /// The answer that brings tokens.
    /// - Parameters:
    ///   - lasts: whether the token is one that was exchanged or renewed by itself, whose lifetime is always told.
    ///   - bound: the type of a token that is bound to a key; nil for another one, which has the profile's.
    ///   - now: milliseconds since 1970.
    func response(
        to grant: TokenIssuer.Grant, _ configuration: ProviderConfiguration, lasts: Bool = false,
        type bound: String? = nil, now: Int64
    ) -> Response {
        var json = JSONValue.object([:])
        for fact in answers.facts { Self.put(Self.madeUp(fact.name, now), at: fact.path, in: &json) }
        if let place = answers.fields["user_id"], let user = grant.user {
            Self.put(.string(WireText(String(user.id))), at: place, in: &json)
        }
        let type = bound.map { WireText($0) } ?? answers.tokenTypes.first ?? "Bearer"
        if grant.userTokens == nil || !grant.scope.isEmpty {
            put(
                grant.accessToken, grant.refreshToken, grant.scope, type, by: answers.fields, in: &json, configuration,
                lifetime: lasts || tellsLifetime(configuration) ? grant.lifetime : nil, now: now)
        }
        if let user = grant.userTokens {
            put(
                user.access, user.refresh, user.scope, answers.tokenTypes.last ?? type, by: answers.userFields,
                in: &json,
                configuration, lifetime: tellsLifetime(configuration) ? grant.lifetime : nil, now: now)
        }
        if let idToken = grant.idToken {
            Self.put(.string(WireText(idToken)), at: answers.fields["id_token"] ?? ["id_token"], in: &json)
        }
        return write(json, .ok)
    }

    private func put(
        _ access: String, _ refresh: String?, _ scope: [String], _ type: WireText, by fields: [WireText: [WireText]],
        in json: inout JSONValue, _ configuration: ProviderConfiguration, lifetime: Duration?, now: Int64
    ) {
        func put(_ name: WireText, _ value: JSONValue) { Self.put(value, at: fields[name] ?? [name], in: &json) }
        put("access_token", .string(WireText(access)))
        put("token_type", .string(type))
        if let refresh {
            put("refresh_token", .string(WireText(refresh)))
            if fields["refresh_token_expires_in"] != nil, let lifetime = configuration.refreshTokenLifetime {
                put("refresh_token_expires_in", .integer(inUnit(lifetime)))
            }
        }
        if !scope.isEmpty {
            put("scope", .string(WireText(scope.joined(separator: profile.shape.scopeSeparator.rawValue))))
        }
        guard let lifetime else { return }
        if fields["expires_at"] != nil {
            let end = Timestamp(milliseconds: TokenIssuer.time(now, lifetime))
            put("expires_at", .string(WireText(end.description)))
        } else {
            put("expires_in", .integer(inUnit(lifetime)))
        }
    }

    private func inUnit(_ lifetime: Duration) -> Int64 {
        answers.isInMilliseconds ? lifetime.components.seconds * 1000 : lifetime.components.seconds
    }

    /// Whether access tokens end. Those of a provider whose tokens are taken as endless do where refresh tokens end, or where a
    /// setting gives refresh tokens.
    func tokensEnd(_ configuration: ProviderConfiguration) -> Bool {
        guard profile.defaultLifetime == .unlimited else { return true }
        switch profile.lives.refreshTokens {
        case .bySetting?: return configuration.issuesRefreshTokens
        case .always?, .withScope?: return profile.lives.refreshToken != nil
        case .never?, nil: return false
        }
    }

    /// Whether answers say how long tokens live: not where the profile says what holds then.
    private func tellsLifetime(_ configuration: ProviderConfiguration) -> Bool {
        switch profile.defaultLifetime {
        case nil: true
        case .limited?: false
        case .unlimited?: tokensEnd(configuration)
        }
    }

    /// A fact of that name. What is named after a time is the present.
    private static func madeUp(_ name: WireText, _ now: Int64) -> JSONValue {
        name.ends(with: "_at") ? .integer(now / 1000) : .string(WireText(name.text + "-1"))
    }

    // MARK: The callback

    /// What the callback has beside the code and the state.
    var callbackPairs: [FormEncoding.Pair] {
        profile.answers.callbackFields.map { .init($0.parameter, WireText($0.name.text + "-1")) }
    }

    // MARK: Errors

    /// The answer to a refused request, in the shape of the profile's rules.
    func response(to error: OAuthError) -> Response {
        let rule = Self.meaning(of: error).flatMap { meaning in answers.errorRules.first { $0.meaning == meaning } }
        let usual = error.kind == .invalidClient ? 401 : 400
        let status = rule?.status ?? (answers.hasOwnErrors ? 200 : usual)
        var json = JSONValue.object([:])
        let place = answers.fields["error"] ?? ["error"]
        if rule?.path != place {
            // The rule alone has to say what the answer means.
            let name: WireText = rule == nil ? WireText(error.error) : "invalid_request"
            Self.put(.string(name), at: place, in: &json)
        }
        if rule?.path != ["error_description"] {
            Self.put(.string(WireText(error.description)), at: ["error_description"], in: &json)
        }
        if let rule {
            let value = Int64(rule.value.text).map { JSONValue.integer($0) } ?? .string(rule.value)
            Self.put(value, at: rule.path, in: &json)
        }
        var response = write(json, Status(status))
        if status == 401 { response.fields.set("WWW-Authenticate", #"Basic realm="token-broker-provider""#) }
        return response
    }

    /// The `means` of the rules for such an error; nil for one that has none.
    private static func meaning(of error: OAuthError) -> WireText? {
        switch error.kind {
        case .invalidRefreshToken: "session_ended"
        case .invalidClient, .unauthorizedClient: configuration
        case .authorizationPending: "pending"
        case .slowDown: "slow_down"
        case .rateLimited, .serverError: "transient"
        default: nil
        }
    }

    // MARK: Writing

    private func write(_ json: JSONValue, _ status: Status) -> Response {
        guard answers.isForm, let members = json.object else {
            var writer = JSONWriter()
            writer.value(json)
            return .json(status, writer.bytes)
        }
        let pairs = members.sorted { $0.key < $1.key }.compactMap { name, value in
            (value.string ?? value.integer.map { WireText(String($0)) }).map { FormEncoding.Pair(name, $0) }
        }
        return Response(
            status, fields: ["Content-Type": "application/x-www-form-urlencoded", "Cache-Control": "no-store"],
            body: Array(FormEncoding.encode(pairs).utf8))
    }

    /// Writes a value at a place. A number in the place is that of an element.
    private static func put(_ value: JSONValue, at path: [WireText], in json: inout JSONValue) {
        guard let name = path.first else {
            json = value
            return
        }
        let rest = Array(path.dropFirst())
        if let index = Int(name.text), (0..<mostElements).contains(index) {
            var elements = json.array ?? []
            while elements.count <= index { elements.append(.null) }
            put(value, at: rest, in: &elements[index])
            json = .array(elements)
        } else {
            var members = json.object ?? [:]
            put(value, at: rest, in: &members[name, default: .null])
            json = .object(members)
        }
    }

    /// The most elements of a list in an answer.
    private static let mostElements = 16
}
