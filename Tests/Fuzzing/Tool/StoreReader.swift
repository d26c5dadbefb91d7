import CredentialStore
import Cryptography
import FoundationEssentials
import Glibc
import OAuth

/// What a start, an examination and a repair make of an embedded store of which one file has other content.
struct StoreReader {
    static let shared = StoreReader()

    private typealias Files = [String: [UInt8]]

    /// The first octet of an input is the position of the file's name here, with `keepsDigests` added or not.
    private static let names = [
        "commits", "catalog", "log/state", "log/0000000000000000001", "plain/credentials/acme/=user-1",
        "indexed/api-key/acme/=key", "format", "master.keys",
    ]
    /// Most inputs have their digests put right, as someone who forges a file would do; these stay as they are.
    private static let keepsDigests: UInt8 = 8
    /// The length of the log of commits. A shorter one counts as truncated.
    private static let logCount = 256 << 10

    /// The directory that the two others are in, and nothing else.
    private let parent: String
    /// Where the store is, and where it is repaired to.
    private let path: String
    private let target: String
    private let files: Files

    private init() {
        parent = "\(FileManager.default.temporaryDirectory.path)/fuzz-store-\(getpid())"
        path = parent + "/store"
        target = parent + "/repaired"
        Self.remove(parent)
        Self.makeDirectory(parent)
        Self.wait { [path] in await Self.make(path) }
        var files: Files = [:]
        for name in (try? FileManager.default.subpathsOfDirectory(atPath: path)) ?? [] {
            guard let content = FileManager.default.contents(atPath: "\(path)/\(name)") else { continue }
            files[name] = Array(content)
        }
        require(Self.names.dropLast().allSatisfy { files[$0] != nil }, "the store has other files: \(files.keys)")
        self.files = files
    }

    /// A store with a record in each tree, and events of two commits.
    private static func make(_ path: String) async {
        guard let tenant = TenantName("acme") else { fail("no tenant has the name") }
        let user = StoredRecord(id: RecordID(.credentials, tenant, key: "user-1"), version: 1, content: [1, 2, 3])
        let key = StoredRecord(
            id: RecordID(.apiKey, tenant, key: "key"), version: 1, content: [4], lookup: SHA256.digest([5]))
        do {
            let store = try await FileRecordStore(directory: path)
            try await store.commit([.insert(user), .append(entry(tenant, "first"))])
            try await store.commit([.insert(key), .append(entry(tenant, "second")), .append(entry(tenant, "third"))])
            await store.close()
        } catch {
            fail("no store can be made in \(path): \(error)")
        }
    }

    private static func entry(_ tenant: TenantName, _ key: String) -> StoredLogEntry {
        StoredLogEntry(tenant: tenant, key: key, version: 1, time: Timestamp(seconds: 1), content: [6])
    }

    func read(_ bytes: [UInt8]) {
        guard let first = bytes.first else { return }
        let name = Self.names[Int(first) % Self.names.count]
        var content = Array(bytes.dropFirst())
        if first & Self.keepsDigests == 0 { Digests.mend(&content, ofLog: name == "commits") }
        if name == "commits", content.count < Self.logCount {
            content += [UInt8](repeating: 0, count: Self.logCount - content.count)
        }
        var files = files
        files[name] = content
        put(files)
        Self.wait { [self] in await examine() }
        let names = (try? FileManager.default.contentsOfDirectory(atPath: parent)) ?? []
        require(Set(names).isSubset(of: ["store", "repaired"]), "files were written outside of the store: \(names)")
    }

    // MARK: What must hold

    private func examine() async {
        var isDamaged: Bool?
        do throws(FileStoreError) {
            let examination = try StoreExamination(path)
            examination.examine(with: nil, usesOwnKeys: false)
            isDamaged = examination.isDamaged
            Self.remove(target)
            do throws(RepairError) {
                try examination.repair(into: target)
            } catch {
                fail("the store is not repaired: \(error)")
            }
        } catch {
            // A store of a later version. Nothing can be said about its files.
            guard case .newerFormat = error else { fail("the store is not examined: \(error)") }
        }
        let contents = await Self.contents(path)
        if contents != nil, isDamaged != false { fail("a store opens that an examination calls damaged") }
        if contents == nil, isDamaged == false { fail("a store does not open that an examination calls intact") }
        if isDamaged != nil {
            guard let repaired = await Self.contents(target) else { fail("a repaired store does not open") }
            if let contents { require(repaired.records == contents.records, "a repair of an intact store changes it") }
        }
    }

    fileprivate struct Contents: Equatable {
        var records: [StoredRecord] = []
        var entries: [PlacedLogEntry] = []
        var bounds = LogBounds()
    }

    /// What a store has that was opened, written to, closed, and opened again; nil for one that a start refuses.
    private static func contents(_ path: String) async -> Contents? {
        let store: FileRecordStore
        do throws(FileStoreError) {
            store = try await FileRecordStore(directory: path)
            // The program reads the keys before anything else, and does not start without them.
            if let keys = try await store.secret(.masterKeys), keys.isEmpty {
                await store.close()
                return nil
            }
        } catch {
            return nil
        }
        do {
            var contents = try await Contents(of: store)
            guard let tenant = TenantName("other") else { fail("no tenant has the name") }
            let new = StoredRecord(id: RecordID(.credentials, tenant, key: "new"), version: 1, content: [7])
            if !contents.records.contains(where: { $0.id == new.id }) {
                try await store.commit([.insert(new), .append(entry(tenant, "new"))])
                let changed = try await Contents(of: store)
                require(
                    Set(changed.records.map(\.id)) == Set(contents.records.map(\.id) + [new.id]),
                    "a commit did more than it should")
                contents = changed
            }
            try await store.check()
            await store.close()
            let again = try await FileRecordStore(directory: path)
            let found = try await Contents(of: again)
            await again.close()
            require(found == contents, "opened again, the store has other contents")
            return contents
        } catch {
            fail("a store that opened does not answer: \(error)")
        }
    }

