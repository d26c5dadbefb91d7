import ExternalText
import HTTPCodec
import HTTPServer
import JSON

/// The provider's controls over HTTP, under `/_control`. Requests and responses are JSON.
struct ControlInterface {
    let provider: DevelopmentProvider

    /// Why a control request is refused. The caller gets this text.
    private struct Complaint: Error {
        let status: Status
        let detail: String

        init(_ detail: String, status: Status = .badRequest) {
            self.status = status
            self.detail = detail
        }
    }

    func respond(to request: Request, _ segments: [WireText]) -> Response {
        do {
            return try answer(request, segments)
        } catch {
            return .problem(error.status, error.detail)
        }
    }

    private func answer(_ request: Request, _ segments: [WireText]) throws(Complaint) -> Response {
        switch (segments, request.method) {
        case ([], .get): return Self.list
        case ([], .delete):
            provider.reset()
        case (["faults"], .get):
            return .json(.ok) { writer in
                writer.name("faults")
                writer.array { writer in for fault in provider.faults { Self.write(fault, to: &writer) } }
            }
        case (["faults"], .post):
            guard provider.script(try Self.fault(try Members(request))) else {
                throw Complaint("Too many faults are waiting.", status: .conflict)
            }
        case (["faults"], .delete):
            provider.removeFaults()
        case (["random_faults"], .get):
            return Self.json { Self.write(provider.randomFaults, to: &$0) }
        case (["random_faults"], .put):
            provider.disturbAtRandom(try Self.randomFaults(try Members(request)))
        case (["random_faults"], .delete):
            provider.disturbAtRandom(nil)
        case (["requests"], .get):
            return .json(.ok) { writer in
                writer.name("counters")
                provider.counters.write(to: &writer)
                writer.name("requests")
                writer.array { writer in for record in provider.requests { record.write(to: &writer) } }
            }
        case (["requests"], .delete):
            provider.resetRequests()
        case (["ledger"], .get):
            return Self.json { provider.ledger.write(to: &$0) }
        case (["ledger", "summary"], .get):
            return Self.json { provider.ledgerSummary.write(to: &$0) }
        case (_, .get) where segments.count == 3 && segments[0] == "ledger" && segments[1] == "users":
            guard segments[2].count <= 19, let user = Int64(segments[2].text), user > 0 else {
                throw Complaint("The user number in the path is not a positive integer.")
            }
            return Self.json { provider.ledger(userID: user).write(to: &$0) }
        case (["sessions"], .post):
            return try openSessions(try Members(request))
        case (["revoke"], .post):
            var members = try Members(request)
            guard let user = try members.userID() else { throw Complaint("user_id or user is missing.") }
            try members.end()
            let count = provider.revokeAll(userID: user)
            return .json(.ok) { writer in writer.member("revoked", count) }
        case (["expire"], .post):
            var members = try Members(request)
            let what = try members.choice("what", of: Expirable.self) ?? .accessTokens
            let user = try members.userID()
            try members.end()
            provider.expire(what, userID: user)
        case (["advance"], .post):
            var members = try Members(request)
            guard let seconds = try members.integer("seconds", in: 0...1_000_000_000) else {
                throw Complaint("seconds is missing.")
            }
            try members.end()
            provider.advance(by: .seconds(seconds))
            return .json(.ok) { writer in writer.member("now_ms", provider.now) }
        case (["keys"], .get):
            return .json(.ok) { writer in
                writer.name("keys")
                writer.array { writer in
                    for key in provider.keys {
                        writer.object { writer in
                            writer.member("kid", key.id)
                            writer.member("role", key.role)
                        }
                    }
                }
            }
        case (["keys", "publish"], .post):
            provider.publishNextKey()
        case (["keys", "rotate"], .post):
            provider.rotateKeys()
        case (["accounts"], .post):
            var members = try Members(request)
            guard let user = try members.string("user"), !user.isEmpty else { throw Complaint("user is missing.") }
            let state = try members.choice("state", of: AccountState.self) ?? .active
            try members.end()
            provider.setAccount(user.text, to: state)
        case (["introspect"], .post):
            var members = try Members(request)
            guard let token = try members.string("token") else { throw Complaint("token is missing.") }
            try members.end()
            return Self.introspection(provider.introspect(accessToken: token.text))
        default:
            let methods = Self.controls.filter { $0.segments == segments }.map(\.method)
            if methods.isEmpty { throw Complaint("There is no such path.", status: .notFound) }
            return .methodNotAllowed(methods.joined(separator: ", "))
        }
        // Done, and there is nothing to say of it.
        return Response(.noContent, fields: ["Cache-Control": "no-store"])
    }

