internal import ExternalText
internal import JOSE
package import JSON
internal import OAuth
internal import Reactor

/// How a configuration is written.
extension TenantConfiguration {
    /// Writes the configuration's members: for the sealed record with the secret, for answers without.
    package func encode(to json: inout JSONWriter, revealingSecret: Bool) {
        json.member("provider", preset.name)
        if hasOwnClient {
            json.member("client_id", client.clientID.text)
            encodeClientProof(to: &json, revealingSecret: revealingSecret)
        } else if !revealingSecret {
            json.member("client_secret_set", false)
        }
        if revealingSecret, let document = preset.document, let profile = try? JSONValue(parsing: document) {
            json.member(Self.profileMember.text, profile)
        }
        json.memberIfPresent("client_unique_key", client.clientUniqueKey?.text)
        json.member("scopes", hasOwnScopes ? client.scopes.values : [])
        if let found {
            json.name("found")
            json.object { found.encode(to: &$0, revealingSecret: revealingSecret) }
        }
        if revealingSecret, !earlierFindings.isEmpty {
            json.name(EarlierFinding.memberName.text)
            json.array { json in for earlier in earlierFindings { json.object { earlier.encode(to: &$0) } } }
        }
        json.memberIfPresent("login_service_base_uri", loginServiceBaseURI)
        json.memberIfPresent("auth_service_base_uri", authServiceBaseURI)
        if let certificatePinning { json.member("certificate_pinning", certificatePinning) }
        if let pinnedCertificates { json.member("pinned_certificates", pinnedCertificates) }
        json.memberIfPresent("issuer", issuer)
        if endpoints != Endpoints() {
            json.name("endpoints")
            json.object { json in
                json.memberIfPresent("authorization", endpoints.authorization)
                json.memberIfPresent("token", endpoints.token)
                json.memberIfPresent("refresh", endpoints.refresh)
                json.memberIfPresent("device_authorization", endpoints.deviceAuthorization)
                json.memberIfPresent("revocation", endpoints.revocation)
                json.memberIfPresent("jwks", endpoints.jwks)
                json.memberIfPresent("userinfo", endpoints.userInfo)
                for (name, path) in Self.accountEndpoints { json.memberIfPresent(name, endpoints[keyPath: path]) }
                json.memberIfPresent("challenge", endpoints.challenge)
                json.memberIfPresent("pushed_authorization_request", endpoints.pushedAuthorization)
            }
        }
        if hasOwnClient { json.memberIfPresent("token_endpoint_auth_method", clientAuthentication?.rawValue) }
        if let repeatsClientID { json.member("client_id_in_body", repeatsClientID) }
        json.memberIfPresent("client_assertion_audience", requests.assertionAudience?.rawValue)
        if let trustedAudiences { json.member("trusted_audiences", trustedAudiences.map(\.text)) }
        json.member("allowed_redirect_uris", allowedRedirectURIs)
        json.member("allowed_return_uris", allowedReturnURIs)
        json.member("browser_binding", browserBinding.rawValue)
        // Earlier builds refuse a record that has these members, so a default is not written.
        if !previousIssuers.isEmpty { json.member("previous_issuers", previousIssuers) }
        if !previousTokenEndpoints.isEmpty { json.member("previous_token_endpoints", previousTokenEndpoints) }
        if callbackURI != .shared { json.member("callback_uri", callbackURI.rawValue) }
        json.memberIfPresent("display_name", displayName)
        if !sessionEndingAnswers.isEmpty {
            json.name("session_ending_answers")
            json.array { json in
                for answer in sessionEndingAnswers {
                    json.object { json in
                        json.member("status", answer.status)
                        json.memberIfPresent("error", answer.error)
                    }
                }
            }
        }
        if let refreshLeadTime { json.member("refresh_lead_time", refreshLeadTime.components.seconds) }
        switch defaultLifetime {
        case .limited(let duration)?: json.member("default_lifetime", duration.components.seconds)
        case .unlimited?: json.member("default_lifetime", "never")
        case nil: break
        }
        if let reuseGrace { json.member("reuse_grace", reuseGrace.components.seconds) }
        json.memberIfPresent("rotation", rotation?.rawValue)
        json.memberIfPresent("access_token_after_refresh", accessTokenAfterRefresh?.rawValue)
        if let proactiveRefresh { json.member("proactive_refresh", proactiveRefresh.components.seconds) }
        if let tokenVerification {
            json.name("token_verification")
            json.object { json in
                Self.encode(tokenVerification.accessToken, "access_token", to: &json)
                Self.encode(tokenVerification.refreshToken, "refresh_token", to: &json)
                json.memberIfPresent("jwks", tokenVerification.jwks)
            }
        }
        Self.encode(parameters, "parameters", to: &json)
        json.memberIfPresent("pkce", requests.pkce?.rawValue)
        Self.encode(requests.authorizeParameters, "authorize_parameters", to: &json)
        Self.encode(requests.tokenParameters, "token_parameters", to: &json)
        Self.encode(requests.refreshParameters, "refresh_parameters", to: &json)
        if !requests.userScopes.isEmpty { json.member("user_scopes", requests.userScopes.values) }
        encodeRequests(to: &json, revealingSecret: revealingSecret)
        json.memberIfPresent("token_use", tokenUse?.rawValue)
        json.memberIfPresent("refresh_token_lifetime", refreshTokenLifetime?.components.seconds)
        json.memberIfPresent("consent_lifetime", consentLifetime?.components.seconds)
        wave.encode(to: &json)
        encodeLife(to: &json)
        encodePushingAndKeys(to: &json)
        if let appToApp {
            json.name("app2app")
            json.object { json in
                json.member("enabled", appToApp.isEnabled)
                json.member("insecure_device_key_binding", appToApp.bindsKeysLater)
                json.member("authorization_endpoints", appToApp.authorizationEndpoints)
            }
        }
        json.memberIfPresent("client_credentials", clientCredentials?.rawValue)
        Self.encode(retry, to: &json)
        if requestHeaders != .none {
            json.name("request_headers")
            json.object { json in
                for field in requestHeaders.fields { json.member(field.name.text, field.value.text) }
            }
        }
    }

