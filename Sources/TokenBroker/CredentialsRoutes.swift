import BrokerCore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import OAuth

/// `/credentials`.
struct CredentialsRoutes {
    private let broker: Broker

    init(_ broker: Broker) {
        self.broker = broker
    }

    var all: [Route] {
        [
            Route(.get, "/credentials", .tenant(.credentialsRead), get),
            Route(.put, "/credentials", .tenant(.credentialsWrite), put),
            Route(.delete, "/credentials", .tenant(.credentialsWrite), delete),
            Route(.post, "/credentials/activate", .tenant(.credentialsWrite), activate),
            Route(.get, "/credentials/status", .tenant(.credentialsRead), status),
            Route(.get, "/credentials/claims", .tenant(.credentialsRead), claims),
        ]
            + CredentialsListRoutes(broker).all + CredentialsTransferRoutes(broker).all
    }

    // MARK: GET /credentials

    /// What a read is about, and what it hands out, for the audit log.
    private struct Reading {
        /// Nil until the request is known to be allowed.
        var id: CredentialsID?
        /// Nil where nothing is handed out.
        var version: Int64?
    }

    private func get(_ call: Call) async throws(BrokerError) -> Response {
        var reading = Reading()
        let response: Response
        do throws(BrokerError) {
            response = try await get(call, noting: &reading)
        } catch {
            try await tell(of: reading, outcome: error.code.rawValue)
            throw error
        }
        try await tell(of: reading, outcome: response.status == .notModified ? "not_modified" : nil)
        return response
    }

    private func tell(of reading: Reading, outcome: String?) async throws(BrokerError) {
        guard let id = reading.id else { return }
        try await broker.core.audit.tell(ofRead: "credentials.read", id, version: reading.version, outcome: outcome)
    }

    private func get(_ call: Call, noting reading: inout Reading) async throws(BrokerError) -> Response {
        let text = call.request.query ?? ""
        let parameters = try CredentialsParameters(text.utf8.span)
        let storageKey = parameters.storageKey(in: text.utf8.span)
        var query = parameters.query
        let fields = call.request.fields
        if query.refusedByAPI { query.renewedPast = EntityTags.version(fields.lines.span, fields.bytes.span) }
        let patience = try Self.patience(call.request.fields)
        let wantedProof = try ProofRequest(fields)

        let tenant = try await broker.tenant(of: call)
        try call.authorize(storageKey)
        if query.policy == .localForceRefresh || query.refusedByAPI {
            try broker.rateLimits.spend(.writes, call.caller)
        }
        let provider = tenant.configuration.preset.name
        let id = CredentialsID(tenant: tenant.name, storageKey: storageKey)
        reading.id = id
        let answer: CredentialsProvider.Answer
        do throws(BrokerError) {
            answer = try await broker.credentials.credentials(id, of: tenant, query, patience: patience)
        } catch {
            var error = error
            error.reconnectURI = error.session.flatMap { broker.logins.reconnectURI(of: id, tenant, after: $0) }
            let isRefusal = error.code == .levelNotAvailable || error.code == .missingTokenContainer
            broker.metrics.tokenRead(provider: provider, isRefusal ? .refused : .failed)
            throw error
        }
        reading.version = answer.snapshot.isStored ? answer.snapshot.heldVersion : nil
        let tag = Self.tag(answer)
        let record = answer.snapshot.record
        let proof = try wantedProof?.proof(for: answer.level == .basic ? nil : record.held, at: broker.time.now)
        // Who has the token learns that its session has ended. A proof is good once, so that each request for one gets its own.
        if let tag, proof == nil, !record.isOver,
            EntityTags.contain(tag.utf8.span, fields.lines.span, fields.bytes.span)
        {
            broker.metrics.tokenRead(provider: provider, .notModified)
            return Response(.notModified, fields: CredentialsSnapshot.fieldsOfNotModified(tag: tag))
        }
        broker.metrics.tokenRead(provider: provider, answer.outcome)
        let reconnectURI = record.session.flatMap { broker.logins.reconnectURI(of: id, answer.tenant, after: $0) }
        var body =
            answer.level == .basic
            ? Self.basic(answer.tenant, after: record.session, reconnectURI)
            : answer.snapshot.body(at: broker.time.now, answer.degradation, reconnectURI: reconnectURI)
                ?? Self.basic(answer.tenant, after: nil, nil)
        if let proof { body = ProofRequest.adding(proof, to: body) }
        return Response(.ok, fields: CredentialsSnapshot.fields(tag: tag), body: body)
    }

    /// The entity tag: the record's version. Basic credentials depend on the configuration, so their tag also has the
    /// configuration's version. Nil for credentials that are not stored yet.
    private static func tag(_ answer: CredentialsProvider.Answer) -> String? {
        if !answer.snapshot.isStored { return nil }
        return answer.level == .basic
            ? "\"\(answer.snapshot.version)-\(answer.tenant.version)\""
            : CredentialsSnapshot.tag(answer.snapshot.heldVersion)
    }

