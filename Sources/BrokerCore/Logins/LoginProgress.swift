internal import CredentialStore
internal import ExternalText
internal import HTTPCodec
package import JSON
internal import OAuth
internal import Reactor
internal import Waiting

/// How far a login is, as its caller learns it.
package enum LoginProgress: Sendable, Equatable {
    case pending
    case completed
    case failed(LoginFailure)
    case expired

    /// The members `status`, `error`, `error_code` and `detail`, in records as in answers.
    package func encode(to json: inout JSONWriter) {
        switch self {
        case .pending: json.member("status", "pending")
        case .completed: json.member("status", "completed")
        case .expired: json.member("status", "expired")
        case .failed(let failure):
            json.member("status", "failed")
            json.member("error", failure.code.rawValue)
            json.memberIfPresent("error_code", failure.errorCode)
            json.memberIfPresent("detail", failure.detail)
        }
    }

    /// Reads what `encode` wrote; nil for a status that this build does not know. An error that it does not know is
    /// one that nobody expected.
    init?(_ json: JSONValue) {
        switch json["status"]?.string {
        case "pending": self = .pending
        case "completed": self = .completed
        case "expired": self = .expired
        case "failed":
            self = .failed(
                LoginFailure(
                    code: json["error"]?.string.flatMap(BrokerError.Code.init) ?? .unexpectedError,
                    errorCode: json["error_code"]?.string?.text, detail: json["detail"]?.string?.text))
        default: return nil
        }
    }
}

/// Why a login failed.
package struct LoginFailure: Sendable, Equatable {
    package let code: BrokerError.Code
    /// The provider's `error` or `sub_status`, checked by `ErrorText`.
    package let errorCode: String?
    /// What happened and what to change; nil of a login that an earlier build ended.
    package let detail: String?

    init(code: BrokerError.Code, errorCode: String?, detail: String?) {
        self.code = code
        self.errorCode = errorCode
        self.detail = detail
    }

    init(_ error: BrokerError) {
        self.init(code: error.code, errorCode: error.errorCode, detail: error.detail)
    }

    /// The error as it was when the login failed. A login can be begun again at once.
    package var error: BrokerError {
        BrokerError(
            code, detail ?? "", errorCode: errorCode, retryAfter: code.status == .serviceUnavailable ? 1 : nil)
    }
}

/// Lets callers wait for the end of a login, whichever replica brings it about.
final class LoginEndings: Sendable {
    private let vault: Vault
    private let trust: Trust
    private let time: any Time
    private let signals = KeyedSignal<RecordID>()

    /// - Parameter kind: of the logins' records.
    init(_ kind: RecordKind, vault: Vault, bus: EventBus, time: any Time) {
        self.vault = vault
        self.time = time
        trust = bus.trust
        bus.onChange(of: kind) { [signals] id, _ in signals.signal(id) }
    }

    /// The login of that record has ended, in this process. What other replicas end is heard of from the change feed.
    func signal(_ id: RecordID) {
        signals.signal(id)
    }

    /// Lets everybody who waits have the answer now: the process is being stopped, and whoever asks again is answered
    /// by another.
    func beginDraining() {
        signals.close()
    }

    /// How far the login is; waits for its end for at most `wait`.
    /// - Parameter look: what the record says now, and when a login that is pending will be over; nil for one that is
    ///   unknown or not the caller's.
    /// - Returns: nil when `look` does.
    func progress(
        of id: RecordID, within wait: Duration,
        _ look: (OpenRecord) throws(StoreError) -> (progress: LoginProgress, end: Timestamp)?
    ) async throws(BrokerError) -> LoginProgress? {
        let deadline = time.monotonic.advanced(by: wait)
        while true {
            let ticket = signals.ticket(id)
            let end: Timestamp
            do throws(StoreError) {
                guard let record = try await vault.read(id), let seen = try look(record) else { return nil }
                if seen.progress != .pending { return seen.progress }
                end = seen.end
            } catch {
                throw BrokerError(error)
            }
            let now = time.now
            if end <= now { return .expired }
            let remaining = min(time.monotonic.duration(to: deadline), now.duration(to: end))
            if remaining <= .zero || Task.isCancelled || signals.isClosed { return .pending }
            let limit = min(remaining, interval ?? remaining)
            await signals.wait(for: id, since: ticket) { try? await self.time.sleep(for: limit) }
        }
    }

    /// How often a login's record is looked at while nobody tells of a change: nil where every change is heard of. What
    /// another replica ends is heard of while the change feed works, and whether it does is known a little later.
    private var interval: Duration? {
        if vault.revalidateAfter == nil { return nil }
        return trust.isFollowing(time.monotonic) ? .seconds(5) : .seconds(1)
    }
}
