import Glibc
import OAuth
import Reactor

/// The result of examining one file of a store's directory.
package struct ExaminedFile: Sendable, Equatable {
    /// Relative to the directory. The path of a record that is missing contains both trees in braces.
    package let path: String
    /// The meaning of the file, for operators.
    package let subject: String
    /// Nil when the file is intact.
    package let flaw: FileFlaw?
    /// What is lost with the file, for operators; nil when the file is intact.
    package let loss: String?

    init(_ path: String, subject: String, flaw: FileFlaw?, lossIfDamaged: String) {
        self.path = path
        self.subject = subject
        self.flaw = flaw
        loss = flaw == nil ? nil : lossIfDamaged
    }
}

/// Reads a store's whole directory without changing it, and reports for each file whether it is intact. `repair` writes
/// everything that is intact as a new store.
///
/// No process can open the store meanwhile. Not Sendable. Calls block.
package final class StoreExamination {
    let path: String
    let view: StoreView
    private let directory: StoreDirectory
    private let lock: OwnedDescriptor?
    private let format: (number: Int, flaw: FileFlaw?)

    /// In the order in which `examine` reads them.
    package private(set) var files: [ExaminedFile] = []
    /// The records that can be saved.
    private(set) var records: [RecordPath] = []
    private(set) var log = ExaminedLog()
    private(set) var secrets: [StoreSecret] = []
    /// The files of the audit log that can be read, whether or not they are intact.
    private(set) var audit: [String] = []

    /// Opens the directory.
    /// - Throws: `.alreadyOpen` while a process uses it; `.notAStore`; `.newerFormat`, which this build does not know.
    package init(_ path: String) throws(FileStoreError) {
        self.path = path
        let directory: StoreDirectory
        do throws(SystemError) {
            directory = try StoreDirectory(existing: path)
        } catch {
            throw .system(path: path, error)
        }
        self.directory = directory
        view = StoreView(directory)
        let store = StoreFiles(path: path, directory: directory)
        let names = try store.names(in: ".")
        let isStore = names.contains(StoreFormat.name) || names.contains(CommitLog.name) || names.contains(Catalog.name)
        let isOwn = try store.onDisk { () throws(SystemError) in try directory.access().belongsToThisUser }
        // A store that another user writes could not be used by the service.
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
        format = try Self.format(of: store)
    }

    /// The number of the store's format. A store whose number cannot be read counts as one of the current format.
    private static func format(of store: StoreFiles) throws(FileStoreError) -> (number: Int, flaw: FileFlaw?) {
        let bytes: [UInt8]?
        do throws(SystemError) {
            bytes = try store.directory.read(StoreFormat.name, limit: 100)
        } catch {
            return (StoreFormat.number, .unreadable(error))
        }
        guard let bytes else { return (StoreFormat.number, .missing) }
        guard let number = StoreFormat.parse(bytes) else {
            return (StoreFormat.number, bytes.isEmpty ? .empty : .otherFile)
        }
        if number > StoreFormat.number { throw .newerFormat(directory: store.path) }
        return (number, nil)
    }

    /// The text of a secret beside the records, without the newline at its end; nil when there is none, or when it
    /// cannot be read.
    package func secret(_ secret: StoreSecret) -> String? {
        guard let bytes = try? view.read(secret.rawValue), let text = String(validating: bytes, as: UTF8.self) else {
            return nil
        }
        let line = text.prefix { !$0.isNewline }
        return line.isEmpty ? nil : String(line)
    }

    /// Whether a file is damaged. Valid after `examine`.
    package var isDamaged: Bool { files.contains { $0.flaw != nil } }

    /// How many records can be saved.
    package var savableCount: Int { records.count }

    /// Examines every file. To be called once.
    /// - Parameters:
    ///   - keyring: the keys that open the records; nil to check only the checksums of the records.
    ///   - usesOwnKeys: whether the master keys are in the directory.
    package func examine(with keyring: Keyring?, usesOwnKeys: Bool) {
        note(
            StoreFormat.name, subject: "the number of the store's format", flaw: format.flaw,
            loss: "nothing: it is written anew")
        examineSecrets(keyring, usesOwnKeys: usesOwnKeys)
        examineCommits()
        let catalog = examineCatalog()
        examineRecords(keyring, catalog: catalog)
        log.examine(view, catalog: catalog, requiresState: format.number == StoreFormat.number)
        files += log.files
        examineAudit()
    }

    private func note(_ path: String, subject: String, flaw: FileFlaw?, loss: String) {
        files.append(ExaminedFile(path, subject: subject, flaw: flaw, lossIfDamaged: loss))
    }

    private func examineSecrets(_ keyring: Keyring?, usesOwnKeys: Bool) {
        for secret in StoreSecret.allCases {
            let isPresent = (try? directory.exists(secret.rawValue)) ?? true
            switch secret {
            case .masterKeys:
                guard usesOwnKeys || isPresent else { continue }
                let isGood = usesOwnKeys ? keyring != nil : self.secret(secret) != nil
                note(
                    secret.rawValue, subject: "the master keys",
                    flaw: isGood ? nil : isPresent ? .noSecret : .missing,
                    loss: "no record can be opened until the file is restored")
            case .adminKey:
                guard isPresent else { continue }
                note(
                    secret.rawValue, subject: "the operator's API key",
                    flaw: self.secret(secret) == nil ? .noSecret : nil,
                    loss: "the key: a start without the file generates a new one")
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
                // A file that was truncated behind the last frame lacks no commit.
                view.apply(read.commits, isComplete: flaw == nil || flaw == .truncated)
            } else {
                flaw = .missing
            }
        } catch {
            flaw = error
        }
        note(
            CommitLog.name, subject: "the commits that may not be in their files yet", flaw: flaw,
            loss: "the last commits, if the power failed as well; otherwise nothing")
    }

    private func examineAudit() {
        func examine(_ path: String) throws(FileFlaw) {
            let bytes = try view.read(path) ?? []
            audit.append(path)
            if let flaw = AuditFrame.blocks(of: bytes).flaw { throw flaw }
        }
        let names: [String]
        do throws(FileFlaw) {
            names = try view.names(in: AuditFrame.directoryName)
        } catch {
            return note(
                AuditFrame.directoryName, subject: "the directory of the audit log", flaw: error,
                loss: "the audit log")
        }
        for name in names {
            let path = AuditFrame.path(of: name)
            var flaw: FileFlaw?
            do throws(FileFlaw) {
                try examine(path)
            } catch {
                flaw = error
            }
            note(
                path, subject: "a chain of the audit log", flaw: flaw,
                loss: "entries behind the flaw; a repair copies the file as it is")
        }
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
        note(
            Catalog.name, subject: "the list of the records", flaw: flaw,
            loss: "nothing, but missing records are not noticed")
        return content
    }

    private func examineRecords(_ keyring: Keyring?, catalog: Catalog.Content?) {
        var missing = catalog?.records ?? []
        var holders: [LookupKey: RecordID] = [:]
        var found: [RecordID: (version: Int64, place: RecordPath)] = [:]
        let sealer = keyring.map { Sealer(keyring: $0) }
        for (path, place) in recordPaths() {
            guard let place else {
                note(
                    path, subject: "an unknown file", flaw: .unknownName, loss: "nothing: no record has this name")
                continue
            }
            missing.remove(place.id)
            var flaw: FileFlaw?
            do throws(FileFlaw) {
                let record = try Self.record(at: place, in: view)
                if let sealer { try Self.open(record, with: sealer) }
                if let catalog, !catalog.records.contains(place.id) { throw .uncatalogued }
                if let other = found[place.id] {
                    // Of two files with the same record, the one with the higher version counts.
                    if record.version <= other.version { throw .duplicate }
                    markDuplicate(other.place)
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
            note(place.text, subject: place.id.text, flaw: flaw, loss: isCopy ? Self.copyLoss : place.id.loss)
        }
        for id in missing.sorted() {
            note(RecordPath.eitherTree(id), subject: id.text, flaw: .missing, loss: id.loss)
        }
    }

    private static let copyLoss = "nothing: the copy did not count"

    /// Marks the file of a record as a duplicate that is not saved.
    private func markDuplicate(_ place: RecordPath) {
        records.removeAll { $0 == place }
        for (index, file) in files.enumerated() where file.path.utf8.elementsEqual(place.text.utf8) {
            files[index] = ExaminedFile(
                file.path, subject: file.subject, flaw: .duplicate, lossIfDamaged: Self.copyLoss)
        }
    }

    /// All files below the trees. The place is nil for a file whose path no record can have.
    private func recordPaths() -> [(path: String, place: RecordPath?)] {
        var paths: [(String, RecordPath?)] = []
        func names(_ path: String, isWanted: (String) -> Bool) -> [String] {
            let names: [String]
            do throws(FileFlaw) {
                names = try view.names(in: path)
            } catch {
                note(path, subject: "a directory of records", flaw: error, loss: "all records in it")
                return []
            }
            for name in names where !isWanted(name) { paths.append(("\(path)/\(name)", nil)) }
            return names.filter(isWanted)
        }
        for tree in [RecordPath.Tree.indexed, .plain] {
            for kind in names(tree.rawValue, isWanted: { RecordKind(rawValue: $0) != nil }) {
                let parent = "\(tree.rawValue)/\(kind)"
                for tenant in names(parent, isWanted: { TenantName(stored: $0) != nil }) {
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
    /// What is lost with the record, for operators.
    fileprivate var loss: String {
        switch kind {
        case .tenant: "tenant \(tenant) is unknown until its configuration is stored again"
        case .apiKey where tenant == .broker:
            "a secret of API key \(apiKeyID), which is one of several tenants, is no longer valid; its service needs a new one"
        case .apiKey where isOfEarlierSecret:
            "the secret that API key \(apiKeyID) of tenant \(tenant) had before its rotation; its service needs the new one"
        case .apiKey: "API key \(key) of tenant \(tenant) is no longer valid; its service needs a new one"
        case .credentials: "the login under storage key \(key) of tenant \(tenant): that user must log in again"
        case .callerIdentity:
            "that an API key had an identity; a certificate with that name and another one may stand for another key"
        case .keyCheck: "nothing: a start writes it again, but cannot detect a wrong master key before"
        case .login, .device: "a pending login of tenant \(tenant); it must begin again"
        case .quarantine:
            "credentials that a provider had ended, under storage key \(key) of tenant \(tenant); they cannot be restored"
        case .aside:
            "a refresh token that an import into tenant \(tenant) has put aside: if the line's own is spent, its user must "
                + "log in again"
        case .revocation:
            "a revocation that was to be tried again: the session of a user of tenant \(tenant) who has logged out may live "
                + "on at the provider"
        case .trouble: "nothing: it is written again when a renewal fails"
        case .unpublished:
            "credentials that a provider granted and that are not in the database: the user under storage key \(key) "
                + "of tenant \(tenant) may have to log in again"
        case .process: "nothing: other replicas wait a few seconds for the leases of the process that died"
        case .journal: "nothing: its replica registers its journal again"
        case .recent where tenant == .broker:
            "nothing, unless the database loses the commits of the last minutes: then a change of a session, a key or an app "
                + "may be lost"
        case .recent:
            "nothing, unless the database loses the commits of some minutes: then the user under storage key \(key) "
                + "of tenant \(tenant) may have to log in again"
        case .lineage: "nothing: a start writes it again"
        case .client: "the app \(key) of tenant \(tenant), which must be configured again"
        case .session: "the session of an app of tenant \(tenant); its user must log in to the app again"
        case .endedSession: "nothing, unless the database loses its last commits within some minutes"
        case .keptSession:
            "nothing, unless the database loses the commits of the last minutes: then the user of an app of tenant \(tenant) "
                + "may have to log in to the app again"
        case .code: "a login of an app of tenant \(tenant); it must begin again"
        case .sessionToken: "nothing: only an earlier version reads it"
        case .usedChallenge: "nothing: challenges are valid for five minutes"
        case .biometricKey:
            "the biometric key of a user of tenant \(tenant), who must log in to the app and set one up again"
        case .biometricLogin, .softwareKey:
            "a key by which a program's user logs in without a password; the user must set one up again"
        case .requestCount: "nothing: requests of the last minute are counted anew"
        case .sessionEnding:
            "the end of sessions of apps of tenant \(tenant), which may go on although their user has logged out"
        case .tombstone, .tombstones:
            "that an API key of tenant \(tenant) was deleted, or that a user has logged out, in case the record of that is put back"
        case .wave, .held:
            "nothing, unless the provider of tenant \(tenant) is refusing many users at once: then it is noticed again, after the "
                + "sessions of some users have ended, which are put back"
        case .provider:
            "the profile \(key), which the tenants that use it have in their own records; it must be put again before it is changed"
        case .outage: "nothing: listeners may be told of an outage of the provider again, or not of its end"
        }
    }
}
