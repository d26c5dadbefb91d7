import CredentialStore
import ExternalText
import HTTPCodec
package import JSON
import OAuth
import Reactor
import Waiting

/// The progress of a login, for its caller.
package enum LoginProgress: Sendable, Equatable {
    case pending
    case completed
    case failed(LoginFailure)
    case expired

    /// Writes the members `status`, `error`, `error_code` and `detail`, in records as in answers.
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

    /// The end of a login.
    /// - Parameter refusal: why its tokens are not believed; nil where they are stored.
    init(endedBy refusal: BrokerError?) {
        self = refusal.map { .failed(LoginFailure($0)) } ?? .completed
    }

    /// Reads what `encode` wrote; nil for a status that this build does not know. An error that it does not know counts as
    /// `unexpected_error`.
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
    /// What happened and what to change; nil where an earlier build ended the login.
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

/// Lets callers wait for the end of a login, which any replica may bring about.
final class LoginEndings: Sendable {
    private let vault: Vault
    private let records: CredentialsRecords
    private let cacheValidity: CacheValidity
    private let time: any Time
    private let signals = KeyedSignal<RecordID>()

    /// - Parameter kind: the kind of the logins' records.
    init(_ kind: RecordKind, vault: Vault, records: CredentialsRecords, bus: EventBus, time: any Time) {
        self.vault = vault
        self.records = records
        self.time = time
        cacheValidity = bus.cacheValidity
        bus.onChange(of: kind) { [signals] id, _ in signals.signal(id) }
    }

    /// This process has ended the login of that record. The change feed reports logins that other replicas have ended.
    func signal(_ id: RecordID) {
        signals.signal(id)
    }

    /// Ends all waits, because the process is about to end. Callers that ask again reach another replica.
    func beginDraining() {
        signals.close()
    }

    /// What a login's record says.
    struct Seen {
        let progress: LoginProgress
        /// When a pending login expires.
        let end: Timestamp
        let credentials: CredentialsID
    }

    /// The progress of a login; waits for its end for `wait` at most. A caller that is told of a success gets what was stored
    /// with it from then on.
    /// - Parameter look: nil for a login that is unknown or not the caller's.
    /// - Returns: nil when `look` returns nil.
    func progress(
        of id: RecordID, within wait: Duration,
        _ look: (OpenRecord) throws(StoreError) -> Seen?
    ) async throws(BrokerError) -> LoginProgress? {
        let deadline = time.monotonic.advanced(by: wait)
        while true {
            let ticket = signals.ticket(id)
            let end: Timestamp
            do throws(StoreError) {
                guard let record = try await vault.read(id), let seen = try look(record) else { return nil }
                if seen.progress != .pending {
                    // The process or replica that stored the set may be about to put it into this cache.
                    if seen.progress == .completed { records.forget(seen.credentials) }
                    return seen.progress
                }
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

    /// How often a login's record is read without a signal; nil where no other process writes to the store. With a change feed
    /// that is alive, seldom: it reports other replicas' changes, but its loss is noticed a little late.
    private var interval: Duration? {
        if vault.revalidateAfter == nil { return nil }
        return cacheValidity.isFeedAlive(at: time.monotonic) ? .seconds(5) : .seconds(1)
    }
}
