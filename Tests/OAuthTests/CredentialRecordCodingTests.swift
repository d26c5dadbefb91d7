import Cryptography
import ExternalText
import JSON
import OAuth
import Testing

@Suite struct `Credential record coding` {
    static let full = Sample.held(
        refreshToken: "r\"1\\\n\u{0}\u{2028}ä\u{1f511}", expires: Timestamp(milliseconds: 1_795_255_200_123),
        scopes: ["b", "a"], userID: "u\"1",
        obtainedWith: Sample.client(uniqueKey: "k", scopes: ["c"]).fingerprint)

    static let bare = Sample.held(
        .client, refreshToken: nil, expires: Timestamp(milliseconds: -1), scopes: [], userID: nil,
        obtainedWith: Sample.client(secret: nil, uniqueKey: nil, scopes: []).fingerprint)

    /// The credentials of `full` with different granting providers.
    static let providers: [HeldCredentials] = [
        (nil, "https://p.example/token"), ("https://p.example", nil), ("https://p.example/ä\u{0}", "t\"\\"),
    ].map { (issuer: WireText?, endpoint: WireText?) in
        var held = full
        held.grantedBy = GrantingProvider(issuer: issuer, tokenEndpoint: endpoint)
        return held
    }

    /// Credentials of a token that does not expire, with user identifiers of both kinds.
    static let lasting: HeldCredentials = {
        var held = Sample.held(expires: .never)
        held.identity = UserIdentity(userID: "42", subject: "s\"1")
        return held
    }()

    @Test func `a token without an expiry has the latest time for earlier builds`() throws {
        let text = String(decoding: CredentialRecord(held: Self.lasting).encoded, as: UTF8.self)
        let json = try JSONValue(parsing: Array(text.utf8))
        #expect(json["held"]?["expires"]?.integer == Timestamp.latest.milliseconds)
        let earlier = Array(text.replacing(#","never_expires":true"#, with: "").utf8)
        #expect(CredentialRecord(decoding: earlier)?.held?.expires == .latest)
    }

    @Test(arguments: [
        CredentialRecord(held: lasting), CredentialRecord(held: nil), CredentialRecord(held: full),
        CredentialRecord(held: bare),
        CredentialRecord(held: nil, ended: SHA256.digest(Array("r".utf8))),
        CredentialRecord(held: bare, ended: [UInt8](repeating: 0xff, count: 32)),
        CredentialRecord(held: providers[0]), CredentialRecord(held: providers[1]),
        CredentialRecord(held: providers[2]),
    ])
    func `what was written is read again`(record: CredentialRecord) {
        #expect(CredentialRecord(decoding: record.encoded) == record)
    }

    @Test func `a record with nothing in it is an empty object`() {
        #expect(CredentialRecord(held: nil).encoded == Array("{}".utf8))
    }

    @Test func `optional members are omitted when they are nil`() throws {
        let json = try JSONValue(parsing: CredentialRecord(held: Self.bare).encoded)
        #expect(
            json["held"]?.object?.keys.sorted() == [
                "access_token", "client_id", "expires", "granted_scopes", "level", "requested_scopes",
            ])
    }

    // H089
    @Test func `the provider is added to the members that earlier builds read and changes none of them`() throws {
        let before = try #require(try JSONValue(parsing: CredentialRecord(held: Self.full).encoded)["held"]?.object)
        for held in Self.providers {
            var now = try #require(try JSONValue(parsing: CredentialRecord(held: held).encoded)["held"]?.object)
            #expect(now["issuer"]?.string == held.grantedBy?.issuer)
            #expect(now["token_endpoint"]?.string == held.grantedBy?.tokenEndpoint)
            now["issuer"] = nil
            now["token_endpoint"] = nil
            #expect(now == before)
        }
        #expect(Set(Self.providers.map { $0.grantedBy?.issuer }).count == 3)
    }

    @Test func `the client secret is not in it`() {
        let text = String(decoding: CredentialRecord(held: Self.full).encoded, as: UTF8.self)
        #expect(!text.contains("secret-1"))
    }

    static let members: [WireText: JSONValue] = [
        "level": .string("user"), "access_token": .string("at"), "expires": .integer(1000),
        "granted_scopes": .array([.string("a")]), "client_id": .string("c"), "requested_scopes": .array([]),
    ]

    private func decode(_ held: [WireText: JSONValue]) -> CredentialRecord? {
        CredentialRecord(decoding: JSONWriter.object { $0.member("held", .object(held)) })
    }

    // T77
    @Test func `a record without optional members is read`() {
        #expect(
            decode(Self.members)?.held
                == Sample.held(
                    token: "at", refreshToken: nil, expires: Timestamp(milliseconds: 1000), userID: nil,
                    obtainedWith: ClientFingerprint(
                        clientID: "c", scopes: .empty, clientUniqueKey: nil, clientSecretDigest: nil)))
    }

    @Test func `a writer that knew more members is understood`() {
        var held = Self.members
        held["added_later"] = .object(["x": .array([.null])])
        let bytes = JSONWriter.object { json in
            json.member("added_later", 1)
            json.member("held", .object(held))
        }
        #expect(CredentialRecord(decoding: bytes) == decode(Self.members))
    }

