import BrokerTesting
import Cryptography
import FoundationEssentials
import OAuth
import Reactor
import Testing

@testable import CredentialStore

@Suite struct `A file record store` {
    let directory = StoreFixtureDirectory()
    var path: String { directory.path }

    private static let alpha = TenantName("alpha")!
    private let plain = StoredRecord(
        id: RecordID(.credentials, alpha, key: "K"), version: 1, sealed: [1, 2, 3, 4, 5])
    private let indexed = StoredRecord(
        id: RecordID(.login, alpha, key: "l"), version: 1, sealed: [6, 7], lookup: SHA256.digest([1]),
        expires: Timestamp(seconds: 5))

    private func fill() async throws {
        let store = try await FileRecordStore(directory: path)
        try await store.commit([.insert(plain), .insert(indexed)])
        await store.close()
    }

    private func bytes(_ name: String) throws -> [UInt8] {
        Array(try #require(FileManager.default.contents(atPath: path + "/" + name)))
    }

    private func overwrite(_ name: String, _ bytes: [UInt8]) throws {
        #expect(FileManager.default.createFile(atPath: path + "/" + name, contents: Data(bytes)))
    }

    private var plainName: String { RecordPath(.plain, plain.id).text }
    private var indexedName: String { RecordPath(.indexed, indexed.id).text }

    private func refusal() async -> FileStoreError? {
        do throws(FileStoreError) {
            let store = try await FileRecordStore(directory: path)
            await store.close()
            return nil
        } catch {
            return error
        }
    }

    private func damage(_ name: String, _ flaw: FileFlaw) -> FileStoreError {
        .damaged("\(path)/\(name) is damaged: \(flaw.text)")
    }

    private func isDamage(_ error: FileStoreError?, of name: String) -> Bool {
        if case .damaged(let text) = error { text.hasPrefix("\(path)/\(name) is damaged: ") } else { false }
    }

    private func isDamage(_ error: StoreError?, of name: String) -> Bool {
        if case .damaged(let text) = error { text.hasPrefix("\(path)/\(name) is damaged: ") } else { false }
    }

    @Test(arguments: StoreConformance.checks + StoreConformance.durableChecks)
    func `keeps the contract`(check: StoreConformance) async throws {
        try await check.run { try await FileRecordStore(directory: path) }
    }

    @Test func `is its process's only writer`() async throws {
        let store = try await FileRecordStore(directory: path)
        #expect(store.revalidateAfter == nil)
        await store.close()
    }

    // MARK: The directory

    // K14 K17
    @Test func `is for its owner alone`() async throws {
        try await fill()
        func mode(_ path: String) throws -> Int {
            let attributes = try FileManager.default.attributesOfItem(atPath: path)
            return try #require(attributes[.posixPermissions] as? Int)
        }
        #expect(try mode(path) == 0o700)
        let names = try FileManager.default.subpathsOfDirectory(atPath: path)
        #expect(names.contains(plainName))
        #expect(names.contains(indexedName))
        for name in names {
            let attributes = try FileManager.default.attributesOfItem(atPath: path + "/" + name)
            let isDirectory = attributes[.type] as? FileAttributeType == .typeDirectory
            #expect(try mode(path + "/" + name) == (isDirectory ? 0o700 : 0o600), "\(name)")
        }
    }

    @Test(arguments: [0o750, 0o710, 0o701, 0o704, 0o702, 0o720, 0o777])
    func `a directory that others can access is refused`(mode: Int) async throws {
        try FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: false)
        try FileManager.default.setAttributes([.posixPermissions: mode], ofItemAtPath: path)
        #expect(await refusal() == .exposed(directory: path))
        #expect(try FileManager.default.contentsOfDirectory(atPath: path) == [])
        try FileManager.default.setAttributes([.posixPermissions: 0o700], ofItemAtPath: path)
        #expect(await refusal() == nil)
    }