    private static func basic(
        _ tenant: Tenant, after session: EndedSession?, _ reconnectURI: String?
    ) -> [UInt8] {
        let client = tenant.configuration.client
        return JSONWriter.object { json in
            json.member("level", CredentialsLevel.basic.rawValue)
            json.member("client_id", client.clientID.text)
            json.member("requested_scopes", client.scopes.values)
            json.memberOrNull("client_unique_key", client.clientUniqueKey?.text)
            json.member("granted_scopes", [])
            for name in ["user_id", "expires", "expires_in", "token_type", "token"] { json.memberOrNull(name, nil) }
            session?.encode(to: &json, reconnectURI: reconnectURI)
        }
    }

    /// The seconds of `Prefer: wait=N` (RFC 7240 §4.3), at most ten minutes; nil if it is not given. Other preferences
    /// are ignored.
    private static func patience(_ fields: Fields) throws(BrokerError) -> Duration? {
        for preference in fields.list("Prefer") {
            let parts = preference.split(at: ";", limit: 2)[0].split(at: "=", limit: 2).map(\.trimmed)
            guard parts[0].equalsIgnoringCase("wait") else { continue }
            let digits = parts.count == 2 ? parts[1].utf8.filter { $0 != UInt8(ascii: "\"") } : []
            guard !digits.isEmpty, digits.allSatisfy(\.isDigit) else {
                throw BrokerError(.invalidRequest, "Prefer: wait takes a whole number of seconds.")
            }
            return .seconds(digits.count <= 18 ? min(Int64(WireText(digits).text) ?? 600, 600) : 600)
        }
        return nil
    }

    // MARK: PUT and DELETE /credentials

    private func put(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let tenant = try await broker.tenant(of: call)
        let (storageKey, refreshToken, given) = try await call.body { body in
            (
                body.storageKey(), (body.string("refresh_token", limit: 65_536)?.text).map(SecretBytes.init(utf8:)),
                body.requiredObject("credentials") { GivenCredentials(&$0, for: tenant.configuration) }
            )
        }
        try call.authorize(try storageKey.writable())
        try broker.rateLimits.spend(.writes, call.caller)
        let providers = broker.core.providers.servers.acceptedProviders(of: tenant)
        let brought = try given!.held(
            refreshToken: refreshToken, for: tenant, of: providers.present, now: broker.time.now)
        let held = try await broker.core.providers.adopt(brought, of: tenant)
        let id = CredentialsID(tenant: tenant.name, storageKey: storageKey)
        let snapshot = try await broker.core.writer.set(id, to: held, arrival: call.request.arrival)
        broker.log.info("credentials_set", LogField.credentials(id) + [.level(held.level), .version(snapshot.version)])
        return Self.summary(storageKey, held, snapshot)
    }

    private func delete(_ call: Call) async throws(BrokerError) -> Response {
        var query = try call.query()
        let storageKey = query.storageKey()
        let revokes = query.bool("revoke") ?? false
        try query.finish()
        let tenant = try await broker.tenant(of: call)
        try call.authorize(storageKey)
        try broker.rateLimits.spend(.writes, call.caller)
        let id = CredentialsID(tenant: tenant.name, storageKey: storageKey)
        // What ends no later than here has ended with this logout, and the sessions of a login that comes from now on go on.
        var removed = broker.time.now
        // The credentials are removed first, so that the logout is in effect even if the revocation fails.
        var outcome: ProviderAccess.Revocation?
        if revokes {
            outcome = try await broker.core.revocations.logOut(
                id, of: tenant, by: broker.core.writer, arrival: call.request.arrival)
        } else {
            _ = try await broker.core.writer.purge(id, arrival: call.request.arrival)
            removed = broker.time.now
        }
        await broker.core.sessionEndings.endFirst(of: id, by: .logout, before: removed)
        broker.log.info("logout", LogField.credentials(id))
        var response = Response.empty(.noContent)
        if let outcome { response.fields.append("Token-Revocation", outcome.rawValue) }
        return response
    }

    // MARK: POST /credentials/activate

    private func activate(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let (storageKey, signature, source) = try await call.body { body in
            (
                body.storageKey(), body.requiredString("platform_signature", limit: 65_536),
                Self.signatureSource(&body)
            )
        }
        let tenant = try await broker.tenant(of: call)
        try call.authorize(try storageKey.writable())
        try broker.rateLimits.spend(.writes, call.caller)
        let id = CredentialsID(tenant: tenant.name, storageKey: storageKey)
        let activated = try await broker.core.accounts.activate(
            id, of: tenant, platformSignature: SecretBytes(utf8: signature!.text), source: source)
        return Self.summary(storageKey, activated.held, activated.snapshot)
    }

