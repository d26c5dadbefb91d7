import CredentialStore
import Cryptography
import OAuth
import Testing

@Suite struct `A sealer` {
    let sealer: Sealer
    let record = OpenRecord(
        id: RecordID(.credentials, TenantName("alpha")!, key: "k"), version: 3, content: SecretBytes(utf8: "content"),
        lookup: [UInt8](repeating: 5, count: 32), expires: Timestamp(seconds: 9))

    init() throws {
        sealer = Sealer(keyring: try Keyring(parsing: try Keyring.generate(id: "main")))
    }

    private func refusal(_ record: StoredRecord, by sealer: Sealer? = nil) -> SealError? {
        do throws(SealError) {
            _ = try (sealer ?? self.sealer).open(record)
            return nil
        } catch {
            return error
        }
    }

    @Test(arguments: [0, 1, 1000, 1 << 20])
    func `opens what it sealed`(count: Int) throws {
        var record = record
        record.content = SecretBytes([UInt8](repeating: 1, count: count))
        let sealed = try sealer.seal(record)
        #expect(sealed.sealed.count == count + 33)
        #expect(sealed.sealed[0] == 1)
        #expect(try sealer.open(sealed) == record)
    }

    @Test(arguments: [1023, 1024, 1025, 3000])
    func `opens what it sealed for any number of tenants, and nothing for another one`(count: Int) throws {
        var sealed: [StoredRecord] = []
        for number in 0..<count {
            sealed.append(
                try sealer.seal(
                    OpenRecord(
                        id: RecordID(.credentials, TenantName("t\(number)")!, key: "k"), version: 1,
                        content: SecretBytes(utf8: "\(number)"))))
        }
        for (number, stored) in sealed.enumerated() {
            #expect(try sealer.open(stored).content == SecretBytes(utf8: "\(number)"))
            let moved = StoredRecord(
                id: sealed[(number + 1) % count].id, version: stored.version, sealed: stored.sealed)
            #expect(refusal(moved) == .broken)
        }
    }

    // K19 H046 H048
    @Test func `the sealed form shows nothing of the content and never repeats`() throws {
        var seen: Set<[UInt8]> = []
        for _ in 0..<500 {
            let sealed = try sealer.seal(record).sealed
            #expect(seen.insert(Array(sealed[5..<17])).inserted)
            #expect(!String(decoding: sealed, as: UTF8.self).contains("content"))
        }
    }

    // H049
    @Test func `any flipped bit, missing end or added octet is refused`() throws {
        let good = try sealer.seal(record)
        for index in good.sealed.indices {
            for bit in 0..<8 {
                var altered = good
                altered.sealed[index] ^= 1 << UInt8(bit)
                let error = try #require(refusal(altered))
                switch index {
                case 0: #expect(error == .unknownFormat)
                case 1..<5:
                    guard case .unknownKey = error else {
                        Issue.record("\(error)")
                        continue
                    }
                default: #expect(error == .broken)
                }
            }
            var shortened = good
            shortened.sealed = Array(good.sealed.prefix(index))
            #expect(refusal(shortened) == .broken)
        }
        var longer = good
        longer.sealed.append(0)
        #expect(refusal(longer) == .broken)
    }

    static let alterations: [(String, @Sendable (inout StoredRecord) -> Void)] = [
        ("tenant", { $0.id = RecordID($0.id.kind, TenantName("beta")!, key: $0.id.key) }),
        ("broker's tenant", { $0.id = RecordID($0.id.kind, .broker, key: $0.id.key) }),
        ("key", { $0.id = RecordID($0.id.kind, $0.id.tenant, key: "l") }),
        ("empty key", { $0.id = RecordID($0.id.kind, $0.id.tenant) }),
        ("kind", { $0.id = RecordID(.login, $0.id.tenant, key: $0.id.key) }),
        ("tenant and key run together", { $0.id = RecordID($0.id.kind, TenantName("alph")!, key: "ak") }),
        ("earlier version", { $0.version = 2 }), ("later version", { $0.version = 4 }),
        ("negative version", { $0.version = -3 }), ("look-up digest", { $0.lookup![31] ^= 1 }),
        ("no look-up digest", { $0.lookup = nil }), ("empty look-up digest", { $0.lookup = [] }),
        ("earlier expiry", { $0.expires = Timestamp(milliseconds: 8999) }),
        ("later expiry", { $0.expires = Timestamp(milliseconds: 9001) }), ("no expiry", { $0.expires = nil }),
        ("expiry zero", { $0.expires = Timestamp(milliseconds: 0) }),
    ]

    // H047
    @Test(arguments: alterations.indices)
    func `a record that says something else is refused`(index: Int) throws {
        let (name, alter) = Self.alterations[index]
        var altered = try sealer.seal(record)
        alter(&altered)
        #expect(refusal(altered) == .broken, "\(name)")
    }

    @Test func `what was absent when sealing cannot be added`() throws {
        var bare = record
        bare.lookup = nil
        bare.expires = nil
        let sealed = try sealer.seal(bare)
        #expect(try sealer.open(sealed) == bare)
        var altered = sealed
        altered.lookup = []
        #expect(refusal(altered) == .broken)
        altered = sealed
        altered.expires = Timestamp(milliseconds: 0)
        #expect(refusal(altered) == .broken)
    }

