import BrokerTesting
import Cryptography
import FoundationEssentials
import Glibc
import OAuth
import Testing

@testable import CredentialStore

/// Damages every file of a store in turn, in each way in which files get damaged.
@Suite struct `A damaged file store` {
    typealias Files = [String: [UInt8]]

    enum Damage: CaseIterable, Sendable {
        case truncated, flipped, emptied, replaced, missing
    }

    private static let alpha = TenantName("alpha")!
    private static let beta = TenantName("beta")!
    private static let keyring = try! Keyring(parsing: BrokerHarness.masterKeys)

    private static func record(
        _ kind: RecordKind, _ tenant: TenantName, _ key: String, lookup: UInt8? = nil, expires: Timestamp? = nil
    ) -> OpenRecord {
        OpenRecord(
            id: RecordID(kind, tenant, key: key), version: 1, content: SecretBytes(utf8: "content of \(key)"),
            lookup: lookup.map { SHA256.digest([$0]) }, expires: expires)
    }

    private static let records = [
        record(.tenant, alpha, ""), record(.credentials, alpha, "User-1"), record(.credentials, alpha, "user-2"),
        record(.credentials, beta, "user-1"), record(.apiKey, alpha, "key", lookup: 1),
        record(.apiKey, beta, "key", lookup: 2), record(.login, alpha, "login", lookup: 3, expires: .latest),
        record(.quarantine, alpha, "user-3", expires: .latest), record(.unpublished, beta, "user-9"),
    ]

    private static func entry(_ index: Int) -> VaultChange {
        .append(
            OpenLogEntry(
                tenant: index % 2 == 0 ? alpha : beta, key: "\(index)", version: 1, time: Timestamp(seconds: 1),
                content: SecretBytes([UInt8](repeating: 5, count: 300_000))))
    }

