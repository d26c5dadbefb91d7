import ExternalText

/// What an API has answered.
public struct APIAnswer<Content: Sendable>: Sendable {
    /// The answer, in any form.
    public let content: Content
    /// The status of the answer.
    public let status: Int
    /// The `subStatus` of an API that says by it why it refuses a token, such as TIDAL's; nil for another API.
    public let subStatus: String?

    /// Sets the members.
    public init(_ content: Content, status: Int, subStatus: String? = nil) {
        self.content = content
        self.status = status
        self.subStatus = subStatus
    }
}

extension APIAnswer: Equatable where Content: Equatable {}

/// Sends requests to an API with the present token, and asks once more with another token if the API refuses the first.
///
///     let api = AuthorizedSender(auth.credentialsProvider)
///     let answer = try await api.send { credentials in
///         var request = URLRequest(url: address)
///         request.setValue(credentials.authorization, forHTTPHeaderField: "Authorization")
///         let (data, response) = try await URLSession.shared.data(for: request)
///         return APIAnswer(data, status: (response as? HTTPURLResponse)?.statusCode ?? 0)
///     }
///
/// Any task may use it. Any number of requests that are refused with one token cause one refresh.
public final class AuthorizedSender: Sendable {
    private let provider: any CredentialsProvider
    private let level: CredentialsLevel

    /// What a 401 without a `subStatus` means: the token has expired, or was ended.
    private static let expired = "11003"

    /// - Parameters:
    ///   - provider: whose credentials the requests get.
    ///   - level: the lowest level that the API takes: `user`, the default, or `client`.
    public init(_ provider: any CredentialsProvider, level: CredentialsLevel = .user) {
        self.provider = provider
        self.level = level
    }

    /// Sends a request. If the API answers 401, and other credentials are there or are granted, sends it once more with these, and
    /// returns the second answer, whatever it is. A request that was refused was not carried out, so it may be any.
    /// - Parameter request: sends the request with the credentials. It is called once or twice.
    /// - Returns: an answer of the API, also a 401 for which there are no other credentials.
    /// - Throws: what `request` throws; an `AuthError` as `CredentialsProvider.getCredentials(level:apiErrorSubStatus:refused:)`.
    public func send<Content>(
        _ request: @Sendable (Credentials) async throws -> APIAnswer<Content>
    ) async throws -> APIAnswer<Content> {
        let credentials = try await provider.getCredentials(level: level)
        let answer = try await request(credentials)
        guard answer.status == 401 else { return answer }
        let others = try await provider.getCredentials(
            level: level, apiErrorSubStatus: answer.subStatus ?? Self.expired, refused: credentials)
        let isSame = others.token.map { WireText($0) } == credentials.token.map { WireText($0) }
        return isSame ? answer : try await request(others)
    }
}

extension Credentials {
    /// The value of the field `Authorization` of a request (RFC 6750 §2.1); nil for basic credentials. It has the token: do not
    /// print it.
    public var authorization: String? { token.map { "Bearer \($0)" } }
}
