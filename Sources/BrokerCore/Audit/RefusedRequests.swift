import CredentialStore
import ExternalText
import OAuth
import Reactor
import Synchronization

/// Which refused requests the audit log tells of one by one, and which it only counts: nothing is removed from the log by itself,
/// and each entry is a commit, so a caller that is refused again and again must not fill it.
///
/// The first `most` refusals of a caller within `span` have an entry each. The others are counted, and have one entry together
/// when the span has ended.
final class RefusedRequests: Sendable {
    static let most = 10
    static let span: Duration = .seconds(60)
    /// How many callers are counted apart. Those that come when there are as many are counted together.
    static let mostCallers = 1000

    private struct Span {
        let begun: MonotonicInstant
        let tenant: TenantName?
        var told = 0
        var counted = 0

        func hasEnded(at now: MonotonicInstant) -> Bool { begun.advanced(by: RefusedRequests.span) <= now }
    }

    /// Stands for the callers without a span of their own. No caller has this name.
    static let others: WireText = "others"

    private let spans = Mutex<[WireText: Span]>([:])

    /// Counts a refusal.
    /// - Returns: the entries that are to be written now.
    func met(_ refusal: AuditEntry, at now: MonotonicInstant) -> [AuditEntry] {
        spans.withLock { spans in
            var name = WireText(refusal.caller)
            if spans[name] == nil, spans.count >= Self.mostCallers { name = Self.others }
            var entries: [AuditEntry] = []
            if let span = spans[name], span.hasEnded(at: now) {
                entries += Self.entry(span, name)
                spans[name] = nil
            }
            var span = spans[name] ?? Span(begun: now, tenant: name == Self.others ? nil : refusal.tenant)
            if span.told < Self.most {
                span.told += 1
                entries.append(refusal)
            } else {
                span.counted += 1
            }
            spans[name] = span
            return entries
        }
    }

    /// The entries for the refusals that were only counted, of the spans that have ended by `now`; of all spans where it is nil.
    func ended(by now: MonotonicInstant?) -> [AuditEntry] {
        spans.withLock { spans in
            let ended = spans.filter { span in now.map(span.value.hasEnded) ?? true }
            for name in ended.keys { spans[name] = nil }
            return ended.sorted { $0.value.begun < $1.value.begun }.flatMap { Self.entry($0.value, $0.key) }
        }
    }

    private static func entry(_ span: Span, _ name: WireText) -> [AuditEntry] {
        if span.counted == 0 { return [] }
        return [.refusals(of: name.text, tenant: span.tenant, count: span.counted)]
    }
}

extension AuditEntry {
    private static let refusalAction = "request.refused"
    private static let refused = "refused"

    /// A request that its caller may not make.
    static func refusal(tenant: TenantName?, storageKey: StorageKey?, origin: AuditOrigin) -> AuditEntry {
        AuditEntry(
            refusalAction, outcome: refused, tenant: tenant,
            storageKey.map { AuditEntry.Subject("storage_key", $0.description) }, origin: origin)
    }

    /// As many such requests, which have no entries of their own.
    fileprivate static func refusals(of caller: String, tenant: TenantName?, count: Int) -> AuditEntry {
        AuditEntry(
            refusalAction, outcome: refused, tenant: tenant, count: count, origin: AuditOrigin(caller: caller))
    }
}
