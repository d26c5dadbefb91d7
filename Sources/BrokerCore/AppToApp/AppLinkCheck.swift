internal import Containers
package import ExternalText
internal import HTTPCodec
internal import HTTPSClient
internal import JSON
internal import OAuth
internal import Reactor
internal import Synchronization

/// Finds out which app a device opens a link with, by the files that the link's host publishes: Android's Digital Asset Links and
/// Apple's associated domains.
///
/// Safe to use from any task.
package final class AppLinkCheck: Sendable {
    /// An app that a link must belong to.
    package enum App: Sendable, Equatable {
        /// - Parameter fingerprint: SHA-256 of the certificate: 32 pairs of hexadecimal digits with colons between them.
        case android(packageName: WireText, fingerprint: WireText)
        /// The team's prefix, a dot and the bundle identifier.
        case apple(WireText)
    }

    private struct File: Sendable {
        let json: JSONValue
        let end: MonotonicInstant
    }

    private static let relation: WireText = "delegate_permission/common.handle_all_urls"
    private static let namespace: WireText = "android_app"
    private static let longestRequest: Duration = .seconds(5)
    private static let longestFile = 1 << 20
    private static let longestValidity: Duration = .seconds(3600)
    /// Of one file at most 1 MiB, so 32 MiB in all.
    private static let capacity = 32

    private let transport: any ProviderTransport
    private let targets: TargetPolicy
    private let time: any Time
    private let log: Log
    private let files = Mutex(BoundedTable<WireText, File>(capacity: capacity))

    init(transport: any ProviderTransport, targets: TargetPolicy, time: any Time, log: Log) {
        self.transport = transport
        self.targets = targets
        self.time = time
        self.log = log
    }

    /// - Throws: `illegal_argument` where the link's host does not name the app for the link, or its file cannot be read.
    func check(_ link: WireText, belongsTo app: App) async throws(BrokerError) {
        let base = link.split(at: "?", limit: 2)[0].text
        guard let url = URLTarget(base), url.scheme == .https || targets.allowsHTTP else {
            throw BrokerError(
                .illegalArgument, "The redirect_uri of the request is no https link, so no app is known for it.")
        }
        let isNamed: Bool
        switch app {
        case .android(let packageName, let fingerprint):
            let file = try await file("/.well-known/assetlinks.json", of: url)
            isNamed = Self.names(file, packageName, fingerprint)
        case .apple(let appID):
            let file = try await file("/.well-known/apple-app-site-association", of: url)
            isNamed = Self.names(file, appID, path: WireText(url.pathAndQuery))
        }
        if isNamed { return }
        throw BrokerError(
            .illegalArgument,
            "The host \(url.host) does not name this app for the link, so another app may get the code.")
    }

    // MARK: Files

    private func file(_ path: String, of url: URLTarget) async throws(BrokerError) -> JSONValue {
        let address = "\(url.scheme.rawValue)://\(url.origin.authority)\(path)"
        let now = time.monotonic
        if let file = files.withLock({ $0[WireText(address)] }), file.end > now { return file.json }
        guard let target = URLTarget(address) else { throw Self.unreadable(address, "has no usable address") }
        let response: ClientResponse
        do throws(TransportError) {
            response = try await transport.send(
                ClientRequest(
                    method: .get, url: target, fields: ["Accept": "application/json", "User-Agent": "token-broker"],
                    pins: nil, timeLimit: Self.longestRequest))
        } catch {
            log.warning("app_link_request_failed", [.transport(error)])
            throw Self.unreadable(address, "could not be fetched")
        }
        guard response.status == .ok else { throw Self.unreadable(address, "is answered \(response.status.code)") }
        guard response.body.count <= Self.longestFile else { throw Self.unreadable(address, "is longer than 1 MiB") }
        let json = await InputReading.run(bytes: response.body.count) { try? JSONValue(parsing: response.body) }
        guard let json else { throw Self.unreadable(address, "is not JSON") }
        if let validity = Self.validity(response.fields) {
            files.withLock {
                _ = $0.setNewest(File(json: json, end: now.advanced(by: validity)), forKey: WireText(address))
            }
        }
        return json
    }

    /// RFC 9111 §5.2.2; nil where the file must not be kept.
    private static func validity(_ fields: Fields) -> Duration? {
        var age: Duration?
        for directive in fields.list("Cache-Control") {
            let parts = directive.lowercased.split(at: "=", limit: 2)
            switch parts[0] {
            case "no-store", "no-cache": return nil
            case "max-age" where parts.count == 2:
                age = WholeNumber.read(parts[1].trimmed.utf8.span).map { .seconds(min($0, 3600)) }
            default: continue
            }
        }
        return age.flatMap { $0 > .zero ? min($0, longestValidity) : nil }
    }

    private static func unreadable(_ address: String, _ why: String) -> BrokerError {
        BrokerError(.illegalArgument, "Which apps open the link is not known: \(address) \(why).")
    }

    // MARK: Android

    static func names(_ file: JSONValue, _ packageName: WireText, _ fingerprint: WireText) -> Bool {
        (file.array ?? []).contains { statement in
            statement["relation"]?.array?.contains { $0.string == relation } ?? false
                && statement["target"]?["namespace"]?.string == namespace
                && statement["target"]?["package_name"]?.string == packageName
                && statement["target"]?["sha256_cert_fingerprints"]?.array?.contains {
                    $0.string?.equalsIgnoringCase(fingerprint) ?? false
                } ?? false
        }
    }

    // MARK: Apple

    /// The first component or path that matches decides.
    static func names(_ file: JSONValue, _ appID: WireText, path: WireText) -> Bool {
        for detail in file["applinks"]?["details"]?.array ?? [] {
            let ids =
                (detail["appIDs"]?.array ?? []).compactMap(\.string) + [detail["appID"]?.string].compactMap(\.self)
            guard ids.contains(appID) else { continue }
            if let components = detail["components"]?.array {
                for component in components {
                    guard Self.matches(component["/"]?.string ?? "*", path) else { continue }
                    // A component that also asks for a query or a fragment: links of answers have their own query.
                    if component["?"] != nil || component["#"] != nil { continue }
                    return !(component["exclude"]?.bool ?? false)
                }
            }
            for pattern in (detail["paths"]?.array ?? []).compactMap(\.string) {
                let isExcluded = pattern.starts(with: "NOT ")
                if matches(isExcluded ? pattern.dropping(4) : pattern, path) { return !isExcluded }
            }
        }
        return false
    }

    /// Whether a pattern with `*` (any characters) and `?` (one character) is that of the path. The time is at most the product
    /// of the two lengths, which a pattern's bound keeps short.
    static func matches(_ pattern: WireText, _ path: WireText) -> Bool {
        guard pattern.count <= 1024, path.count <= 2048 else { return false }
        let (pattern, path) = (Array(pattern.utf8), Array(path.utf8))
        var (p, t) = (0, 0)
        var star: (p: Int, t: Int)?
        while t < path.count {
            if p < pattern.count, pattern[p] == UInt8(ascii: "*") {
                star = (p, t)
                p += 1
            } else if p < pattern.count, pattern[p] == UInt8(ascii: "?") || pattern[p] == path[t] {
                (p, t) = (p + 1, t + 1)
            } else if let last = star {
                // The last star takes one character more.
                star = (last.p, last.t + 1)
                (p, t) = (last.p + 1, last.t + 1)
            } else {
                return false
            }
        }
        return pattern[p...].allSatisfy { $0 == UInt8(ascii: "*") }
    }
}