    private static func json(_ write: (inout JSONWriter) -> Void) -> Response {
        var writer = JSONWriter()
        write(&writer)
        return .json(.ok, writer.bytes)
    }

    /// Opens one session for `user`, or `count` sessions for users whose names are `prefix` and a number from `first`
    /// on.
    private func openSessions(_ members: Members) throws(Complaint) -> Response {
        var members = members
        let client = try members.string("client_id")
        var users: [String] = []
        if let user = try members.string("user") {
            users = [user.text]
        } else if let prefix = try members.string("prefix") {
            let first = try members.integer("first", in: 1...1_000_000_000) ?? 1
            guard let count = try members.integer("count", in: 1...100_000) else {
                throw Complaint("count is missing.")
            }
            users = (first..<first + count).map { "\(prefix.text)\($0)" }
        } else {
            throw Complaint("user or prefix is required.")
        }
        try members.end()
        guard let sessions = provider.openSessions(users: users, clientID: client?.text) else {
            throw Complaint("There is no such client.", status: .notFound)
        }
        return .json(.ok) { writer in
            writer.name("sessions")
            writer.array { writer in for session in sessions { session.write(to: &writer) } }
        }
    }

    private static func randomFaults(_ members: Members) throws(Complaint) -> RandomFaults {
        var members = members
        guard let seed = try members.integer("seed", in: 0 ... .max) else { throw Complaint("seed is missing.") }
        guard let endpoint = try members.choice("endpoint", of: Endpoint.self) else {
            throw Complaint("endpoint is missing.")
        }
        var faults = RandomFaults(seed: UInt64(seed), endpoint: endpoint)
        faults.grant = try members.choice("grant", of: GrantType.self)
        for mode in Fault.Mode.allCases {
            faults.perMille[mode] = try members.integer(WireText(mode.rawValue + "_per_mille"), in: 0...1000).map(
                Int.init)
        }
        faults.delayedPerMille = Int(try members.integer("delay_per_mille", in: 0...1000) ?? 0)
        faults.answerDelayedPerMille = Int(try members.integer("answer_delay_per_mille", in: 0...1000) ?? 0)
        if let longest = try members.integer("longest_delay_ms", in: 0...3_600_000) {
            faults.longestDelay = .milliseconds(longest)
        }
        try members.end()
        guard faults.total <= 1000 else { throw Complaint("The rates add up to more than 1000.") }
        return faults
    }

    private static func write(_ faults: RandomFaults?, to writer: inout JSONWriter) {
        writer.object { writer in
            guard let faults else { return }
            writer.member("seed", String(faults.seed))
            writer.member("endpoint", faults.endpoint.rawValue)
            writer.memberIfPresent("grant", faults.grant?.rawValue)
            for mode in Fault.Mode.allCases {
                writer.member(mode.rawValue + "_per_mille", faults.perMille[mode] ?? 0)
            }
            writer.member("delay_per_mille", faults.delayedPerMille)
            writer.member("answer_delay_per_mille", faults.answerDelayedPerMille)
            writer.member("longest_delay_ms", Int64(faults.longestDelay / .milliseconds(1)))
        }
    }

    private static func introspection(_ token: AccessTokenRecord?) -> Response {
        .json(.ok) { writer in
            writer.member("active", token != nil)
            guard let token else { return }
            writer.member("client_id", token.clientID)
            writer.member("scope", token.scope.joined(separator: " "))
            writer.memberIfPresent("user_id", token.user?.id)
            writer.memberIfPresent("user", token.user?.name)
            writer.memberIfPresent("family", token.family.map(Int64.init))
            writer.member("iat", token.issuedAt / 1000)
            writer.member("exp", token.expiresAt / 1000)
        }
    }

    private static func fault(_ members: Members) throws(Complaint) -> Fault {
        var members = members
        guard let endpoint = try members.choice("endpoint", of: Endpoint.self) else {
            throw Complaint("endpoint is missing.")
        }
        var fault = Fault(endpoint)
        fault.grant = try members.choice("grant", of: GrantType.self)
        fault.mode = try members.choice("mode", of: Fault.Mode.self) ?? .answer
        if let times = try members.integer("times", in: 1...1_000_000) { fault.times = Int(times) }
        let delays: ClosedRange<Int64> = 0...3_600_000
        if let delay = try members.integer("delay_ms", in: delays) { fault.delay = .milliseconds(delay) }
        if let delay = try members.integer("answer_delay_ms", in: delays) { fault.answerDelay = .milliseconds(delay) }
        if let status = try members.integer("status", in: 200...599) { fault.status = Status(Int(status)) }
        for (name, value) in try members.fields("headers") { fault.fields.append(name, value) }
        fault.body = try members.body("body")
        let token = try members.choice("token", of: SignedToken.self)
        let defect = try members.choice("defect", of: TokenDefect.self)
        if let defect {
            fault.defect = (token ?? .access, defect)
        } else if token != nil {
            throw Complaint("token requires defect.")
        }
        try members.end()
        return fault
    }

