internal import Glibc
internal import OAuth
internal import Reactor

/// One file of a store's directory, and what is known of it.
package struct ExaminedFile: Sendable, Equatable {
    /// Relative to the directory. A record that is missing from both trees has a path in braces.
    package let path: String
    /// What the file is, for an operator's eyes.
    package let subject: String
    /// Nil when it is whole.
    package let flaw: FileFlaw?
    /// What the damage costs; nil when the file is whole.
    package let loss: String?
}

/// Reads all of a store's directory without changing anything, and says of each file whether it is whole; what is whole
/// can be written as a new store.
///
/// Nobody can use the store meanwhile. Not Sendable. Calls block.
package final class StoreExamination {
    let path: String
    let view: StoreView
    private let directory: StoreDirectory
    private let lock: OwnedDescriptor?
    private let format: (number: Int, flaw: FileFlaw?)

    /// In the order of `examine`.
    package private(set) var files: [ExaminedFile] = []
    /// The records that can be saved.
    private(set) var records: [RecordPath] = []
    private(set) var log = ExaminedLog()
    private(set) var secrets: [StoreSecret] = []

    /// Opens the directory.
    /// - Throws: `.alreadyOpen` while a process uses it; `.notAStore`; `.newerFormat`, which this build cannot judge.
    package init(_ path: String) throws(FileStoreError) {
        self.path = path
        do throws(SystemError) {
            directory = try StoreDirectory(existing: path)
        } catch {
            throw .system(path: path, error)
        }
        view = StoreView(directory)
        let names: [String]
        do throws(SystemError) {
            names = try directory.names(in: ".")
        } catch {
            throw .system(path: path, error)
        }
        let isStore = names.contains(StoreFormat.name) || names.contains(CommitLog.name) || names.contains(Catalog.name)
        let isOwn: Bool
        do throws(SystemError) {
            isOwn = try directory.access().belongsToThisUser
        } catch {
            throw .system(path: path, error)
        }
        // What another user writes as a new store, the service could not use.
        guard isOwn else { throw .foreignOwner(directory: path) }
        guard isStore || names.contains(where: { RecordPath.Tree(rawValue: $0) != nil }) else {
            throw .notAStore(directory: path)
        }
        do throws(SystemError) {
            lock = try directory.readersLock(StoreFormat.lockName)
        } catch {
            if error.number == EWOULDBLOCK { throw .alreadyOpen(directory: path) }
            throw .system(path: path, error)
        }
        format = try Self.format(directory, path)
    }

    private static func format(
        _ directory: StoreDirectory, _ path: String
    ) throws(FileStoreError) -> (number: Int, flaw: FileFlaw?) {
        let bytes: [UInt8]?
        do throws(SystemError) {
            bytes = try directory.read(StoreFormat.name, limit: 100)
        } catch {
            return (StoreFormat.number, .unreadable(error))
        }
        guard let bytes else { return (StoreFormat.number, .missing) }
        guard let number = StoreFormat.parse(bytes) else {
            return (StoreFormat.number, bytes.isEmpty ? .empty : .otherFile)
        }
        if number > StoreFormat.number { throw .newerFormat(directory: path) }
        return (number, nil)
    }

    /// The text of a secret that stands beside the records, without the newline at its end; nil where there is none that
    /// can be read.
    package func secret(_ secret: StoreSecret) -> String? {
        guard let bytes = try? view.read(secret.rawValue), let text = String(validating: bytes, as: UTF8.self) else {
            return nil
        }
        let line = text.prefix { !$0.isNewline }
        return line.isEmpty ? nil : String(line)
    }

    /// Whether anything is damaged. To be asked after `examine`.
    package var isDamaged: Bool { files.contains { $0.flaw != nil } }

    /// How many records can be saved.
    package var savableCount: Int { records.count }

    /// Looks at every file. To be called once.
    /// - Parameters:
    ///   - keyring: what opens the records; nil where there is none, and only their checksums are looked at.
    ///   - usesOwnKeys: whether the keys stand in the directory.
    package func examine(with keyring: Keyring?, usesOwnKeys: Bool) {
        note(StoreFormat.name, "the number of the store's format", format.flaw, "nothing: it is written anew")
        examineSecrets(keyring, usesOwnKeys)
        examineCommits()
        let catalog = examineCatalog()
        examineRecords(keyring, catalog)
        log.examine(view, catalog: catalog, requiresState: format.number == StoreFormat.number)
        files += log.files
    }

    private func note(_ path: String, _ subject: String, _ flaw: FileFlaw?, _ loss: String) {
        files.append(ExaminedFile(path: path, subject: subject, flaw: flaw, loss: flaw == nil ? nil : loss))
    }

    private func examineSecrets(_ keyring: Keyring?, _ usesOwnKeys: Bool) {
        for secret in StoreSecret.allCases {
            let isPresent = (try? directory.exists(secret.rawValue)) ?? true
            switch secret {
            case .masterKeys:
                guard usesOwnKeys || isPresent else { continue }
                let isGood = usesOwnKeys ? keyring != nil : self.secret(secret) != nil
                note(
                    secret.rawValue, "the master keys", isGood ? nil : isPresent ? .noSecret : .missing,
                    "nothing can be opened until the file is put back")
            case .adminKey:
                guard isPresent else { continue }
                note(
                    secret.rawValue, "the operator's API key", self.secret(secret) == nil ? .noSecret : nil,
                    "the key: a start without the file makes another one")
            }
            if isPresent, self.secret(secret) != nil { secrets.append(secret) }
        }
    }

    private func examineCommits() {
        var flaw: FileFlaw?
        do throws(FileFlaw) {
            if let bytes = try view.read(CommitLog.name) {
                let read = CommitLog.decode(bytes)
                flaw = read.flaw
                // Cut off behind the last frame, nothing is missing.
                view.make(read.commits, isCertain: flaw == nil || flaw == .truncated)
            } else {
                flaw = .missing
            }
        } catch {
            flaw = error
        }
        note(
            CommitLog.name, "the commits that may not be at their places yet", flaw,
            "what was written last, where the power failed as well; otherwise nothing")
    }

    private func examineCatalog() -> Catalog.Content? {
        if format.number < StoreFormat.number { return nil }
        var content: Catalog.Content?
        var flaw: FileFlaw?
        do throws(FileFlaw) {
            content = try Catalog.decode(try view.read(Catalog.name))
        } catch {
            flaw = error
        }
        note(Catalog.name, "the list of the records", flaw, "records that are missing as well are not told of")
        return content
    }

    private func examineRecords(_ keyring: Keyring?, _ catalog: Catalog.Content?) {
        var missing = catalog?.records ?? []
        var holders: [LookupKey: RecordID] = [:]
        var found: [RecordID: (version: Int64, place: RecordPath)] = [:]
        let sealer = keyring.map { Sealer(keyring: $0) }
        for (path, place) in recordPaths() {
            guard let place else {
                note(path, "an unknown file", .unknownName, "nothing: no record has this name")
                continue
            }
            missing.remove(place.id)
            var flaw: FileFlaw?
            do throws(FileFlaw) {
                let record = try Self.record(at: place, in: view)
                if let sealer { try Self.open(record, with: sealer) }
                if let catalog, !catalog.records.contains(place.id) { throw .uncatalogued }
                if let other = found[place.id] {
                    // Of a record that stands twice the later version counts.
                    if record.version <= other.version { throw .duplicate }
                    remove(other.place)
                } else if let lookup = record.lookup {
                    let key = LookupKey(kind: place.id.kind, digest: lookup)
                    guard holders.updateValue(place.id, forKey: key) == nil else { throw .duplicate }
                }
                found[place.id] = (record.version, place)
                records.append(place)
            } catch {
                flaw = error
            }
            let isCopy = flaw == .duplicate || flaw == .uncatalogued
            note(place.text, place.id.text, flaw, isCopy ? Self.copyLoss : place.id.loss)
        }
        for id in missing.sorted() { note(RecordPath.eitherTree(id), id.text, .missing, id.loss) }
    }

    private static let copyLoss = "nothing that counted"

    /// Takes back that a record can be saved.
    private func remove(_ place: RecordPath) {
        records.removeAll { $0 == place }
        for (index, file) in files.enumerated() where file.path.utf8.elementsEqual(place.text.utf8) {
            files[index] = ExaminedFile(
                path: file.path, subject: file.subject, flaw: .duplicate, loss: Self.copyLoss)
        }
    }

    /// Every file below the trees, with nil for one that cannot be a record's.
    private func recordPaths() -> [(path: String, place: RecordPath?)] {
        var paths: [(String, RecordPath?)] = []
        func names(_ path: String, isWanted: (String) -> Bool) -> [String] {
            let names: [String]
            do throws(FileFlaw) {
                names = try view.names(in: path)
            } catch {
                note(path, "a directory of records", error, "all records in it")
                return []
            }
            for name in names where !isWanted(name) { paths.append(("\(path)/\(name)", nil)) }
            return names.filter(isWanted)
        }
        for tree in [RecordPath.Tree.indexed, .plain] {
            for kind in names(tree.rawValue, isWanted: { RecordKind(rawValue: $0) != nil }) {
                let parent = "\(tree.rawValue)/\(kind)"
                for tenant in names(parent, isWanted: { RecordPath.tenant(named: $0) != nil }) {
                    for name in names("\(parent)/\(tenant)", isWanted: { RecordPath.key(named: $0) != nil }) {
                        let path = "\(parent)/\(tenant)/\(name)"
                        paths.append((path, RecordPath(parsing: path)))
                    }
                }
            }
        }
        return paths
    }

    static func record(at place: RecordPath, in view: StoreView) throws(FileFlaw) -> StoredRecord {
        guard let bytes = try view.read(place.text) else { throw .missing }
        let record: StoredRecord
        do throws(FramedFile.Failure) {
            record = try RecordFile.decode(bytes, id: place.id)
        } catch {
            throw RecordFile.flaw(error, of: bytes)
        }
        guard RecordPath(for: record) == place else { throw .otherFile }
        return record
    }

    private static func open(_ record: StoredRecord, with sealer: Sealer) throws(FileFlaw) {
        do throws(SealError) {
            _ = try sealer.open(record)
        } catch {
            switch error {
            case .unknownFormat: throw .newerFormat
            case .unknownKey(let identity): throw .unknownKey(identity)
            case .broken: throw .brokenSeal
            }
        }
    }
}

extension RecordID {
    /// What it costs that the record cannot be read.
    fileprivate var loss: String {
        switch kind {
        case .tenant: "tenant \(tenant) is unknown until its configuration is put again"
        case .apiKey: "API key \(key) of tenant \(tenant) is no longer valid; its service needs a new one"
        case .credentials: "the login under storage key \(key) of tenant \(tenant): that user must log in again"
        case .keyCheck: "nothing: a start writes it again, and cannot tell before that it has another master key"
        case .login, .device: "a login of tenant \(tenant) that was under way; it must begin again"
        case .quarantine:
            "credentials that a provider had ended, under storage key \(key) of tenant \(tenant); they cannot be restored"
        case .trouble: "nothing: it is written again when a renewal fails"
        case .unpublished:
            "what a provider granted and the database does not have: the user under storage key \(key) of tenant "
                + "\(tenant) may have to log in again"
        case .process: "nothing but a few seconds: other replicas wait for the leases of the process that died"
        case .granted:
            "nothing, unless the database goes back by some minutes: then the user under storage key \(key) of tenant "
                + "\(tenant) may have to log in again"
        case .lineage: "nothing: a start writes it again"
        }
    }
}