    /// A store whose last process was killed, so that the write-ahead log contains commits, and whose log has several
    /// segments.
    private func make(_ directory: StoreFixtureDirectory) async throws -> StoreContents {
        let vault = Vault(store: try await FileRecordStore(directory: directory.path), keyring: Self.keyring)
        try await vault.unlock()
        for record in Self.records { try await vault.commit([.insert(record)]) }
        for index in 0..<7 { try await vault.commit([Self.entry(index)]) }
        let first = try await vault.read(Self.records[1].id)
        try await vault.commit([
            .claim(Self.records[2].id, version: 1, holder: "h", replacing: nil, for: .seconds(8)),
            .require(try #require(first).id),
        ])
        var contents = try await StoreContents(of: vault.store)
        // To the next process the lease has expired.
        for index in contents.records.indices { contents.records[index].lease?.remaining = .zero }
        // A kill leaves the files as they are before the close.
        let files = try Self.files(directory)
        await vault.close()
        try Self.put(files, directory)
        return contents
    }

    static func files(_ directory: StoreFixtureDirectory) throws -> Files {
        var files: Files = [:]
        for name in try FileManager.default.subpathsOfDirectory(atPath: directory.path) {
            let attributes = try FileManager.default.attributesOfItem(atPath: directory.path + "/" + name)
            guard attributes[.type] as? FileAttributeType == .typeRegular else { continue }
            files[name] = Array(try #require(FileManager.default.contents(atPath: directory.path + "/" + name)))
        }
        return files
    }

    /// Replaces the content of the directory with these files.
    static func put(_ files: Files, _ directory: StoreFixtureDirectory) throws {
        if FileManager.default.fileExists(atPath: directory.path) {
            try FileManager.default.removeItem(atPath: directory.path)
        }
        let owner: [FileAttributeKey: Any] = [.posixPermissions: 0o700]
        for name in ["", "plain", "indexed", "new", "log"] {
            try FileManager.default.createDirectory(
                atPath: directory.path + "/" + name, withIntermediateDirectories: true, attributes: owner)
        }
        for (name, bytes) in files {
            let file = directory.path + "/" + name
            let parent = file.split(separator: "/", omittingEmptySubsequences: false).dropLast().joined(separator: "/")
            try FileManager.default.createDirectory(
                atPath: parent, withIntermediateDirectories: true, attributes: owner)
            #expect(FileManager.default.createFile(atPath: file, contents: Data(bytes)))
        }
    }

    static func damaged(_ files: Files, _ name: String, _ damage: Damage) -> Files {
        var files = files
        let bytes = files[name] ?? []
        switch damage {
        case .truncated: files[name] = bytes.dropLast()
        case .flipped: if !bytes.isEmpty { files[name]?[bytes.count / 2] ^= 1 }
        case .emptied: files[name] = []
        case .replaced:
            // A file of the same kind if there is one.
            let parent = name.prefix { $0 != "/" }
            let other = files.keys.sorted().first { $0 != name && $0.hasPrefix(parent) } ?? "log/state"
            files[name] = files[other]
        case .missing: files[name] = nil
        }
        return files
    }

    private func start(_ directory: StoreFixtureDirectory) async throws -> (StoreContents?, String?) {
        let store: FileRecordStore
        do throws(FileStoreError) {
            store = try await FileRecordStore(directory: directory.path)
        } catch {
            guard case .damaged(let text) = error else { throw error }
            return (nil, text)
        }
        let contents = try await StoreContents(of: store)
        await store.close()
        return (contents, nil)
    }

    private func examine(_ directory: StoreFixtureDirectory) throws -> StoreExamination {
        let examination = try StoreExamination(directory.path)
        examination.examine(with: Self.keyring, usesOwnKeys: false)
        return examination
    }

    /// The files of a store that was closed, and of a store whose process was killed.
    private func stores(_ directory: StoreFixtureDirectory) async throws -> [(files: Files, contents: StoreContents)] {
        let contents = try await make(directory)
        let killed = try Self.files(directory)
        let (settled, _) = try await start(directory)
        #expect(settled == contents)
        return [(killed, contents), (try Self.files(directory), contents)]
    }

    @Test(arguments: Damage.allCases)
    func `is refused at the start, examined and repaired, whichever file it is`(damage: Damage) async throws {
        let directory = StoreFixtureDirectory(isInMemory: true)
        let scratch = StoreFixtureDirectory(isInMemory: true)
        let target = StoreFixtureDirectory(isInMemory: true)
        for (isSettled, store) in zip([false, true], try await stores(directory)) {
            for name in store.files.keys.sorted() {
                let broken = Self.damaged(store.files, name, damage)
                try Self.put(broken, scratch)
                let examination = try examine(scratch)
                let flawed = examination.files.filter { $0.flaw != nil }
                let savable = examination.records.count
                try examination.repair(into: target.path)
                #expect(try Self.files(scratch) == broken, "the examination changed something: \(name)")
                // The examination must have released its lock before the start.
                try Self.put(broken, scratch)
                let (contents, refusal) = try await start(scratch)
                if let contents {
                    // Nothing was lost: the file contained only the lock, reserved space, or changes that had been made already.
                    #expect(contents == store.contents, "\(name)")
                    #expect(["lock", "commits", "reserve"].contains(name) || !isSettled, "\(name)")
                    #expect(flawed == [], "\(name)")
                } else {
                    let text = try #require(refusal)
                    #expect(text.contains("is damaged: "), "\(text)")
                    let isNamed = flawed.contains { text.hasPrefix("\(scratch.path)/\($0.path) is damaged: ") }
                    #expect(isNamed, "\(name): \(text), \(flawed)")
                    #expect(Self.isAbout(name, flawed), "\(name): \(flawed)")
                }
                // The repaired store starts, and the intact records are unchanged.
                let (repaired, fault) = try await start(target)
                let saved = try #require(repaired, "\(name): \(fault ?? "")")
                #expect(saved.records.count == savable)
                let lost = store.contents.records.filter { !saved.records.contains($0) }
                let isRecord = RecordPath(parsing: name) != nil
                #expect(lost.count <= (isRecord ? 1 : 0), "\(name): \(lost.map(\.id.text))")
                #expect(saved.records.allSatisfy { store.contents.records.contains($0) })
                #expect(saved.log.allSatisfy { store.contents.log.contains($0) })
                if !name.hasPrefix("log/"), name != "commits" { #expect(saved.log == store.contents.log, "\(name)") }
                #expect(saved.bounds.last >= store.contents.bounds.last, "a sequence may be given twice: \(name)")
                try await Self.use(target)
                try FileManager.default.removeItem(atPath: target.path)
            }
        }
    }

    /// Whether the flaws name the damaged file. A missing record may be named by both trees.
    private static func isAbout(_ name: String, _ flawed: [ExaminedFile]) -> Bool {
        flawed.contains { file in
            file.path == name || RecordPath(parsing: name).map { file.path == RecordPath.eitherTree($0.id) } ?? false
        }
    }

    /// Checks that the store can be written to, read and opened again.
    private static func use(_ directory: StoreFixtureDirectory) async throws {
        let vault = Vault(store: try await FileRecordStore(directory: directory.path), keyring: keyring)
        try await vault.unlock()
        for kind in RecordKind.allCases { _ = try await vault.list(kind, tenant: nil, limit: 100) }
        let new = record(.credentials, alpha, "new")
        let last = try await vault.logBounds().last
        try await vault.commit([.insert(new), entry(1)])
        #expect(try await vault.logBounds().last == last + 1)
        await vault.close()
        let again = Vault(store: try await FileRecordStore(directory: directory.path), keyring: keyring)
        #expect(try await again.read(new.id) == new)
        await again.close()
    }

    @Test func `whose record was damaged says which record of which tenant, and what that costs`() async throws {
        let directory = StoreFixtureDirectory(isInMemory: true)
        _ = try await make(directory)
        let name = "plain/credentials/alpha/=user-1=01"
        let files = try Self.files(directory)
        for (damage, text) in [
            (Damage.truncated, "it is truncated"), (.flipped, "its checksum is wrong"), (.emptied, "it is empty"),
        ] {
            // After a kill, the recovery would write the file again.
            var broken = Self.damaged(files, name, damage)
            broken["commits"] = CommitLog.empty
            try Self.put(broken, directory)
            let (_, refusal) = try await start(directory)
            #expect(
                refusal == "\(directory.path)/\(name) is damaged: \(text) (the credentials record 'User-1' of alpha)")
            let file = try #require(try examine(directory).files.first { $0.path == name })
            #expect(file.flaw?.text == text)
            #expect(file.subject == "the credentials record 'User-1' of alpha")
            #expect(file.loss == "the login under storage key User-1 of tenant alpha: that user must log in again")
        }
        try Self.put(Self.damaged(files, name, .missing), directory)
    }

    @Test func `is not examined while a process uses it, nor opened while it is examined`() async throws {
        let directory = StoreFixtureDirectory(isInMemory: true)
        let store = try await FileRecordStore(directory: directory.path)
        #expect(throws: FileStoreError.alreadyOpen(directory: directory.path)) {
            try StoreExamination(directory.path)
        }
        await store.close()
        let examination = try StoreExamination(directory.path)
        await #expect(throws: FileStoreError.alreadyOpen(directory: directory.path)) {
            try await FileRecordStore(directory: directory.path)
        }
        examination.examine(with: Self.keyring, usesOwnKeys: false)
        #expect(!examination.isDamaged)
    }

