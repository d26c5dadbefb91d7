import HTTPSClient
import OAuth
import Reactor
import Synchronization
import Waiting

/// The files by which devices learn which apps open links of the broker's host: `assetlinks.json` for Android and
/// `apple-app-site-association` for Apple's systems. They have the apps of all clients of all tenants.
///
/// Made when they are asked for, at most once a minute. Safe to use from any task.
package final class AppLinkFiles: Sendable {
    package struct Files: Sendable {
        package let assetLinks: [UInt8]
        package let appleAssociation: [UInt8]
    }

    /// For how long the files are used.
    package static let validity: Duration = .seconds(60)
    /// The longest file, in bytes, about: a device reads no longer ones. Clients that come later than that are left out.
    package static let longestFile = 1 << 20
    /// How many clients are read at once.
    private static let page = 500

    private let clients: AppClientDirectory
    private let browserPaths: [String]
    private let time: any Time
    private let log: Log
    private let made = Mutex<(files: Files, at: MonotonicInstant)?>(nil)
    /// The files are made once for all callers that wait for them.
    private let making = SingleFlight<Int, Result<Files, BrokerError>>()

    /// - Parameter base: the broker's public base URL. Its login pages are not opened by apps.
    init(clients: AppClientDirectory, base: String, instruments: Instruments) {
        self.clients = clients
        // The base has no slash at its end, so a path of one byte is the root.
        let path = URLTarget(base)?.pathAndQuery ?? "/"
        let prefix = path.utf8.count == 1 ? "" : path
        browserPaths = ["\(prefix)/login/*", "\(prefix)/oauth2/*"]
        (time, log) = (instruments.time, instruments.log)
    }

    /// The files as they were at most a minute ago, or longer ago while the store does not answer.
    /// - Throws: `storage_unavailable` where the store does not answer and there were none. Retrying helps.
    package func files() async throws(BrokerError) -> Files {
        let known = made.withLock { $0 }
        if let known, known.at.duration(to: time.monotonic) < Self.validity { return known.files }
        let run = await making.run(0, within: nil) { () async -> Result<Files, BrokerError> in
            let start = self.time.monotonic
            do throws(BrokerError) {
                let files = try await self.make()
                self.made.withLock { $0 = (files, start) }
                return .success(files)
            } catch {
                return .failure(error)
            }
        }
        switch run?.value {
        case .success(let files)?: return files
        case .failure(let error)?:
            if let known { return known.files }
            throw error
        case nil: throw BrokerError(.retryableError, "The request ended before the files were made.", retryAfter: 1)
        }
    }

    /// Suspends until no files are being made.
    func finish() async {
        await making.finish()
    }

    private func make() async throws(BrokerError) -> Files {
        var links = AppLinks()
        var last: AppClient?
        while true {
            let page = try await clients.list(of: nil, after: last, limit: Self.page)
            for client in page {
                guard links.size + AppLinks.size(of: client.settings) <= Self.longestFile else {
                    log.warning("app_links_too_many", [.tenant(client.tenant)])
                    return files(links)
                }
                links.add(client.settings)
            }
            guard page.count == Self.page else { return files(links) }
            last = page.last
        }
    }

    private func files(_ links: AppLinks) -> Files {
        Files(assetLinks: links.assetLinks, appleAssociation: links.appleAssociation(browserPaths: browserPaths))
    }
}
