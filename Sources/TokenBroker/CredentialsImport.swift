import BrokerCore
import Cryptography
import ExternalText
import HTTPServer
import JSON
import OAuth

/// One import: reads lines while they come, takes their sets over, and tells the outcome of each in their order.
///
/// The lines of one piece of the content are worked on several at a time, and their outcomes are written before the next piece is
/// read. So a client that waits for the outcome of a line gets it, and what was told is stored.
final class CredentialsImport: Sendable {
    private let broker: Broker
    private let call: Call
    private let replaces: Bool
    private let mode: CredentialsImporter.Mode

    /// How many lines are worked on at a time.
    private static let atOnce = 16

    init(_ broker: Broker, _ call: Call, replaces: Bool, _ mode: CredentialsImporter.Mode) {
        self.broker = broker
        self.call = call
        self.replaces = replaces
        self.mode = mode
    }

    /// What is told of a line.
    private struct Told: Sendable {
        let number: Int
        /// Nil where the line does not name a usable one.
        let storageKey: StorageKey?
        let result: Result<ImportLine.Outcome, BrokerError>
    }

    private struct Counts {
        var imported = 0
        var others = 0
    }

    func run(_ stream: ResponseStream) async {
        let content = call.content
        var (lines, counts) = (ContentLines(), Counts())
        do throws(StreamEnded) {
            do throws(ContentFault) {
                while let piece = try await content.next() {
                    guard try await tell(lines.lines(of: piece), &counts, stream) else { return report(counts) }
                }
                if let last = lines.last() {
                    guard try await tell([last], &counts, stream) else { return report(counts) }
                }
            } catch {
                if let told = Self.told(of: error, at: lines.nextNumber) { try await stream.write(Self.encoded(told)) }
            }
        } catch {}
        report(counts)
    }

    private func report(_ counts: Counts) {
        broker.log.info(
            "credentials_imported", [.count(counts.imported), .outcome(mode == .dry ? "dry_run" : "stored")])
        if counts.others > 0 { broker.log.info("credentials_not_imported", [.count(counts.others)]) }
    }

    /// What is told of a content that has not come to its end; nil where the connection is closed. What has come of its last line is
    /// not taken over: it may be a part of it.
    private static func told(of fault: ContentFault, at number: Int) -> Told? {
        let detail: String
        switch fault {
        case .ended: return nil
        case .cutShort: detail = "The connection ended inside the content. The lines before are dealt with."
        case .tooSlow: detail = "The content took too long. The lines before are dealt with."
        case .malformed: detail = "The chunked coding of the content is malformed. The lines before are dealt with."
        }
        return Told(number: number, storageKey: nil, result: .failure(BrokerError(.invalidRequest, detail)))
    }

    // MARK: Lines

    /// Works on the lines, and writes their outcomes.
    /// - Returns: false where the connection is closed.
    private func tell(
        _ lines: [ContentLines.Line], _ counts: inout Counts, _ stream: ResponseStream
    ) async throws(ContentFault) -> Bool {
        var (batch, keys): ([Read], Set<StorageKey>) = ([], [])
        var rest = lines[...]
        while let line = rest.popFirst() {
            let read = await read(line)
            // Lines of one storage key come one after another.
            if batch.count == Self.atOnce || read.key.map({ keys.contains($0) }) ?? false {
                guard await finish(batch, &counts, stream) else { return false }
                (batch, keys) = ([], [])
            }
            batch.append(read)
            if let key = read.key { keys.insert(key) }
        }
        return await finish(batch, &counts, stream)
    }

    private func finish(_ batch: [Read], _ counts: inout Counts, _ stream: ResponseStream) async -> Bool {
        if batch.isEmpty { return true }
        var bytes: [UInt8] = []
        for told in await outcomes(batch) {
            if case .success(.imported) = told.result { counts.imported += 1 } else { counts.others += 1 }
            bytes += Self.encoded(told)
        }
        do throws(StreamEnded) {
            try await stream.write(bytes)
            return true
        } catch {
            return false
        }
    }

    private func outcomes(_ batch: [Read]) async -> [Told] {
        await withTaskGroup(of: (Int, Told).self) { group in
            for (index, read) in batch.enumerated() {
                group.addTask { (index, await self.take(read)) }
            }
            var told = [Told?](repeating: nil, count: batch.count)
            for await (index, outcome) in group { told[index] = outcome }
            return told.compactMap(\.self)
        }
    }

    private func take(_ read: Read) async -> Told {
        do throws(BrokerError) {
            let (line, tenant) = try read.line.get()
            return Told(
                number: read.number, storageKey: read.key,
                result: .success(try await broker.core.importer.take(line, of: tenant, mode)))
        } catch {
            return Told(number: read.number, storageKey: read.key, result: .failure(error))
        }
    }

    /// A line that was read.
    private struct Read: Sendable {
        let number: Int
        let key: StorageKey?
        let line: Result<(ImportLine, Tenant), BrokerError>
    }

    private func read(_ line: ContentLines.Line) async -> Read {
        var key: StorageKey?
        do throws(BrokerError) {
            guard let bytes = line.bytes else {
                throw BrokerError(.payloadTooLarge, "A line has at most \(ContentLines.longest) bytes.")
            }
            // The tenant may be deleted or configured anew, and the key withdrawn, while lines come.
            let tenant = try await broker.tenant(of: call)
            let now = broker.time.now
            let document = try await InputReading.run(bytes: bytes.count) { () throws(BrokerError) in
                try ImportDocument(bytes, for: tenant.configuration, now: now)
            }
            key = document.storageKey
            return Read(number: line.number, key: key, line: .success((try held(document, tenant, now), tenant)))
        } catch {
            return Read(
                number: line.number, key: key ?? line.bytes.flatMap(ImportDocument.storageKey), line: .failure(error))
        }
    }

