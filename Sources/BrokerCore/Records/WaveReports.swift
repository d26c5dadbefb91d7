import CredentialStore
import Cryptography
import ExternalText
import JSON
import OAuth
import Reactor

/// What one replica asks all of them where the refusals of a tenant may be a wave: how many of the tenant's refreshes each has
/// seen succeed. The change feed announces the record, and each replica that has seen any answers in a record of its own.
struct WaveQuestion: Sendable, Equatable {
    /// When it is asked.
    let time: Timestamp
    /// Since when refreshes count.
    let since: Timestamp
    /// The tenant's, which each replica counts by.
    let window: Duration

    var encoded: [UInt8] {
        JSONWriter.object { json in
            json.member("time", time.milliseconds)
            json.member("since", since.milliseconds)
            json.member("window", window.milliseconds)
        }
    }

    init(time: Timestamp, since: Timestamp, window: Duration) {
        (self.time, self.since, self.window) = (time, since, window)
    }

    /// Nil where `bytes` are not such a record.
    init?(decoding bytes: [UInt8]) {
        guard let json = try? JSONValue(parsing: bytes), let time = json["time"]?.integer,
            let since = json["since"]?.integer, let window = json["window"]?.integer, window > 0
        else { return nil }
        self.init(
            time: Timestamp(milliseconds: time), since: Timestamp(milliseconds: since), window: .milliseconds(window))
    }
}

/// What one replica says of its own refreshes of a tenant. It is written as the answer to a question and, at a bounded rate, while
/// the tenant has a wave; at other times a refresh that succeeds writes nothing.
struct WaveReport: Sendable, Equatable {
    /// The version of the question's record that is answered; 0 for none.
    var question: Int64 = 0
    /// How many refreshes have succeeded since the time that the question names.
    var renewed = 0
    /// The number of the wave that `proven` is about; 0 for none.
    var wave: Int64 = 0
    /// How many sets were refreshed in the wave whose refresh tokens had been granted before it.
    var proven = 0

    /// Whether it says anything.
    var isEmpty: Bool { renewed == 0 && proven == 0 }

    var encoded: [UInt8] {
        JSONWriter.object { json in
            json.member("question", question)
            json.member("renewed", Int64(renewed))
            json.member("wave", wave)
            json.member("proven", Int64(proven))
        }
    }

    init() {}

    /// Nil where `bytes` are not such a record.
    init?(decoding bytes: [UInt8]) {
        guard let json = try? JSONValue(parsing: bytes), let question = json["question"]?.integer,
            let renewed = json["renewed"]?.integer, let wave = json["wave"]?.integer,
            let proven = json["proven"]?.integer
        else { return nil }
        (self.question, self.wave) = (question, wave)
        (self.renewed, self.proven) = (Int(clamping: max(0, renewed)), Int(clamping: max(0, proven)))
    }
}

extension CredentialsRecords {
    private static let reportPrefix: WireText = "renewed-"
    /// How many replicas' reports count, those of processes that have ended within `reportLife` included.
    private static let mostReports = 256
    private static let questionLife: Duration = .seconds(2 * 3600)
    /// A wave's reports count for longer than a wave lasts: see `ProviderWave.isFinal`.
    private static let reportLife: Duration = .seconds(14 * 86_400)

    static func questionID(_ tenant: TenantName) -> RecordID { RecordID(.wave, tenant, key: "question") }

    /// - Parameter process: names the replica.
    static func reportID(_ tenant: TenantName, _ process: String) -> RecordID {
        RecordID(.wave, tenant, key: reportPrefix.text + process)
    }

    /// Whether the record is a replica's report.
    static func isReport(_ id: RecordID) -> Bool { WireText(id.key).starts(with: reportPrefix) }

    /// The last question about the tenant, with the version of its record; nil where there is none. The question is nil where this
    /// build cannot read it.
    func waveQuestion(
        _ tenant: TenantName
    ) async throws(StoreError) -> (question: WaveQuestion?, version: Int64)? {
        guard let stored = try await note(Self.questionID(tenant)) else { return nil }
        return (stored.content.flatMap { WaveQuestion(decoding: $0.revealedBytes) }, stored.version)
    }

    /// The changes that ask all replicas.
    /// - Parameter version: the version of the question's record that is replaced; nil where there is none.
    func changes(asking question: WaveQuestion, _ tenant: TenantName, over version: Int64?) -> [VaultChange] {
        [
            .require(RecordID(.tenant, tenant)),
            change(
                ofNote: question.encoded, Self.questionID(tenant), until: time.now.advanced(by: Self.questionLife),
                over: version),
        ]
    }

    /// The changes that write what a replica says.
    /// - Parameter version: the version of its report's record that is replaced; nil where there is none.
    func changes(
        telling report: WaveReport, _ tenant: TenantName, by process: String, over version: Int64?
    ) -> [VaultChange] {
        [
            .require(RecordID(.tenant, tenant)),
            change(
                ofNote: report.encoded, Self.reportID(tenant, process), until: time.now.advanced(by: Self.reportLife),
                over: version),
        ]
    }

    /// What the other replicas have said last. Reports that this build cannot read count as none.
    /// - Parameter process: names this replica.
    func reports(_ tenant: TenantName, exceptOf process: String) async throws(StoreError) -> [WaveReport] {
        let own = Self.reportID(tenant, process)
        return try await vault.listSealed(
            .wave, tenant: tenant, after: Self.reportID(tenant, ""), limit: Self.mostReports
        ).prefix { Self.isReport($0.id) }.filter { $0.id != own }.compactMap { stored in
            (try? vault.open(stored).content).flatMap { WaveReport(decoding: $0.revealedBytes) }
        }
    }
}