    // MARK: Files

    /// Replaces the directory with these files.
    private func put(_ files: Files) {
        Self.remove(path)
        Self.makeDirectory(path)
        // A store has these without files in them, too.
        for name in ["plain", "indexed", "new", "log"] { Self.makeDirectory("\(path)/\(name)") }
        for (name, bytes) in files {
            var parent = path
            for part in name.split(separator: "/").dropLast() {
                parent += "/\(part)"
                Self.makeDirectory(parent)
            }
            let file = unsafe open("\(path)/\(name)", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0o600)
            require(file >= 0, "\(path)/\(name) cannot be made")
            defer { close(file) }
            let written = unsafe write(file, bytes, bytes.count)
            require(written == bytes.count, "\(path)/\(name) cannot be written")
        }
    }

    private static func makeDirectory(_ path: String) {
        let isMade = unsafe mkdir(path, 0o700) == 0
        require(isMade || errno == EEXIST, "\(path) cannot be made")
    }

    private static func remove(_ path: String) {
        guard FileManager.default.fileExists(atPath: path) else { return }
        do {
            try FileManager.default.removeItem(atPath: path)
        } catch {
            fail("\(path) cannot be removed: \(error)")
        }
    }

    /// Runs a task, and blocks this thread until it has ended.
    private static func wait(_ body: @escaping @Sendable () async -> Void) {
        let isDone = UnsafeMutablePointer<sem_t>.allocate(capacity: 1)
        defer { unsafe isDone.deallocate() }
        _ = unsafe sem_init(isDone, 0, 0)
        nonisolated(unsafe) let signal = unsafe isDone
        Task.detached {
            await body()
            _ = unsafe sem_post(signal)
        }
        while unsafe sem_wait(isDone) == -1 {}
        _ = unsafe sem_destroy(isDone)
    }
}

extension StoreReader.Contents {
    fileprivate init(of store: FileRecordStore) async throws(StoreError) {
        for kind in RecordKind.allCases {
            records += try await store.list(kind, tenant: nil, after: nil, limit: 100_000)
        }
        entries = try await store.entries(after: 0, tenant: nil, limit: 100_000)
        bounds = try await store.logBounds()
    }
}

/// The digests in a store's files, which show what a disk has damaged and not what someone has forged. A file is the digest of
/// what is before it at its end; a file of several frames has the length of each frame, in four octets, before it.
private enum Digests {
    private static let markCount = 4
    private static let lengthCount = 4

    /// Puts them right.
    /// - Parameter ofLog: whether it is the log of commits, whose frames have whole files within.
    static func mend(_ bytes: inout [UInt8], ofLog: Bool) {
        let isOfFrames = bytes.count > lengthCount && hasMark(bytes, at: lengthCount) && !hasMark(bytes, at: 0)
        guard isOfFrames || ofLog else { return mendFrame(&bytes, 0..<bytes.count) }
        var start = 0
        while let count = length(bytes, at: start) {
            let frame = start + lengthCount..<start + lengthCount + count
            if ofLog { mendChanges(&bytes, frame) }
            mendFrame(&bytes, frame)
            start = frame.upperBound
        }
    }

    private static func hasMark(_ bytes: [UInt8], at place: Int) -> Bool {
        bytes.dropFirst(place).starts(with: "TB".utf8)
    }

    /// The length that stands at a place, if that many octets follow.
    private static func length(_ bytes: [UInt8], at place: Int) -> Int? {
        guard place + lengthCount <= bytes.count else { return nil }
        let count = bytes[place..<place + lengthCount].reduce(0) { $0 << 8 | Int($1) }
        return count > 0 && place + lengthCount + count <= bytes.count ? count : nil
    }

    private static func mendFrame(_ bytes: inout [UInt8], _ range: Range<Int>) {
        guard range.count > SHA256.digestCount else { return }
        let content = Array(bytes[range].dropLast(SHA256.digestCount))
        bytes.replaceSubrange(range.upperBound - SHA256.digestCount..<range.upperBound, with: SHA256.digest(content))
    }

    /// Mends the files that the changes of a commit write.
    private static func mendChanges(_ bytes: inout [UInt8], _ frame: Range<Int>) {
        // Behind the mark, the format and the number of the commit.
        var place = frame.lowerBound + markCount + 1 + 8
        let end = frame.upperBound - SHA256.digestCount
        while place < end {
            let code = bytes[place]
            guard let path = length(bytes, at: place + 1) else { return }
            place += 1 + lengthCount + path
            // 2 removes a file, 3 appends to one at an offset, 4 writes one.
            if code == 2 { continue }
            if code == 3 { place += 8 }
            guard let count = length(bytes, at: place), place + lengthCount + count <= end else { return }
            var content = Array(bytes[place + lengthCount..<place + lengthCount + count])
            mend(&content, ofLog: false)
            bytes.replaceSubrange(place + lengthCount..<place + lengthCount + count, with: content)
            place += lengthCount + count
        }
    }
}
