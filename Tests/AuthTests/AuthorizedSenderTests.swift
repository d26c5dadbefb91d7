import Auth
import AuthTesting
import FoundationEssentials
import Synchronization
import Testing

/// Tests requests that are sent with a token, and once more after a 401.
@Suite struct `An authorized sender` {
    /// An API that refuses some tokens, and records what it was asked with.
    private final class API: Sendable {
        private let state: Mutex<(refused: Set<String>, asked: [String?])>

        init(refusing refused: Set<String> = []) {
            state = Mutex((refused, []))
        }

        var asked: [String?] { state.withLock { $0.asked } }
        func refuse(_ token: String?) { state.withLock { if let token { $0.refused.insert(token) } } }

        func answer(_ credentials: Credentials, subStatus: String? = nil) -> APIAnswer<String> {
            let isRefused = state.withLock { state in
                state.asked.append(credentials.authorization)
                return credentials.token.map { state.refused.contains($0) } ?? true
            }
            return APIAnswer(isRefused ? "no" : "yes", status: isRefused ? 401 : 200, subStatus: subStatus)
        }
    }

    /// Gives tokens of a list, the next one after each complaint.
    private final class Tokens: CredentialsProvider {
        private let state: Mutex<(tokens: [String], complaints: [String?])>

        init(_ tokens: String...) {
            state = Mutex((tokens, []))
        }

        var complaints: [String?] { state.withLock { $0.complaints } }

        func getCredentials(apiErrorSubStatus: String?, refused: Credentials?) async throws(AuthError) -> Credentials {
            let token = state.withLock { state in
                if let apiErrorSubStatus {
                    state.complaints.append(apiErrorSubStatus)
                    if state.tokens.count > 1 { state.tokens.removeFirst() }
                }
                return state.tokens.first
            }
            guard let token else { throw AuthError(.networkError, message: "away", retryAfter: .seconds(1)) }
            return Credentials(clientID: "c", token: token)
        }

        func isUserLoggedIn() async throws(AuthError) -> Bool { true }

        var bus: AsyncStream<CredentialsUpdatedMessage> { AsyncStream { $0.finish() } }
    }

    @Test(
        arguments: [
            (refused: [], asked: ["Bearer t1"], content: "yes"),
            (refused: ["t1"], asked: ["Bearer t1", "Bearer t2"], content: "yes"),
            (refused: ["t1", "t2"], asked: ["Bearer t1", "Bearer t2"], content: "no"),
        ] as [(refused: Set<String>, asked: [String?], content: String)])
    func `a request is sent once more after a 401, and not a third time`(
        refused: Set<String>, asked: [String?], content: String
    ) async throws {
        let (api, tokens) = (API(refusing: refused), Tokens("t1", "t2", "t3"))
        let answer = try await AuthorizedSender(tokens).send { api.answer($0) }
        #expect(answer.content == content)
        #expect(api.asked == asked)
        #expect(tokens.complaints == (asked.count == 2 ? ["11003"] : []))
    }

    @Test func `a 401 for which there is no other token is returned`() async throws {
        let (api, tokens) = (API(refusing: ["t1"]), Tokens("t1"))
        let answer = try await AuthorizedSender(tokens).send { api.answer($0, subStatus: "6001") }
        #expect(answer == APIAnswer("no", status: 401, subStatus: "6001"))
        #expect(api.asked.count == 1)
        #expect(tokens.complaints == ["6001"])
    }

    @Test(arguments: [200, 204, 302, 400, 403, 404, 429, 500, 503])
    func `another status is returned as it is`(status: Int) async throws {
        let tokens = Tokens("t1", "t2")
        let answer = try await AuthorizedSender(tokens).send { _ in APIAnswer(0, status: status) }
        #expect(answer.status == status && tokens.complaints.isEmpty)
    }

    @Test func `what fails is thrown, and the request is not sent again`() async throws {
        let sent = Mutex(0)
        await #expect(throws: CancellationError.self) {
            _ = try await AuthorizedSender(Tokens("t1")).send { _ -> APIAnswer<Int> in
                sent.withLock { $0 += 1 }
                throw CancellationError()
            }
        }
        #expect(sent.withLock { $0 } == 1)
        let error = await #expect(throws: AuthError.self) {
            _ = try await AuthorizedSender(Tokens()).send { _ -> APIAnswer<Int> in APIAnswer(1, status: 200) }
        }
        #expect(error?.code == .networkError)
    }

    @Test func `many refused requests refresh once, and a lost session is told of`() async throws {
        let provider = try RunningProvider()
        let environment = provider.environment()
        let auth = AuthClient(provider.configuration(), in: environment)
        let login = try await auth.initializeDeviceLogin()
        #expect(await provider.answer(login, as: "ada"))
        try await auth.finalizeDeviceLogin()
        let (api, sender) = (API(), AuthorizedSender(auth.credentialsProvider))
        api.refuse(try await auth.getCredentials().token)
        let before = provider.tokenRequests
        try await withThrowingTaskGroup(of: String.self) { group in
            for _ in 0..<10 { group.addTask { try await sender.send { api.answer($0) }.content } }
            for try await content in group { #expect(content == "yes") }
        }
        #expect(provider.tokenRequests == before + 1)
        provider.endSessions(of: "ada")
        api.refuse(try await auth.getCredentials().token)
        let error = await #expect(throws: AuthError.self) { _ = try await sender.send { api.answer($0) } }
        #expect(error?.sessionEnd?.cause == .revoked)
        await environment.close()
        await provider.close()
    }
}