    private func held(_ document: ImportDocument, _ tenant: Tenant, _ now: Timestamp) throws(BrokerError) -> ImportLine
    {
        let key = try document.storageKey.writable()
        var held = try document.credentials.held(
            refreshToken: document.refreshToken, for: tenant,
            of: broker.core.providers.servers.acceptedProviders(of: tenant).present, now: now)
        held.proofKey = document.proofKey
        if let asked = document.asked, held.level == .user { held.asked = asked.grant }
        return ImportLine(
            CredentialsID(tenant: tenant.name, storageKey: key), held, granted: document.granted, replaces: replaces)
    }

    // MARK: Outcomes

    private static func encoded(_ told: Told) -> [UInt8] {
        var bytes = JSONWriter.object { json in
            json.member("line", Int64(told.number))
            json.memberOrNull("storage_key", told.storageKey?.description)
            switch told.result {
            case .success(.imported): json.member("outcome", "imported")
            case .success(.unchanged): json.member("outcome", "unchanged")
            case .success(.conflict(let detail)):
                json.member("outcome", "conflict")
                json.member("code", BrokerError.Code.conflict.rawValue)
                json.member("detail", detail)
            case .failure(let error):
                json.member("outcome", "failed")
                json.member("code", error.code.rawValue)
                json.member("detail", error.detail)
                json.memberIfPresent("error_code", error.errorCode)
                json.memberIfPresent("retry_after", error.retryAfter.map(Int64.init))
                error.encodeFaults(to: &json)
            }
        }
        bytes.append(UInt8(ascii: "\n"))
        return bytes
    }
}

/// What a line of an import has.
private struct ImportDocument: Sendable {
    let storageKey: StorageKey
    let credentials: GivenCredentials
    let refreshToken: SecretBytes?
    /// When the provider granted the refresh token; nil where the line does not say.
    let granted: Timestamp?
    /// The key that the tokens are bound to; nil for tokens that need none.
    let proofKey: DPoPKey?

    /// What the grant was asked for, and is asked for at its refreshes; nil where the line does not say, which is what the tenant's
    /// logins ask for.
    let asked: Asked?

    struct Asked: Sendable {
        /// Nil for nothing beside the client's scopes.
        let grant: AskedGrant?
    }

    /// The longest key, in bytes.
    private static let longestKey = 4096

    /// How far a clock that has written a line may be ahead.
    private static let clockDifference: Duration = .seconds(300)

    /// - Throws: `invalid_request` with all faults.
    init(_ bytes: [UInt8], for configuration: TenantConfiguration, now: Timestamp) throws(BrokerError) {
        var body = ObjectReader(try Call.parse(bytes))
        let storageKey =
            body.requiredString("storage_key", limit: 1024).flatMap { text in
                let key = StorageKey(text)
                if key == nil { body.note("storage_key", StorageKey.rule) }
                return key
            }
        let refreshToken = (body.string("refresh_token", limit: 65_536)?.text).map(SecretBytes.init(utf8:))
        if refreshToken?.isEmpty == true { body.note("refresh_token", "must not be empty") }
        granted = body.timestamp("granted_at")
        if let granted, granted > now.advanced(by: Self.clockDifference) {
            body.note("granted_at", "must not be in the future")
        }
        var given = body.object("credentials") {
            GivenCredentials(&$0, for: configuration, isImported: true)
        }
        if given == nil {
            var nothing = ObjectReader(.object([:]))
            given = GivenCredentials(&nothing, for: configuration, isImported: true)
        }
        if refreshToken == nil, given?.hasToken != true {
            body.note("refresh_token", "is required where the credentials have no token")
        }
        asked = body.object("asked") { body in
            Asked(
                grant: AskedGrant.brought(&body) { scope in
                    if ScopeSet([scope]) == nil { return "must be one scope" }
                    let isForeign =
                        configuration.hasOwnScopes && !configuration.client.scopes.values.contains(scope.text)
                    return isForeign ? "is not one of the tenant's scopes" : nil
                })
        }
        let key = Self.key("dpop_key", &body)
        let refreshKey = Self.key("dpop_refresh_key", &body)
        if given?.isBound == true || refreshKey != nil, key == nil {
            body.note("dpop_key", "is required where the token_type is DPoP, and beside dpop_refresh_key")
        }
        try body.finish()
        guard let storageKey, let given else { throw BrokerError(.internalError, "A line has no storage key.") }
        self.storageKey = storageKey
        credentials = given
        self.refreshToken = refreshToken
        proofKey = key.map { DPoPKey(pem: $0, bindsToken: given.isBound, refreshPEM: refreshKey) }
    }

    private static func key(_ name: WireText, _ body: inout ObjectReader) -> SecretBytes? {
        // PEM has line ends, which other texts must not have.
        guard let value = body.any(name), value != .null else { return nil }
        guard let text = value.string, text.count <= longestKey else {
            body.note(name, "must be a text of at most \(longestKey) bytes")
            return nil
        }
        let pem = SecretBytes(utf8: text.text)
        if !DPoPKey(pem: pem).isUsable { body.note(name, "must be a private key on P-256 in PEM (PKCS #8)") }
        return pem
    }

    /// The storage key of a line that has other faults; nil where it is none.
    static func storageKey(_ bytes: [UInt8]) -> StorageKey? {
        bytes.count > InputReading.largestInPlace
            ? nil : (try? JSONValue(parsing: bytes))?["storage_key"]?.string.flatMap { StorageKey($0) }
    }
}