    @Test func `a directory that is missing, or no store, is not examined and not made`() throws {
        let directory = StoreFixtureDirectory(isInMemory: true)
        #expect(throws: FileStoreError.self) { try StoreExamination(directory.path) }
        #expect(!FileManager.default.fileExists(atPath: directory.path))
        try FileManager.default.createDirectory(atPath: directory.path, withIntermediateDirectories: false)
        #expect(throws: FileStoreError.notAStore(directory: directory.path)) { try StoreExamination(directory.path) }
    }

    @Test func `a record that the configured keys do not open is told of, and left out of a repair`() async throws {
        let directory = StoreFixtureDirectory(isInMemory: true)
        let target = StoreFixtureDirectory(isInMemory: true)
        let both = try Keyring(parsing: "k9:\(Base64.encode((1...32).map { UInt8($0) })),\(BrokerHarness.masterKeys)")
        let store = try await FileRecordStore(directory: directory.path)
        try await Vault(store: store, keyring: Self.keyring).commit([.insert(Self.records[1])])
        let vault = Vault(store: store, keyring: both)
        try await vault.commit([.insert(Self.records[2])])
        await vault.close()
        let examination = try examine(directory)
        let flawed = examination.files.filter { $0.flaw != nil }
        #expect(flawed.map(\.flaw) == [.unknownKey(both.primary.identity)])
        #expect(flawed.map(\.path) == ["plain/credentials/alpha/=user-2"])
        try examination.repair(into: target.path)
        #expect(try await start(target).0?.records.map(\.id) == [Self.records[1].id])
    }