    private static func write(_ fault: Fault, to writer: inout JSONWriter) {
        writer.object { writer in
            writer.member("endpoint", fault.endpoint.rawValue)
            writer.memberIfPresent("grant", fault.grant?.rawValue)
            writer.member("mode", fault.mode.rawValue)
            writer.member("times", fault.times)
            writer.member("delay_ms", Int64(fault.delay / .milliseconds(1)))
            writer.member("answer_delay_ms", Int64(fault.answerDelay / .milliseconds(1)))
            writer.memberIfPresent("status", (fault.status?.code).map(Int64.init))
            writer.memberIfPresent("token", fault.defect?.token.rawValue)
            writer.memberIfPresent("defect", fault.defect?.defect.rawValue)
        }
    }

    /// The members of a JSON object. Each read removes a member, so a member that is left at the end is an unknown one.
    private struct Members {
        private var members: [WireText: JSONValue]

        init(_ request: Request) throws(Complaint) {
            // A web page cannot send this content type to another origin without the consent of that origin.
            guard MediaType(request.fields["Content-Type"] ?? "").name == "application/json" else {
                throw Complaint("The content type is not application/json.", status: .unsupportedMediaType)
            }
            do {
                guard let object = try JSONValue(parsing: request.body).object else {
                    throw JSONValue.Fault.malformed
                }
                members = object
            } catch {
                throw Complaint("The body is not a JSON object.")
            }
        }

        mutating func string(_ name: WireText) throws(Complaint) -> WireText? {
            guard let value = members.removeValue(forKey: name) else { return nil }
            guard let text = value.string else { throw Complaint("\(name) is not a string.") }
            return text
        }

        mutating func integer(_ name: WireText, in range: ClosedRange<Int64>) throws(Complaint) -> Int64? {
            guard let value = members.removeValue(forKey: name) else { return nil }
            guard let number = value.integer, range.contains(number) else {
                throw Complaint("\(name) is not an integer from \(range.lowerBound) to \(range.upperBound).")
            }
            return number
        }

        mutating func choice<Choice: RawRepresentable<String> & CaseIterable>(
            _ name: WireText, of: Choice.Type
        ) throws(Complaint) -> Choice? {
            guard let text = try string(name) else { return nil }
            guard let choice = Choice(text) else {
                throw Complaint("\(name) must be one of \(Choice.allCases.map(\.rawValue).joined(separator: ", ")).")
            }
            return choice
        }

        /// `user_id`, or the number of the user with the name `user`.
        mutating func userID() throws(Complaint) -> Int64? {
            let id = try integer("user_id", in: 1 ... .max)
            let name = try string("user")
            return id ?? name.map { ProviderUser($0.text).id }
        }

        mutating func fields(_ name: WireText) throws(Complaint) -> [(String, String)] {
            guard let value = members.removeValue(forKey: name) else { return [] }
            guard let object = value.object else { throw Complaint("\(name) is not an object.") }
            var fields: [(String, String)] = []
            for (name, value) in object.sorted(by: { $0.key < $1.key }) {
                guard let text = value.string, text.utf8.allSatisfy({ $0 >= 0x20 && $0 != 0x7f }), !name.isEmpty,
                    name.utf8.allSatisfy({ $0.isUnreserved })
                else { throw Complaint("headers must map names to single lines of text.") }
                fields.append((name.text, text.text))
            }
            return fields
        }

        /// The bytes of a text, or any other value as JSON.
        mutating func body(_ name: WireText) throws(Complaint) -> [UInt8]? {
            guard let value = members.removeValue(forKey: name) else { return nil }
            if let text = value.string { return Array(text.utf8) }
            var writer = JSONWriter()
            writer.value(value)
            return writer.bytes
        }

        func end() throws(Complaint) {
            if let name = members.keys.min() { throw Complaint("\(name.prefix(64)) is not a known member.") }
        }
    }
}