    /// The name of the platform that has signed; nil for the provider's usual one.
    private static func signatureSource(_ body: inout ObjectReader) -> WireText? {
        let source = body.string("source", limit: 64)
        if let source, source.isEmpty || !source.utf8.allSatisfy({ $0 > 0x20 && $0 < 0x7f }) {
            body.note("source", "must be visible ASCII without spaces")
        }
        return source
    }

    static func summary(
        _ storageKey: StorageKey, _ held: HeldCredentials, _ snapshot: CredentialsSnapshot?
    ) -> Response {
        var response = Response.json(.ok) { encodeSummary(storageKey, held, to: &$0) }
        if let snapshot { response.fields.append("ETag", CredentialsSnapshot.tag(snapshot.heldVersion)) }
        return response
    }

    // MARK: GET /credentials/status

    /// The credentials that a call with no parameter but `storage_key` is about, and their tenant.
    private func subject(of call: Call) async throws(BrokerError) -> (id: CredentialsID, tenant: Tenant) {
        var query = try call.query()
        let storageKey = query.storageKey()
        try query.finish()
        let tenant = try await broker.tenant(of: call)
        try call.authorize(storageKey)
        return (CredentialsID(tenant: tenant.name, storageKey: storageKey), tenant)
    }

    private func status(_ call: Call) async throws(BrokerError) -> Response {
        let (id, tenant) = try await subject(of: call)
        let snapshot = try await broker.credentials.lastKnown(id)
        let record = snapshot.record
        let (held, state) = (record.held, await broker.credentials.state(of: snapshot, id, tenant))
        let differences = held.map { broker.core.providers.servers.differences(of: $0, from: tenant) } ?? []
        let withheld = await broker.core.renewer.gate.withheld(snapshot, isHeld: state == .held, id, tenant)
        return .json(.ok) { json in
            json.member("logged_in", !record.isOver && held?.isLoggedIn(at: broker.time.now) ?? false)
            json.member("level", (held?.level ?? .basic).rawValue)
            json.memberOrNull("expires", held?.expiry?.description)
            json.member("refreshable", held?.refreshToken != nil)
            if held != nil { ForeseenEnd.encode(tenant.configuration.end(of: record), to: &json) }
            json.memberIfPresent("state", state?.rawValue)
            // The differences that an upgrade would remove. They stay if the provider has no upgrade grant, or if
            // another provider is configured now.
            if !differences.isEmpty { json.member("configuration_differences", differences) }
            withheld?.encode(to: &json)
        }
    }

    // MARK: GET /credentials/claims

    private func claims(_ call: Call) async throws(BrokerError) -> Response {
        let (id, _) = try await subject(of: call)
        let snapshot = try await broker.credentials.lastKnown(id)
        guard let held = snapshot.record.held else {
            throw BrokerError(.missingTokenContainer, "Nothing is stored under this storage key.")
        }
        guard !held.proof.isEmpty else {
            throw BrokerError(
                .illegalConfiguration,
                "No token of these credentials was verified. For access tokens and refresh tokens, configure "
                    + "token_verification; for ID tokens, the scope openid and the provider's issuer. Then refresh the "
                    + "credentials, or have the user log in anew.")
        }
        let access = held.proof.accessToken ? JSONWebToken.parts(of: held.accessToken) : nil
        let refresh = held.proof.refreshToken ? held.refreshToken.flatMap(JSONWebToken.parts) : nil
        let identity = held.proof.idToken.flatMap(JSONWebToken.parts)
        var response = Response.json(.ok) { json in
            Self.encode(access, "access_token", withHeader: true, to: &json)
            Self.encode(refresh, "refresh_token", to: &json)
            Self.encode(identity, "id_token", to: &json)
        }
        response.fields.append("ETag", CredentialsSnapshot.tag(snapshot.heldVersion))
        return response
    }

    private static func encode(
        _ token: (header: JSONValue, claims: JSONValue)?, _ name: String, withHeader: Bool = false,
        to json: inout JSONWriter
    ) {
        json.name(name)
        guard let token else { return json.null() }
        json.object { json in
            if withHeader { json.member("header", token.header) }
            json.member("claims", token.claims)
        }
    }

    static func encodeSummary(_ storageKey: StorageKey, _ held: HeldCredentials, to json: inout JSONWriter) {
        json.member("storage_key", storageKey.description)
        json.member("level", held.level.rawValue)
        json.member("client_id", held.obtainedWith.clientID.text)
        json.member("granted_scopes", held.grantedScopes.values)
        json.memberOrNull("user_id", held.userID?.text)
        json.memberOrNull("expires", held.expiry?.description)
        json.member("refreshable", held.refreshToken != nil)
    }
}
