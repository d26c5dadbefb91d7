import Containers
import ExternalText
import HTTPCodec
import JOSE
import JSON

/// The JWTs by which clients authenticate at the `rfc` profile (RFC 7523 §3).
struct ClientAssertions: Sendable {
    /// The digests of those that were used. Each is good once.
    private var used = BoundedTable<WireText, Void>(capacity: 20_000)

    /// The longest that a JWT may be valid for.
    private static let longestLifetime: Duration = .seconds(300)

    private static let type: WireText = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"

    /// The client that a request's JWT is of.
    /// - Throws: `invalid_client` for another JWT than one that the client's key has signed for this provider and for now, and for
    ///   one that was used before.
    mutating func client(
        _ parameters: Parameters, in configuration: ProviderConfiguration, now: Int64
    ) throws(OAuthError) -> ProviderClient {
        guard parameters["client_assertion_type"] == Self.type, let text = parameters["client_assertion"],
            let token = try? CompactJWS(
                parsing: text, policy: JWSPolicy(algorithms: Set(SignatureAlgorithm.allCases))),
            let claims = try? ClaimsSet(parsing: token.unverifiedPayload), let subject = claims.subject,
            let identifier = claims.members["jti"]?.string, !identifier.isEmpty
        else { throw OAuthError(.invalidClient, "The client assertion is not a JWT of a client") }
        guard claims.issuer == subject, parameters["client_id"].map({ $0 == subject }) ?? true,
            let client = configuration.client(subject), let keys = client.publicKeys
        else { throw OAuthError(.invalidClient, "The client assertion names another client") }
        guard let set = try? JSONWebKeySet(parsing: Array(keys.utf8)), (try? token.verified(with: set)) != nil else {
            throw OAuthError(.invalidClient, "The client assertion is not signed by a key of the client")
        }
        let base = configuration.baseURL.description
        let audiences = [base, base + (configuration.path(of: .token) ?? "")].map { WireText($0) }
        // One audience, so that no other server can use the JWT here.
        guard claims.audience.count == 1, audiences.contains(claims.audience[0]) else {
            throw OAuthError(.invalidClient, "The client assertion is for another audience")
        }
        let present = NumericDate(sinceEpoch: .milliseconds(now))
        guard let expiry = claims.expiry, expiry > present, expiry <= present.advanced(by: Self.longestLifetime),
            claims.notBefore.map({ $0 <= present }) ?? true
        else { throw OAuthError(.invalidClient, "The client assertion is not valid now") }
        let digest = WireText(Secrets.digest(subject.text + " " + identifier.text))
        guard used[digest] == nil else { throw OAuthError(.invalidClient, "The client assertion was used before") }
        used[digest] = ()
        return client
    }
}
