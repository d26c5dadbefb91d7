import ExternalText
import OAuth
import Testing

@Suite struct `Tenant name` {
    @Test(arguments: [0, 1, 2, 62, 63, 64, 65])
    func `has 1 to 63 characters`(length: Int) {
        #expect((TenantName(String(repeating: "a", count: length)) != nil) == (1...63).contains(length))
    }

    @Test(arguments: 0...0x7f)
    func `begins with a lower-case letter or a digit and goes on with a hyphen too`(scalar: Int) {
        let character = String(Unicode.Scalar(UInt8(scalar)))
        let alphanumerics = "abcdefghijklmnopqrstuvwxyz0123456789"
        #expect((TenantName(character) != nil) == alphanumerics.contains(character))
        #expect((TenantName("a" + character) != nil) == (alphanumerics + "-").contains(character))
    }

    @Test(arguments: ["\u{e9}", "a\u{301}", "\u{ff41}", "a\u{0}", "١"])
    func `is ASCII`(text: String) {
        #expect(TenantName(text) == nil)
    }

    @Test func `reads as it was written`() {
        #expect(TenantName("tidal-1")?.description == "tidal-1")
    }

    @Test func `orders by bytes`() {
        let names = ["b", "a-", "a0", "a", "0"].map { TenantName($0)! }
        #expect(names.sorted().map(\.description) == ["0", "a", "a-", "a0", "b"])
    }

    @Test func `a request cannot name the broker's own tenant`() {
        #expect(TenantName(TenantName.broker.description) == nil)
    }
}

@Suite struct `Storage key` {
    @Test(arguments: [0, 1, 2, 199, 200, 201])
    func `has 1 to 200 characters`(length: Int) {
        #expect((StorageKey(String(repeating: "k", count: length)) != nil) == (1...200).contains(length))
    }

    @Test(arguments: 0...0x7f)
    func `is made of letters, digits and six signs`(scalar: Int) {
        let character = String(Unicode.Scalar(UInt8(scalar)))
        let allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._~:@-"
        #expect((StorageKey(character) != nil) == allowed.contains(character))
        #expect((StorageKey("k" + character + "k") != nil) == allowed.contains(character))
    }

    @Test(arguments: ["\u{e9}", "k\u{301}", "\u{ff4b}", "\u{1f511}"])
    func `is ASCII`(text: String) {
        #expect(StorageKey(text) == nil)
    }

    @Test func `the default one is an ordinary key`() {
        #expect(StorageKey("default") == .default)
        #expect(StorageKey.default.description == "default")
    }

    @Test func `case makes a difference`() {
        #expect(StorageKey("K") != StorageKey("k"))
    }

    @Test func `identifiers differ when tenant or storage key differ`() {
        let one = TenantName("one")!
        let two = TenantName("two")!
        let key = StorageKey("two")!
        let all: Set = [
            CredentialsID(tenant: one, storageKey: .default), CredentialsID(tenant: two, storageKey: .default),
            CredentialsID(tenant: one, storageKey: key), CredentialsID(tenant: two, storageKey: key),
        ]
        #expect(all.count == 4)
    }
}

@Suite struct `Credentials level` {
    // T55
    @Test func `user is above client is above basic`() {
        #expect(CredentialsLevel.allCases.sorted() == [.basic, .client, .user])
        #expect(CredentialsLevel.basic < .client)
        #expect(CredentialsLevel.client < .user)
        #expect(!(CredentialsLevel.user < .user))
    }

    @Test func `the words are those of the contract`() {
        #expect(CredentialsLevel.allCases.map(\.rawValue) == ["basic", "client", "user"])
    }
}

@Suite struct `API sub status` {
    // T26
    @Test(arguments: ["11003", "6001", "11001", "11002", "11101"])
    func `the five of the design force a refresh`(text: String) {
        #expect(APISubStatus.forcesRefresh(WireText(text)))
    }

    // T27
    @Test(arguments: [
        "11000", "11004", "6000", "6002", "6004", "11100", "11102", "4005", "1002", "1005", "999", "50123", "",
        "11003 ", " 11003", "011003", "+11003", "11003.0", "1100", "110030", "11\u{660}03", "null", "0",
    ])
    func `other sub-statuses do not force a refresh`(text: String) {
        #expect(!APISubStatus.forcesRefresh(WireText(text)))
    }
}
