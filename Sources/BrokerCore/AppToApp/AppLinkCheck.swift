import Containers
package import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Reactor
import Synchronization

/// Checks whether the links of a host open a certain app: reads what the host itself says of its apps, and keeps that for as
/// long as the host allows.
package final class AppLinkCheck: Sendable {
    /// An app that a link is to belong to.
    package enum App: Sendable {
        /// - Parameter certificate: the SHA-256 digest of the certificate that the package is signed with.
        case android(package: WireText, certificate: [UInt8])
        /// - Parameter id: the team's prefix, a dot and the bundle's name.
        case apple(id: WireText)
    }

    /// What a host says of its apps.
    private enum Document: Sendable {
        case android(AndroidAppLinks)
        case apple(AppleAppLinks)
    }

    private struct Kept: Sendable {
        let document: Document
        let until: MonotonicInstant
    }

    private let transport: any ProviderTransport
    private let allowsHTTP: Bool
    private let time: any Time
    private let log: Log
    /// By the address of the document.
    private let kept = Mutex(BoundedTable<WireText, Kept>(capacity: AppLinkCheck.mostKept))

    /// How many documents are kept at most. The oldest is dropped first.
    private static let mostKept = 64
    /// For how long a document is kept at most, whatever the host allows.
    private static let longestKept: Int64 = 3600
    private static let timeLimit: Duration = .seconds(5)
    /// The longest document that is read, in bytes.
    private static let longest = 1 << 20
    /// The longest document that is kept, in bytes: in memory it takes about ten times as many. A longer one is read for each check.
    private static let longestToKeep = 64 << 10

    /// - Parameter allowsHTTP: whether links may be http:// ones. Otherwise their documents are not read.
    init(transport: any ProviderTransport, allowsHTTP: Bool, time: any Time, log: Log) {
        self.transport = transport
        self.allowsHTTP = allowsHTTP
        self.time = time
        self.log = log
    }

    /// Checks the link that would answer a request.
    /// - Throws: `illegal_argument` where the link is no web address, where the host's document cannot be read, and where it does
    ///   not say that the app opens the link.
    func check(_ request: AppToAppRequest, belongsTo app: App) async throws(BrokerError) {
        guard let url = URLTarget(request.answer(code: "code")), url.scheme == .https || allowsHTTP else {
            throw BrokerError(.illegalArgument, "The redirect_uri is no https link, so that no host says whose it is.")
        }
        let path: String
        switch app {
        case .android: path = "/.well-known/assetlinks.json"
        case .apple: path = "/.well-known/apple-app-site-association"
        }
        let address = "\(url.scheme.rawValue)://\(url.origin.authority)\(path)"
        let parts = WireText(url.pathAndQuery).split(at: "?", limit: 2)
        let isAllowed: Bool
        switch (app, try await document(for: app, at: address)) {
        case (.android(let package, let certificate), .android(let links)):
            isAllowed = links.include(package: package, certificate: certificate)
        case (.apple(let id), .apple(let links)):
            // Its time grows with the number of rules.
            isAllowed = await InputReading.runOnGlobalPool {
                links.allow(app: id, path: parts[0], query: parts.count == 2 ? parts[1] : nil)
            }
        default: isAllowed = false
        }
        guard isAllowed else {
            throw BrokerError(
                .illegalArgument, "The redirect_uri does not belong to that app: \(address) does not name it.")
        }
    }

    private func document(for app: App, at address: String) async throws(BrokerError) -> Document {
        let now = time.monotonic
        if let found = kept.withLock({ $0[WireText(address)] }), now < found.until { return found.document }
        let unreadable = BrokerError(.illegalArgument, "What \(address) says of apps cannot be read.")
        guard let url = URLTarget(address) else { throw unreadable }
        let response: ClientResponse
        do throws(TransportError) {
            response = try await transport.send(
                ClientRequest(
                    method: .get, url: url, fields: ["Accept": "application/json", "User-Agent": "token-broker"],
                    timeLimit: Self.timeLimit,
                    // The app that asks has named the host, and must not have the broker call the operator's private networks.
                    avoidsListedNetworks: true))
        } catch {
            log.warning("app_links_unreadable", [.endpoint(address), .transport(error)])
            throw unreadable
        }
        guard response.status == .ok, response.body.count <= Self.longest else {
            log.warning("app_links_unreadable", [.endpoint(address), .status(response.status)])
            throw unreadable
        }
        let document = await InputReading.run(bytes: response.body.count) { () -> Document? in
            guard let json = try? JSONValue(parsing: response.body) else { return nil }
            switch app {
            case .android: return AndroidAppLinks(json).map { .android($0) }
            case .apple: return AppleAppLinks(json).map { .apple($0) }
            }
        }
        guard let document else {
            log.warning("app_links_unreadable", [.endpoint(address), .status(response.status)])
            throw unreadable
        }
        let seconds =
            response.body.count <= Self.longestToKeep
            ? CacheControl.freshSeconds(response.fields, unstated: 0, limit: Self.longestKept) : 0
        kept.withLock { kept in
            if seconds > 0 {
                kept.setNewest(
                    Kept(document: document, until: now.advanced(by: .seconds(seconds))), forKey: WireText(address))
            } else {
                kept.removeValue(forKey: WireText(address))
            }
        }
        return document
    }
}
