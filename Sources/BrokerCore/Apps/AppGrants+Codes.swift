import CredentialStore
import Cryptography
import ExternalText
import OAuth

/// The codes that apps exchange.
extension AppGrants {
    /// What a code is good for.
    enum FoundCode {
        case unused(OpenRecord, AppCode)
        /// The code was used by a request whose answer the app did not get.
        case answered(SecretBytes)
    }

    /// Whether a request came long before the session began that was made of its code, and was read only now. That is no second use.
    private func isEarlier(_ exchange: Exchange, than session: RecordID) async throws(StoreError) -> Bool {
        guard let arrival = exchange.arrival.map({ time.timeOfDay(at: $0) }),
            let session = try await sessions.reread(session)
        else { return false }
        return arrival.advanced(by: Self.longestUsualWait) < session.created
    }

    func find(
        _ id: RecordID, _ digest: [UInt8], _ exchange: Exchange, _ client: AppClient
    ) async throws(AppError) -> FoundCode {
        let record: OpenRecord
        let code: AppCode
        do throws(StoreError) {
            guard let found = try await vault.read(id) else { throw .conflict }
            (record, code) = (found, try AppCode(found))
        } catch .conflict {
            // Another replica may be about to store the code again.
            throw sessions.mayBeOutdated ? AppSessions.lostCommits : .invalidCode
        } catch {
            throw AppError(BrokerError(error))
        }
        guard WireText(code.clientID) == WireText(client.clientID), code.issued >= client.created,
            client.redirectURI(WireText(code.redirectURI)) != nil
        else { throw .invalidCode }
        if let used = code.session {
            let session = RecordID(.session, client.tenant, key: used)
            var unanswered: SecretBytes?
            do throws(StoreError) {
                if let answer = sessions.unanswered.answer(to: digest, provenBy: Array(used.utf8)),
                    (try? code.verify(exchange)) != nil, try await sessions.reread(session) != nil
                {
                    unanswered = answer
                } else if try await !isEarlier(exchange, than: session) {
                    log.warning("code_replayed", LogField.credentials(code.credentialsID))
                    _ = try await sessions.end(session, by: .replay)
                }
            } catch {
                throw AppError(BrokerError(error))
            }
            guard let unanswered else { throw .invalidCode }
            try await tell(ofAnswerFor: code.credentialsID, to: client)
            return .answered(unanswered)
        }
        guard code.expires > time.now else { throw .invalidCode }
        try code.verify(exchange)
        if let origin = code.origin {
            do throws(StoreError) {
                guard try await sessions.reread(RecordID(.session, client.tenant, key: origin)) != nil else {
                    throw .conflict
                }
            } catch .conflict {
                throw .invalidCode
            } catch {
                throw AppError(BrokerError(error))
            }
        }
        return .unused(record, code)
    }
}