    // H047
    @Test func `contents cannot be swapped between records`() throws {
        var other = record
        other.id = RecordID(.credentials, TenantName("alpha")!, key: "other")
        var first = try sealer.seal(record)
        var second = try sealer.seal(other)
        (first.sealed, second.sealed) = (second.sealed, first.sealed)
        #expect(refusal(first) == .broken)
        #expect(refusal(second) == .broken)
    }

    // H051
    @Test func `an old content put back under the current version is refused`() throws {
        let old = try sealer.seal(record)
        var newer = record
        newer.version = 4
        var current = try sealer.seal(newer)
        current.sealed = old.sealed
        #expect(refusal(current) == .broken)
    }

    // H050
    @Test func `a rotated ring opens both, and seals under its first key`() throws {
        let old = try Keyring.generate(id: "old")
        let new = try Keyring.generate(id: "new")
        let before = Sealer(keyring: try Keyring(parsing: old))
        let during = Sealer(keyring: try Keyring(parsing: new + "," + old))
        let after = Sealer(keyring: try Keyring(parsing: new))
        let sealedBefore = try before.seal(record)
        let sealedDuring = try during.seal(record)
        #expect(try during.open(sealedBefore) == record)
        #expect(try after.open(sealedDuring) == record)
        guard case .unknownKey = refusal(sealedBefore, by: after), case .unknownKey = refusal(sealedDuring, by: before)
        else {
            Issue.record("a key that is not in the ring opened a record")
            return
        }
    }

    // K20
    @Test func `another key under the same id is unknown, and the same key under another id too`() throws {
        let key = try Keyring.generate(id: "main")
        let sealed = try Sealer(keyring: try Keyring(parsing: key)).seal(record)
        for other in [try Keyring.generate(id: "main"), "m" + key] {
            guard case .unknownKey = refusal(sealed, by: Sealer(keyring: try Keyring(parsing: other))) else {
                Issue.record("\(other.prefix(5))")
                continue
            }
        }
    }

    // MARK: Entries of the log

    private let entry = OpenLogEntry(
        tenant: TenantName("alpha")!, key: "k", version: 3, time: Timestamp(milliseconds: 9000),
        content: SecretBytes(utf8: "content"))

    private func refusal(_ entry: StoredLogEntry) -> SealError? {
        do throws(SealError) {
            _ = try sealer.open(entry)
            return nil
        } catch {
            return error
        }
    }

    @Test func `opens an entry that it sealed, and never seals two alike`() throws {
        let sealed = try sealer.seal(entry)
        #expect(try sealer.open(sealed) == entry)
        #expect(try sealer.seal(entry).sealed != sealed.sealed)
        #expect(!String(decoding: sealed.sealed, as: UTF8.self).contains("content"))
    }

    static let entryAlterations: [(String, @Sendable (inout StoredLogEntry) -> Void)] = [
        ("tenant", { $0.tenant = TenantName("beta")! }), ("broker's tenant", { $0.tenant = .broker }),
        ("key", { $0.key = "l" }), ("no key", { $0.key = "" }), ("earlier version", { $0.version = 2 }),
        ("later version", { $0.version = 4 }), ("earlier time", { $0.time = Timestamp(milliseconds: 8999) }),
        ("later time", { $0.time = Timestamp(milliseconds: 9001) }), ("no content", { $0.sealed = [] }),
        ("first octet of the ciphertext", { $0.sealed[17] ^= 1 }),
        ("end", { $0.sealed[$0.sealed.count - 1] ^= 0x80 }), ("missing end", { $0.sealed.removeLast() }),
    ]

    @Test(arguments: entryAlterations.indices)
    func `an entry that says something else is refused`(index: Int) throws {
        let (name, alter) = Self.entryAlterations[index]
        var altered = try sealer.seal(entry)
        alter(&altered)
        #expect(refusal(altered) == .broken, "\(name)")
    }

    // H047
    @Test func `an entry does not pass for a record, nor a record for an entry`() throws {
        let sealedEntry = try sealer.seal(entry)
        for kind in RecordKind.allCases {
            #expect(kind.rawValue != "event")
            let record = StoredRecord(
                id: RecordID(kind, entry.tenant, key: "k"), version: 3, sealed: sealedEntry.sealed,
                expires: entry.time)
            #expect(refusal(record) == .broken)
            let open = OpenRecord(
                id: RecordID(kind, entry.tenant, key: "k"), version: 3, content: entry.content, expires: entry.time)
            var forged = sealedEntry
            forged.sealed = try sealer.seal(open).sealed
            #expect(refusal(forged) == .broken)
        }
    }

    @Test func `the seal of a record holds whatever its due mark`() throws {
        var record = record
        record.due = Timestamp(seconds: 4)
        var sealed = try sealer.seal(record)
        #expect(sealed.due == Timestamp(seconds: 4))
        #expect(try sealer.open(sealed) == record)
        sealed.due = nil
        record.due = nil
        #expect(try sealer.open(sealed) == record)
    }
}
