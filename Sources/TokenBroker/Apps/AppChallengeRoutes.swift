import BrokerCore
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import OAuth

/// `/oauth2/challenge`: an app signs a challenge to prove that it has a key. Scripts of any origin may ask for one.
struct AppChallengeRoutes {
    private let broker: Broker

    init(_ broker: Broker) {
        self.broker = broker
    }

    var all: [Route] {
        [
            Route(.post, "/oauth2/challenge", .open, checksContent: false, challenge),
            CrossOrigin.preflight(.post, "/oauth2/challenge", fields: "Content-Type"),
        ]
    }

    private func challenge(_ call: Call) async throws(BrokerError) -> Response {
        do throws(AppError) {
            try await broker.core.apps.limits.admit(call.request.source, for: .challenge)
            let purpose = try await Self.purpose(call)
            let issued: AppChallenges.Issued
            do throws(BrokerError) {
                issued = try broker.core.challenges.issue(for: purpose)
            } catch {
                throw AppError(error)
            }
            return .oauth(
                .ok,
                JSONWriter.object { json in
                    json.name("result")
                    json.object { json in
                        json.member("token", issued.token)
                        json.member("expire_at", issued.expires.description)
                    }
                })
        } catch {
            return error.response
        }
    }

    /// The longest body, in bytes.
    private static let longest = 4096

    private static func purpose(_ call: Call) async throws(AppError) -> AppChallenges.Purpose {
        guard call.request.body.count <= longest else {
            throw AppError(.invalidRequest, "the body is longer than \(longest) bytes")
        }
        let given: WireText?
        do throws(BrokerError) {
            given = try await call.body { $0.requiredString("purpose", limit: 64) }
        } catch {
            throw AppError(.invalidRequest, AppError(error).description)
        }
        guard let purpose = given.flatMap({ AppChallenges.Purpose($0) }) else {
            throw AppError(.invalidRequest, "unknown challenge purpose")
        }
        return purpose
    }
}
