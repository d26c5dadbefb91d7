import ExternalText
import HTTPCodec

/// What a path refers to.
enum Route: Equatable {
    case endpoint(Endpoint)
    case verification(userCode: WireText?)
    /// The metadata of the resource, for a profile that finds its server by it.
    case resource
    /// The path segments after `/_control`.
    case control([WireText])

    /// Nil for an unknown path. Paths are recognised below the path of the base URL and at the root, since a proxy may
    /// or may not remove the base path.
    init?(_ path: String, _ configuration: ProviderConfiguration) {
        let prefix = configuration.baseURL.path
        var path = WireText(path)
        if !prefix.isEmpty, path.starts(with: WireText(prefix + "/")) { path = path.dropping(prefix.utf8.count) }
        // RFC 8414 §3.1 puts the issuer's path after the well-known path.
        if !prefix.isEmpty, path.starts(with: "/.well-known/"), path.ends(with: WireText(prefix)) {
            path = path.prefix(path.count - prefix.utf8.count)
        }

        let behaviour = configuration.behaviour
        let known = behaviour.paths.first { WireText($0.value) == path }?.key
        if let endpoint = configuration.translation.map({ $0.endpoint(at: path) }) ?? known {
            self = .endpoint(endpoint)
            return
        }
        // No valid path has more than four segments.
        let segments = path.split(at: "/", limit: 6).dropFirst().map { $0 }
        switch segments.first {
        case ".well-known"
        where behaviour.hasMetadata && segments.count == 2
            && ["oauth-authorization-server", "openid-configuration"].contains(segments[1]):
            self = .endpoint(.metadata)
        case ".well-known"
        where configuration.translation?.requires("resource") == true && segments.count == 2
            && ["oauth-protected-resource"].contains(segments[1]):
            self = .resource
        case "link" where configuration.path(of: .deviceAuthorization) != nil && segments.count == 1:
            self = .verification(userCode: nil)
        case "link" where configuration.path(of: .deviceAuthorization) != nil && segments.count == 2:
            guard let code = try? FormEncoding.percentDecode(segments[1].utf8.span) else { return nil }
            self = .verification(userCode: code)
        case "_control":
            self = .control(Array(segments.dropFirst()))
        default:
            return nil
        }
    }
}
