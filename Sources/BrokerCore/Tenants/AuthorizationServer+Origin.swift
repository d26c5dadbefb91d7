import HTTPSClient
import OAuth

extension AuthorizationServer {
    /// The scheme, host and port of the token endpoint: servers of one origin share one budget of requests. An address that is
    /// not a URL is its own origin, and is refused when it is called.
    var origin: String {
        guard let url = URLTarget(tokenEndpoint) else { return tokenEndpoint }
        return "\(url.scheme.rawValue)://\(url.origin.authority)"
    }
}
