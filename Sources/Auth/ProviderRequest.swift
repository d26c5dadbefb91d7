public import FoundationEssentials

/// A request to a provider, as a `RequestInterceptor` sees it. It has no secret: neither the body nor the query of the address,
/// which have tokens and codes, and no field that authenticates.
public struct ProviderRequest: Sendable, Equatable {
    /// The method, in capitals.
    public let method: String
    /// The address without its query.
    public let url: URL
    /// The header fields by name, without `Authorization` and `Cookie`, and without those that concern the connection only.
    public let headerFields: [String: String]
    /// The length of the body in bytes; zero for a request without one.
    public let bodyLength: Int
}

/// Sees each request to a provider just before it is sent, and returns the header fields that are added to it, by name.
///
/// A request may be repeated: then this is called for each try. It is called from any task, for several requests at once, and has
/// as much time as the request itself, whose own time gets shorter by it.
///
/// At most 20 fields are added. `User-Agent`, and the fields of `AuthConfiguration.requestHeaders`, are replaced. The fields that
/// the library writes itself, that authenticate, or that concern the connection are not allowed, such as `Authorization`,
/// `Content-Type`, `Content-Length`, `Host`, `Transfer-Encoding` and `Connection`: the call then throws
/// `AuthError.Code.illegalConfiguration`. A value has 1 to 1024 visible ASCII characters, with spaces between them only.
///
/// Where it throws, the request is not sent, and counts as one that did not reach the provider: it is repeated, and the call throws
/// `AuthError.Code.networkError` after the last try.
public typealias RequestInterceptor = @Sendable (ProviderRequest) async throws -> [String: String]