    @Test func `a damaged chain of the audit log is told of, and copied by a repair as it is`() async throws {
        let directory = StoreFixtureDirectory(isInMemory: true)
        let target = StoreFixtureDirectory(isInMemory: true)
        let store = try await FileRecordStore(directory: directory.path)
        for block in [AuditBlock.sample("a-1", 1), .sample("a-1", 2, 3), .sample("b-1", 1)] {
            try await store.commit([.audit(block)])
        }
        await store.close()
        let whole = try Self.files(directory)
        let broken = Self.damaged(whole, "audit/a-1", .truncated)
        try Self.put(broken, directory)
        let examination = try examine(directory)
        #expect(examination.files.filter { $0.flaw != nil }.map(\.path) == ["audit/a-1"])
        #expect(examination.files.contains { $0.path == "audit/b-1" && $0.flaw == nil })
        try examination.repair(into: target.path)
        #expect(try Self.files(target)["audit/a-1"] == broken["audit/a-1"])
        #expect(try Self.files(target)["audit/b-1"] == whole["audit/b-1"])
    }

    // MARK: Repair

    @Test func `is repaired in one step, whichever step of it fails or is the last`() async throws {
        let directory = StoreFixtureDirectory(isInMemory: true)
        _ = try await make(directory)
        try Self.put(
            Self.damaged(try Self.files(directory), "plain/credentials/beta/=user-1", .flipped), directory)
        let examination = try examine(directory)
        for place in 0... {
            let target = StoreFixtureDirectory(isInMemory: true)
            let disk = StandInDisk()
            disk.fail(place..<Int.max, number: EIO)
            do throws(RepairError) {
                try examination.repair(into: target.path, fault: disk.fault)
            } catch {
                guard case .system = error else { throw error }
            }
            if FileManager.default.fileExists(atPath: target.path) {
                #expect(try await start(target).0?.records.count == examination.records.count)
            } else {
                #expect(disk.hasFailed)
            }
            let draft = target.path + ".incomplete"
            if FileManager.default.fileExists(atPath: draft) {
                #expect(throws: RepairError.draftExists(path: draft)) { try examination.repair(into: target.path) }
                try FileManager.default.removeItem(atPath: draft)
            }
            if !disk.hasFailed { break }
        }
    }

    @Test func `is repaired neither over something nor inside itself`() async throws {
        let directory = StoreFixtureDirectory(isInMemory: true)
        let target = StoreFixtureDirectory(isInMemory: true)
        _ = try await make(directory)
        let examination = try examine(directory)
        #expect(throws: RepairError.targetExists(path: directory.path)) {
            try examination.repair(into: directory.path + "/")
        }
        for inside in [directory.path + "/new-store", directory.path + "/plain/x"] {
            #expect(throws: RepairError.targetInside(path: inside)) { try examination.repair(into: inside) }
        }
        try examination.repair(into: target.path + "/")
        #expect(throws: RepairError.targetExists(path: target.path)) { try examination.repair(into: target.path) }
        var status = stat()
        #expect(unsafe stat(target.path, &status) == 0)
        #expect(status.st_mode & 0o777 == 0o700)
    }
}
