import BrokerCore
import CredentialStore
import HTTPServer
import OAuth

/// One export: writes the sealed sets of a tenant, page by page.
final class CredentialsExport: Sendable {
    private let broker: Broker
    private let order: CredentialsExporter.Order

    init(_ broker: Broker, _ order: CredentialsExporter.Order) {
        self.broker = broker
        self.order = order
    }

    func page(after place: CredentialsExporter.Place?) async throws(BrokerError) -> CredentialsExporter.Page {
        try await broker.core.exporter.page(of: order, after: place)
    }

    /// Writes all pages. Where that fails, the connection is reset: what is not complete must not look complete.
    func run(_ first: CredentialsExporter.Page, _ stream: ResponseStream) async {
        var (page, count, unreadable) = (first, 0, 0)
        var isComplete = false
        do {
            while true {
                for jwe in page.sealed {
                    try await stream.write(jwe + [UInt8(ascii: "\n")])
                    count += 1
                }
                unreadable += page.unreadable
                guard let next = page.next else {
                    isComplete = true
                    break
                }
                page = try await self.page(after: next)
            }
        } catch {
            await stream.abort()
        }
        let tenant = order.tenant.name
        broker.log.warning(
            "credentials_exported", [.tenant(tenant), .count(count), .outcome(isComplete ? "done" : "cut_short")])
        if unreadable > 0 {
            broker.log.error("credentials_not_exported", [.tenant(tenant), .count(unreadable)])
        }
        do throws(BrokerError) {
            try await broker.core.audit.tell(
                ofExportFrom: tenant, outcome: isComplete ? AuditEntry.done : "cut_short", count: count)
        } catch {
            // What has left has left: the audit log has its beginning only, and this line the rest.
            broker.log.error(
                "export_end_not_audited",
                [
                    .tenant(tenant), .count(count), .outcome(isComplete ? "done" : "cut_short"), .code(error.code),
                ])
        }
    }
}