    @Test(arguments: members.keys.sorted())
    func `a required member must be present and of its type`(name: WireText) {
        var held = Self.members
        held[name] = nil
        #expect(decode(held) == nil)
        held[name] = .bool(true)
        #expect(decode(held) == nil)
        held[name] = .null
        #expect(decode(held) == nil)
    }

    @Test(
        arguments: [
            ("level", .string("basic")), ("level", .string("USER")), ("expires", .number(0.5)),
            ("granted_scopes", .array([.string("a b")])), ("requested_scopes", .array([.string("")])),
            ("granted_scopes", .array([.integer(1)])), ("requested_scopes", .array([.null])),
            ("refresh_token", .integer(1)), ("refresh_token", .null), ("user_id", .integer(1)),
            ("client_unique_key", .bool(false)), ("client_secret_digest", .string("*")),
            ("client_secret_digest", .integer(1)), ("issuer", .integer(1)), ("issuer", .null),
            ("token_endpoint", .array([])), ("token_endpoint", .null),
        ] as [(WireText, JSONValue)])
    func `a member with a value that no build writes makes the record unreadable`(name: WireText, value: JSONValue) {
        var held = Self.members
        held[name] = value
        #expect(decode(held) == nil)
    }

    @Test(arguments: [
        "", "null", "[]", "{", "{} x", #"{"held":{}}"#, #"{"held":null}"#, #"{"held":[]}"#, #"{"ended":null}"#,
        #"{"ended":1}"#, #"{"ended":"*"}"#, #"{"ended":""}"#, #"{"held":{},"held":{}}"#,
    ])
    func `a text that is not a record is refused`(text: String) {
        #expect(CredentialRecord(decoding: Array(text.utf8)) == nil)
    }

    @Test(arguments: [31, 32, 33])
    func `the digest of an ended session has 32 bytes`(count: Int) {
        let record = CredentialRecord(held: nil, ended: [UInt8](repeating: 1, count: count))
        #expect(CredentialRecord(decoding: record.encoded) == (count == 32 ? record : nil))
    }

    // MARK: Quarantined credentials that earlier builds wrote into this record

    private func withQuarantined(_ value: JSONValue, ended: String? = nil) -> CredentialRecord? {
        CredentialRecord(
            decoding: JSONWriter.object { json in
                json.member("held", .object(Self.members))
                json.memberIfPresent("ended", ended)
                json.member("quarantined", value)
            })
    }

    // T77
    @Test func `the digest of their refresh token is read as that of the ended session`() {
        var members = Self.members
        members["refresh_token"] = .string("r1")
        let quarantined = JSONValue.object(["until": .integer(1), "credentials": .object(members)])
        let digest = SHA256.digest(Array("r1".utf8))
        #expect(withQuarantined(quarantined) == CredentialRecord(held: decode(Self.members)?.held, ended: digest))
        let newer = SHA256.digest(Array("r2".utf8))
        #expect(withQuarantined(quarantined, ended: Base64URL.encode(newer))?.ended == newer)
    }

    @Test(
        arguments: [
            .null, .integer(1), .object([:]), .object(["credentials": .null]), .object(["credentials": .object([:])]),
            .object(["credentials": .object(members), "until": .integer(1)]),
            .object(["credentials": .object(members.merging(["refresh_token": .integer(1)]) { $1 })]),
        ] as [JSONValue])
    func `malformed quarantined credentials are ignored, and the record stays readable`(quarantined: JSONValue) {
        #expect(withQuarantined(quarantined) == decode(Self.members))
    }
}

@Suite struct `Quarantined credentials coding` {
    @Test(
        arguments: [`Credential record coding`.full, `Credential record coding`.bare]
            + `Credential record coding`.providers)
    func `what was written is read again`(credentials: HeldCredentials) {
        for until in [Timestamp(milliseconds: -1), Sample.now, .latest] {
            let quarantined = QuarantinedCredentials(credentials: credentials, until: until)
            #expect(QuarantinedCredentials(decoding: quarantined.encoded) == quarantined)
        }
    }

    @Test func `a writer that knew more members is understood`() {
        let bytes = JSONWriter.object { json in
            json.member("until", 1000)
            json.member("added_later", true)
            json.member("credentials", .object(`Credential record coding`.members))
        }
        #expect(QuarantinedCredentials(decoding: bytes)?.until == Timestamp(milliseconds: 1000))
        #expect(QuarantinedCredentials(decoding: bytes)?.credentials.accessToken.revealedText == "at")
    }

    @Test(arguments: [
        "", "null", "[]", "{}", #"{"until":1}"#, #"{"until":1,"credentials":{}}"#, #"{"until":1,"credentials":null}"#,
        #"{"credentials":{"level":"user"}}"#,
    ])
    func `a text that is not such a record is refused`(text: String) {
        #expect(QuarantinedCredentials(decoding: Array(text.utf8)) == nil)
    }

    @Test(arguments: [.null, .string("1"), .number(0.5), .bool(true)] as [JSONValue])
    func `the time of deletion is a whole number`(until: JSONValue) {
        let bytes = JSONWriter.object { json in
            json.member("until", until)
            json.member("credentials", .object(`Credential record coding`.members))
        }
        #expect(QuarantinedCredentials(decoding: bytes) == nil)
    }
}