    private static func encode(_ map: [WireText: WireText], _ name: String, to json: inout JSONWriter) {
        if map.isEmpty { return }
        json.name(name)
        json.object { json in
            for (name, value) in map.sorted(by: { $0.key < $1.key }) { json.member(name.text, value.text) }
        }
    }

    private static func encode(_ retry: RetrySettings, to json: inout JSONWriter) {
        if retry == RetrySettings() { return }
        json.name("retry")
        json.object { json in
            json.memberIfPresent("tries", retry.tries.map { Int64($0) })
            json.memberIfPresent("first_pause_ms", retry.firstPause?.milliseconds)
            if let factor = retry.factor {
                let whole = Int64(exactly: factor)
                json.member("factor", whole.map { JSONValue.integer($0) } ?? JSONValue.number(factor))
            }
            json.memberIfPresent("longest_pause_ms", retry.longestPause?.milliseconds)
            json.memberIfPresent("rate_limit_retries", retry.rateLimitRetries.map { Int64($0) })
            if let follows = retry.followsRetryAfter { json.member("follow_retry_after", follows) }
        }
    }

    private static func encode(
        _ expectations: TokenVerification.Expectations?, _ name: String, to json: inout JSONWriter
    ) {
        guard let expectations else { return }
        json.name(name)
        json.object { json in
            json.memberIfPresent("issuer", expectations.issuer?.text)
            json.memberIfPresent("audience", expectations.audience?.text)
            json.memberIfPresent("scope", expectations.scopes?.description)
            if let algorithms = expectations.algorithms {
                json.member("algorithms", algorithms.map(\.rawValue).sorted())
            }
            json.memberIfPresent("leeway", expectations.leeway?.components.seconds)
        }
    }
}