    @Test func `a directory of another user is refused`() async throws {
        try FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: false)
        try FileManager.default.setAttributes([.posixPermissions: 0o700], ofItemAtPath: path)
        let attributes = try FileManager.default.attributesOfItem(atPath: path)
        // Only the superuser can change a directory's owner. For another user the test takes a directory of the
        // superuser.
        if attributes[.ownerAccountID] as? Int == 0 {
            try FileManager.default.setAttributes([.ownerAccountID: 12345], ofItemAtPath: path)
            #expect(await refusal() == .foreignOwner(directory: path))
        } else {
            await #expect(throws: FileStoreError.foreignOwner(directory: "/usr")) {
                try await FileRecordStore(directory: "/usr")
            }
        }
    }

    @Test func `a directory that holds other things is refused and left alone`() async throws {
        try FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: false)
        try FileManager.default.setAttributes([.posixPermissions: 0o700], ofItemAtPath: path)
        try overwrite("letter.txt", [1])
        #expect(await refusal() == .notAStore(directory: path))
        #expect(try FileManager.default.contentsOfDirectory(atPath: path) == ["letter.txt"])
    }

    @Test func `a missing parent or a file in its place is refused`() async throws {
        let missing = path + "/store"
        await #expect(throws: FileStoreError.system(path: missing, SystemError("mkdir", number: 2))) {
            try await FileRecordStore(directory: missing)
        }
        try Data([1]).write(to: URL(filePath: path))
        await #expect(throws: FileStoreError.self) { try await FileRecordStore(directory: path) }
    }

    @Test(arguments: ["/", "//"])
    func `a path may end in slashes`(end: String) async throws {
        let store = try await FileRecordStore(directory: path + end)
        try await store.commit([.insert(plain)])
        await store.close()
        let again = try await FileRecordStore(directory: path)
        #expect(try await again.read(plain.id) == plain)
        await again.close()
    }

    @Test func `a second opener is refused until the first has closed`() async throws {
        let first = try await FileRecordStore(directory: path)
        #expect(await refusal() == .alreadyOpen(directory: path))
        #expect("\(FileStoreError.alreadyOpen(directory: path))" == "\(path) is in use by another process")
        try await first.commit([.insert(plain)])
        await first.close()
        let second = try await FileRecordStore(directory: path)
        #expect(try await second.read(plain.id) == plain)
        await second.close()
    }

    @Test(.timeLimit(.minutes(1))) func `who comes after the close is refused, not kept waiting`() async throws {
        let store = try await FileRecordStore(directory: path)
        await store.close()
        await #expect(throws: StoreError.unavailable) { try await store.read(plain.id) }
        await #expect(throws: StoreError.unavailable) { try await store.commit([.insert(plain)]) }
    }

    @Test func `what a dead process left in the making is cleared away`() async throws {
        try await fill()
        for name in ["1", "2", "leftover"] { try overwrite("new/\(name)", [1, 2, 3]) }
        let store = try await FileRecordStore(directory: path)
        #expect(try FileManager.default.contentsOfDirectory(atPath: path + "/new") == [])
        try await store.commit([.insert(StoredRecord(id: RecordID(.tenant, Self.alpha), version: 1, sealed: [1]))])
        await store.close()
    }

    @Test func `a start reads every record once`() async throws {
        try await fill()
        let due = StoredRecord(id: RecordID(.device, Self.alpha), version: 1, sealed: [1], due: Timestamp(seconds: 4))
        let first = try await FileRecordStore(directory: path)
        try await first.commit([.insert(due)])
        await first.close()
        let disk = StandInDisk()
        let store = try await FileRecordStore(directory: path, fault: disk.fault)
        let read = disk.steps.filter { $0.call == .read }.map(\.path)
        for name in [plainName, indexedName, RecordPath(.indexed, due.id).text] {
            #expect(read.count { $0 == name } == 1, "\(name)")
        }
        await store.close()
    }

    // MARK: Damage

    // T78 K15
    @Test func `any flipped or missing octet of a record is damage`() async throws {
        try await fill()
        let good = try bytes(plainName)
        let store = try await FileRecordStore(directory: path)
        for index in good.indices {
            var altered = good
            altered[index] ^= 0x20
            for bytes in [altered, Array(good.prefix(index))] {
                try overwrite(plainName, bytes)
                let error = await #expect(throws: StoreError.self) { try await store.read(plain.id) }
                #expect(isDamage(error, of: plainName))
            }
        }
        try overwrite(plainName, good + [0])
        await #expect(throws: StoreError.self) { try await store.read(plain.id) }
        await #expect(throws: StoreError.self) {
            try await store.list(.credentials, tenant: nil, after: nil, limit: 1)
        }
        await #expect(throws: StoreError.self) { try await store.commit([.remove(plain.id, version: 1)]) }
        // What the operator can do.
        try await store.commit([.removeAll(Self.alpha)])
        #expect(try await store.read(plain.id) == nil)
        await store.close()
    }

    @Test func `a damaged record that must be read at the start stops it`() async throws {
        try await fill()
        let good = try bytes(indexedName)
        for index in good.indices {
            var altered = good
            altered[index] ^= 1
            try overwrite(indexedName, altered)
            #expect(isDamage(await refusal(), of: indexedName))
        }
        try overwrite(indexedName, good)
        #expect(await refusal() == nil)
    }

    @Test func `a record in another's place is damage`() async throws {
        try await fill()
        let other = RecordID(.credentials, TenantName("alpha")!, key: "k")
        let store = try await FileRecordStore(directory: path)
        try overwrite(RecordPath(.plain, other).text, try bytes(plainName))
        await #expect(throws: StoreError.self) { try await store.read(other) }
        #expect(try await store.read(plain.id) == plain)
        await store.close()
    }

    @Test(arguments: ["note", "=a=01=", "=a=00", "=A", "=a=ff", "=a=0", ".hidden", "=1=01"])
    func `a name that no record has is damage`(name: String) async throws {
        try await fill()
        let odd = RecordPath(.plain, plain.id).directory + "/" + name
        let store = try await FileRecordStore(directory: path)
        try overwrite(odd, [1])
        #expect(try await store.read(plain.id) == plain)
        let error = await #expect(throws: StoreError.self) {
            try await store.list(.credentials, tenant: nil, after: nil, limit: 1)
        }
        #expect(isDamage(error, of: odd))
        await store.close()
        #expect(await refusal() == damage(odd, .unknownName))
    }

    @Test func `a record that vanished while the store was open is damage, not absence`() async throws {
        let store = try await FileRecordStore(directory: path)
        try await store.commit([.insert(indexed)])
        try FileManager.default.removeItem(atPath: path + "/" + indexedName)
        await #expect(throws: StoreError.self) { try await store.read(indexed.id) }
        await #expect(throws: StoreError.self) { try await store.find(.login, lookup: SHA256.digest([1])) }
        await store.close()
    }

    @Test(arguments: [
        ("token-broker records 4\n", true), ("token-broker records 10\n", true), ("token-broker records 3", false),
        ("token-broker records 0\n", false), ("token-broker records\n", false), ("", false), ("other 1\n", false),
        (String(repeating: "x", count: 200), false),
    ])
    func `a directory of another format is refused`(text: String, isNewer: Bool) async throws {
        try await fill()
        try overwrite("format", Array(text.utf8))
        let error = await refusal()
        #expect(isNewer ? error == .newerFormat(directory: path) : isDamage(error, of: "format"))
        try overwrite("format", Array("token-broker records 1\n".utf8))
        #expect(await refusal() == .olderFormat(directory: path))
        try overwrite("format", Array("token-broker records 3\n".utf8))
        #expect(await refusal() == nil)
    }

    @Test func `records without a format file are refused`() async throws {
        try await fill()
        try FileManager.default.removeItem(atPath: path + "/format")
        guard case .damaged = await refusal() else {
            Issue.record("it opened")
            return
        }
    }

    @Test func `a record, commit or log of a newer format is refused as such`() async throws {
        try await fill()
        let entry = StoredLogEntry(tenant: Self.alpha, key: "k", version: 1, time: Timestamp(seconds: 1), sealed: [1])
        let store = try await FileRecordStore(directory: path)
        try await store.commit([.append(entry)])
        await store.close()
        for (name, content) in [
            (plainName, FramedFile.encode(mark: "TBrc", format: 4, [1])),
            ("commits", FramedFile.encodePart(mark: "TBcf", format: 2, [1])),
            ("catalog", FramedFile.encodePart(mark: "TBca", format: 2, [1])),
            ("catalog", FramedFile.encodePart(mark: "TBca", format: 1, [4])),
            ("log/state", FramedFile.encode(mark: "TBls", format: 2, [1])),
            ("log/0000000000000000001", FramedFile.encodePart(mark: "TBle", format: 3, [1])),
        ] {
            let good = try bytes(name)
            try overwrite(name, content)
            #expect(await refusal() == .newerFormat(directory: path), "\(name)")
            try overwrite(name, good)
            #expect(await refusal() == nil)
        }
    }

    @Test func `a record is written in the oldest format that holds it`() async throws {
        let due = StoredRecord(id: RecordID(.device, Self.alpha), version: 1, sealed: [1], due: Timestamp(seconds: 4))
        #expect(RecordFile.encode(plain)[4] == 1)
        #expect(RecordFile.encode(due)[4] == 2)
        #expect(try RecordFile.decode(RecordFile.encode(due), id: due.id) == due)
    }

    @Test(arguments: ["note", "1", "0000000000000000000", "000000000000000000a"])
    func `a name that no segment of the log has is damage`(name: String) async throws {
        try await fill()
        try overwrite("log/" + name, [])
        #expect(await refusal() == damage("log/" + name, .unknownName))
    }

    @Test func `a damaged state of the log stops the start`() async throws {
        let store = try await FileRecordStore(directory: path)
        let entry = StoredLogEntry(tenant: Self.alpha, key: "k", version: 1, time: Timestamp(seconds: 1), sealed: [1])
        try await store.commit([.append(entry)])
        try await store.commit([.removeAll(Self.alpha)])
        await store.close()
        let good = try bytes("log/state")
        for index in good.indices {
            var altered = good
            altered[index] ^= 1
            try overwrite("log/state", altered)
            #expect(isDamage(await refusal(), of: "log/state"))
        }
        try overwrite("log/state", good)
        #expect(await refusal() == nil)
    }

    // MARK: Names

    @Test func `every key has a name of its own that Linux takes`() {
        let long = String(repeating: "Z", count: 200)
        let keys = ["", ".", "..", "~", "~x", "-", "a", "A", "aB", "Ab", "a:b@c_d", "con", long, long.lowercased()]
        var seen: Set<String> = []
        for key in keys {
            let name = RecordPath.name(forKey: key)
            #expect(name.utf8.count <= 255)
            #expect(name.hasPrefix("="))
            #expect(!name.contains("/"))
            #expect(seen.insert(name.lowercased()).inserted)
            #expect(RecordPath.key(named: name) == key)
        }
    }
}
