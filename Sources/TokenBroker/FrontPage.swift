import HTTPCodec
import HTTPServer
import JSON

/// The answer of `/`: links to the API's description, the probes and the metrics.
enum FrontPage {
    private static let title = "token-broker"

    /// - Parameters:
    ///   - version: the version to show; empty shows none.
    ///   - hasProbes: whether this listener answers probes and metrics.
    static func response(version: String, hasProbes: Bool, prefersJSON: Bool) -> Response {
        let links =
            [("docs", "/docs", "Its API"), ("openapi", "/openapi.yaml", "The same for programs")]
            + (hasProbes
                ? [
                    ("healthz", "/healthz", "Whether this process lives"),
                    ("readyz", "/readyz", "Whether it can serve requests"), ("metrics", "/metrics", "Its metrics"),
                ] : [])
        if prefersJSON {
            return .json(.ok) { json in
                json.member("service", title)
                if !version.isEmpty { json.member("version", version) }
                for (name, path, _) in links { json.member(name, path) }
            }
        }
        return LoginPage.plain(
            title: title,
            text: [
                "This service logs users in at OAuth providers and hands access tokens to the services that may use them. "
                    + "You cannot log in on this page: an application sends you to the login."
            ] + links.map { _, path, label in "\(label): <a href=\"\(path)\">\(path)</a>" },
            footer: version.isEmpty ? nil : "Version \(version)")
    }
}
