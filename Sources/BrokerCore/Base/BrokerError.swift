package import CredentialStore
package import HTTPCodec
package import OAuth

/// A failure as a caller gets it: a code of the contract and a text without secrets.
package struct BrokerError: Error, Sendable, Equatable {
    /// The codes that callers branch on. openapi.yaml says under the same name what each means, whether a retry helps and who
    /// can correct the cause.
    package enum Code: String, Sendable, CaseIterable {
        case authorizationError = "authorization_error"
        case tokenResponseError = "token_response_error"
        case unexpectedError = "unexpected_error"
        case retryableError = "retryable_error"
        case networkError = "network_error"
        case illegalConfiguration = "illegal_configuration"
        case illegalArgument = "illegal_argument"
        case missingTokenContainer = "missing_token_container"
        case invalidTokenRequest = "invalid_token_request"
        case unknownAccount = "unknown_account"
        /// There is no session with which the provider could be asked to let another app in.
        case unauthenticated
        case levelNotAvailable = "level_not_available"
        case invalidRequest = "invalid_request"
        case unauthorized
        case forbidden
        case notFound = "not_found"
        case methodNotAllowed = "method_not_allowed"
        case conflict
        case gone
        case preconditionFailed = "precondition_failed"
        case payloadTooLarge = "payload_too_large"
        case unsupportedMediaType = "unsupported_media_type"
        case tooManyRequests = "too_many_requests"
        case storageUnavailable = "storage_unavailable"
        case providerUntrusted = "provider_untrusted"
        /// A fault of the broker, or a request that breaks a rule of HTTP.
        case internalError = "internal_error"

        package var status: Status {
            switch self {
            case .authorizationError, .invalidRequest: .badRequest
            case .unauthorized: .unauthorized
            case .forbidden: .forbidden
            case .missingTokenContainer, .notFound: .notFound
            case .methodNotAllowed: .methodNotAllowed
            case .conflict: .conflict
            case .gone: .gone
            case .preconditionFailed: .preconditionFailed
            case .payloadTooLarge: .contentTooLarge
            case .unsupportedMediaType: .unsupportedMediaType
            case .tooManyRequests: .tooManyRequests
            case .illegalArgument: .unprocessableContent
            case .illegalConfiguration, .levelNotAvailable, .invalidTokenRequest, .unknownAccount, .unauthenticated:
                .failedDependency
            case .tokenResponseError, .unexpectedError, .providerUntrusted: .badGateway
            case .retryableError, .networkError, .storageUnavailable: .serviceUnavailable
            case .internalError: .internalServerError
            }
        }

        package var title: String {
            switch self {
            case .authorizationError: "The login did not succeed"
            case .tokenResponseError: "The provider's answer holds no usable token"
            case .unexpectedError: "The provider refused the request"
            case .retryableError: "The provider cannot answer now"
            case .networkError: "The provider could not be reached"
            case .illegalConfiguration: "The tenant's configuration does not fit the provider"
            case .illegalArgument: "A value does not fit the tenant"
            case .missingTokenContainer: "No suitable credentials are stored"
            case .invalidTokenRequest: "The refresh token is not valid any more"
            case .unknownAccount: "The provider does not know the account"
            case .unauthenticated: "No session that can let an app in"
            case .levelNotAvailable: "No credentials of that level"
            case .invalidRequest: "The request is not well-formed"
            case .unauthorized: "No valid API key"
            case .forbidden: "Not allowed with this API key"
            case .notFound: "Not found"
            case .methodNotAllowed: "Method not allowed"
            case .conflict: "Already done"
            case .gone: "No longer valid"
            case .preconditionFailed: "Changed meanwhile"
            case .payloadTooLarge: "Content too large"
            case .unsupportedMediaType: "Unsupported media type"
            case .tooManyRequests: "Too many requests"
            case .storageUnavailable: "The store cannot answer now"
            case .providerUntrusted: "The provider's certificate is not trusted"
            case .internalError: "Internal error"
            }
        }
    }

    /// What is wrong with a login service's response, although its address is complete. The values stand in addresses.
    package enum ResponseFault: String, Sendable, CaseIterable {
        /// It has no `iss`, which the provider announces (RFC 9207).
        case noIssuer = "no_issuer"
        /// Its `iss` is not the issuer of the login.
        case otherIssuer = "other_issuer"
        /// It has an `iss`, and no issuer is configured.
        case unexpectedIssuer = "unexpected_issuer"
        /// It came to another callback than that of the login.
        case otherCallback = "other_callback"
        /// The tenant's registration is another one than that of the login.
        case otherRegistration = "other_registration"
        /// The app is registered no more as it was when the login was begun.
        case otherApp = "other_app"

        package var code: Code {
            switch self {
            case .otherRegistration, .otherApp: .gone
            case .noIssuer, .otherIssuer, .unexpectedIssuer, .otherCallback: .invalidRequest
            }
        }

        /// What was found, and what to change.
        package var detail: String {
            switch self {
            case .noIssuer:
                "The response has no iss, which this provider's metadata announces (RFC 9207): the provider, or what stands in "
                    + "front of it, must send it."
            case .otherIssuer: "The response comes from another issuer than the login was begun with."
            case .unexpectedIssuer:
                "The response has an iss, and no issuer is configured to compare it with: configure the issuer."
            case .otherCallback: "The response came to another callback than the login was begun with."
            case .otherRegistration:
                "The tenant was given another registration at its provider after the login was begun, which cannot redeem the "
                    + "response. Begin another login."
            case .otherApp:
                "The app was removed, or its redirect_uris or its storage_key were changed, after the login was begun. Begin "
                    + "another login."
            }
        }
    }

    /// One fault of a request's content.
    package typealias Fault = InputFault

    package let code: Code
    /// What happened and what to change. May be shown to anyone: it has no secret, and of a provider's text at most an address.
    package let detail: String
    /// The provider's `error` or `sub_status`, checked by `ErrorText`.
    package let errorCode: String?
    /// Whole seconds after which a retry makes sense.
    package let retryAfter: Int?
    package let faults: [Fault]
    /// For `method_not_allowed`: the methods that are.
    package let allowedMethods: [Method]
    /// The kind of problem, in a few words.
    package var title: String { isAboutMetadata ? "The provider's metadata cannot be used" : code.title }
    /// For `illegal_configuration`: whether the reason is the provider's metadata, or that it has none.
    package var isAboutMetadata = false
    /// Whether the reason is an answer of a token endpoint that may have moved: there is none at the address, or it does not know the
    /// client. Nothing was spent.
    package var isMisdirected = false
    /// The user's ended session, where that is the reason.
    package var session: EndedSession?
    /// Where the user of that session logs in again; nil for no such address.
    package var reconnectURI: String?
    /// For `level_not_available`: whether the user's session is kept for another configuration of the tenant.
    package var isSessionKept = false
    /// Since when the provider does not accept the tenant's client, where that is the reason; nil for other reasons.
    package var since: Timestamp?
    /// Why the provider was not asked, for the log only; nil if it was asked, or has nothing to do with the error.
    package var withheld: Withheld.Code?
    /// The store's error, for the log only: it says where an operator must look.
    package var storeError: StoreError?
    /// For `forbidden`: the storage key that the caller may not use, for the audit log.
    package var storageKey: StorageKey?
    /// For `too_many_requests`: the limit that was exceeded, for the metrics.
    package var quota: Quota?
    /// For `invalid_request` and `gone`: what is wrong with the response of a login service, where its page needs other words
    /// for it.
    package var responseFault: ResponseFault?
    /// For `unsupported_media_type`: whether the reason is the coding of the content, and not its type.
    package var isAboutContentCoding = false

    package init(
        _ code: Code, _ detail: String, errorCode: String? = nil, retryAfter: Int? = nil, faults: [Fault] = [],
        allowedMethods: [Method] = []
    ) {
        self.code = code
        self.detail = detail
        self.errorCode = errorCode
        // The contract promises Retry-After with each of these.
        self.retryAfter = retryAfter ?? (code.status == .serviceUnavailable || code == .tooManyRequests ? 1 : nil)
        self.faults = faults
        self.allowedMethods = allowedMethods
    }

    package static func invalidRequest(_ pointer: String, _ detail: String) -> BrokerError {
        BrokerError(.invalidRequest, detail, faults: [Fault(pointer, detail)])
    }

    /// The refusal of a storage key that the caller may not use.
    package static func forbidden(_ storageKey: StorageKey, _ detail: String) -> BrokerError {
        var error = BrokerError(.forbidden, detail)
        error.storageKey = storageKey
        return error
    }

    /// The refusal of a login service's response.
    /// - Parameter reported: the error that the response reports; nil for none.
    package static func response(_ fault: ResponseFault, reported: String? = nil) -> BrokerError {
        var error = BrokerError(
            fault.code, fault.detail.followed(by: reported.map { "It reports the error \($0)." }),
            errorCode: reported)
        error.responseFault = fault
        return error
    }

    /// What work gets that the end of this process cuts short.
    static let shuttingDown = BrokerError(.retryableError, "The broker is shutting down.", retryAfter: 1)

    package static let noSuchTenant = BrokerError(.notFound, "There is no tenant of that name.")
}

extension String {
    /// The sentence, followed by another one where there is one.
    func followed(by sentence: String?) -> String { sentence.map { "\(self) \($0)" } ?? self }
}
